"""One camera image in the engine: uploaded once, shared by all DNNs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.backends import Tensors


class Frame:
    """An image of a camera and its origin.

    camera: the camera's name. stamp_ns: capture time from the message header, nanoseconds.
    image: (H, W, 3) uint8 RGB, C-contiguous. None: to be set by :meth:`set_image` before the frame is offered.
    context: passed through to the result (the ROS header); the engine does not read it.
    """

    def __init__(
        self, camera: str, stamp_ns: int, image: npt.NDArray[np.uint8] | None = None, context: object = None
    ) -> None:
        self.camera = camera
        self.stamp_ns = stamp_ns
        self.context = context
        self.received_ns = 0  # on the engine's clock; 0: set by Engine.offer
        self.decode_ns = 0  # duration of decoding the image
        self._image = image
        self._uploads: dict[torch.device, tuple[torch.Tensor, torch.cuda.Event | None]] = {}
        self._lock = threading.Lock()
        self._inputs: dict[Hashable, _Inputs] = {}

    def set_image(self, image: npt.NDArray[np.uint8], decode_ns: int) -> None:
        """Set the image and the duration of its decoding, before the frame is offered."""
        self._image, self.decode_ns = image, decode_ns

    def image(self) -> npt.NDArray[np.uint8]:
        """(H, W, 3) uint8 RGB. Raises ValueError if the frame was dropped before it was decoded."""
        if self._image is None:
            raise ValueError(f"the frame of camera {self.camera} has no image")
        return self._image

    def tensor(self, device: torch.device) -> torch.Tensor:
        """The image as (H, W, 3) uint8 on `device`, uploaded on the first call.

        On CUDA the copy runs on the calling thread's current stream; the streams of later callers wait for it on the
        GPU.
        """
        with self._lock:
            if device not in self._uploads:
                self._uploads[device] = _upload(self.image(), device)
                return self._uploads[device][0]  # the copy runs on the caller's stream
            tensor, uploaded = self._uploads[device]
        if uploaded is not None:
            import torch

            stream = torch.cuda.current_stream(device)
            stream.wait_event(uploaded)
            tensor.record_stream(stream)
        return tensor

    def inputs(self, key: Hashable, make: Callable[[], Tensors]) -> Tensors:
        """The tensors that `make` returns. It is called once for all callers with an equal `key`; the others wait.

        If it raises, the next caller calls its own `make`: an error drops the frame for one DNN only.
        """
        with self._lock:
            inputs = self._inputs.setdefault(key, _Inputs())
        with inputs.lock:
            if inputs.tensors is None:
                inputs.tensors = make()
            return inputs.tensors


class _Inputs:
    """The input that all DNNs with the same key share; the first of them makes it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tensors: Tensors | None = None


def _upload(image: npt.NDArray[np.uint8], device: torch.device) -> tuple[torch.Tensor, torch.cuda.Event | None]:
    import torch  # not at module level: the node's process uses frames, too

    from multi_dnn_ros.backends.cuda_driver import enqueue_on

    source = torch.from_numpy(image)
    if device.type != "cuda":
        return source.to(device), None
    if source.is_pinned():  # shared memory registered with CUDA is
        tensor = torch.empty(source.shape, dtype=source.dtype, device=device)
        enqueue_on(tensor.device).copy_from_host(tensor, source.data_ptr())
    else:
        tensor = source.pin_memory().to(device, non_blocking=True)
    uploaded = torch.cuda.Event()
    uploaded.record(torch.cuda.current_stream(device))
    return tensor, uploaded
