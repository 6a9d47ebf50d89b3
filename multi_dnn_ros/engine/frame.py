"""One camera image in the engine: uploaded and preprocessed once, shared by all DNNs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.backends import Tensors

_NO_IMAGE = np.empty((0, 0, 3), np.uint8)


class Frame:
    """An image of a camera and its origin.

    camera: the camera's name. stamp_ns: capture time from the message header, nanoseconds.
    image: (H, W, 3) uint8 RGB, C-contiguous; to be set before the frame is offered, until then without pixels.
    context: passed through to the result (the ROS header); the engine does not read it.
    """

    def __init__(
        self, camera: str, stamp_ns: int, image: npt.NDArray[np.uint8] = _NO_IMAGE, context: object = None
    ) -> None:
        self.camera = camera
        self.stamp_ns = stamp_ns
        self.context = context
        self.received_ns = 0  # on the engine's clock; 0: set by Engine.offer
        self.decode_ns = 0  # duration of decoding the image
        self.image = image
        self._uploaded: tuple[torch.Tensor, torch.cuda.Event] | None = None
        self._lock = threading.Lock()
        self._making: dict[Hashable, threading.Lock] = {}  # held while the inputs of this key are made
        self._inputs: dict[Hashable, Tensors] = {}

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the image."""
        height, width = self.image.shape[:2]
        return height, width

    def tensor(self, device: torch.device) -> torch.Tensor:
        """The image as (H, W, 3) uint8 on `device`. On a GPU it is uploaded on the first call, for all calls.

        The copy to a GPU runs on the current stream of the launching thread, and other streams wait for it.
        """
        import torch  # not at module level: the node's process uses frames, too

        if device.type != "cuda":
            return torch.from_numpy(self.image)
        stream = torch.cuda.current_stream(device)
        if self._uploaded is None:
            uploaded = _upload(torch.from_numpy(self.image), device), torch.cuda.Event()
            uploaded[1].record(stream)
            self._uploaded = uploaded
            return uploaded[0]
        tensor, copied = self._uploaded
        stream.wait_event(copied)
        tensor.record_stream(stream)
        return tensor

    def inputs(self, key: Hashable, make: Callable[[], Tensors]) -> Tensors:
        """The tensors that `make` returns. It is called once for all callers with an equal `key`; the others wait.

        If it raises, the next caller calls its own `make`: an error drops the frame for one DNN only.
        """
        with self._lock:
            lock = self._making.setdefault(key, threading.Lock())
        with lock:
            if key not in self._inputs:
                self._inputs[key] = make()
            return self._inputs[key]


def _upload(source: torch.Tensor, device: torch.device) -> torch.Tensor:
    import torch

    from multi_dnn_ros.backends.cuda_driver import enqueue_on

    if not source.is_pinned():  # shared memory registered with CUDA is
        return source.pin_memory().to(device, non_blocking=True)
    tensor = torch.empty(source.shape, dtype=source.dtype, device=device)
    enqueue_on(tensor.device).copy_from_host(tensor, source.data_ptr())
    return tensor
