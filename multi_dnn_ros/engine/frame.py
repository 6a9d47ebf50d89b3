"""One camera image on its way through the engine: uploaded once, shared by every DNN."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch


class Frame:
    """An image of a camera and where it comes from.

    camera: the camera's name. stamp_ns: capture time from the message's header, nanoseconds.
    image: (H, W, 3) uint8 RGB, C-contiguous; None: set before the frame is offered, see :meth:`set_image`.
    context: anything the caller wants back with the result (the ROS header); the engine does not look at it.
    """

    def __init__(
        self, camera: str, stamp_ns: int, image: npt.NDArray[np.uint8] | None = None, context: object = None
    ) -> None:
        self.camera = camera
        self.stamp_ns = stamp_ns
        self.context = context
        self.received_ns = 0  # on the engine's clock; 0: set by Engine.offer
        self.decode_ns = 0  # that decoding the image took
        self._image = image
        self._uploads: dict[torch.device, tuple[torch.Tensor, torch.cuda.Event | None]] = {}
        self._lock = threading.Lock()

    def set_image(self, image: npt.NDArray[np.uint8], decode_ns: int) -> None:
        """The image, and how long decoding it took; before the frame is offered."""
        self._image, self.decode_ns = image, decode_ns

    def image(self) -> npt.NDArray[np.uint8]:
        """(H, W, 3) uint8 RGB. Of a frame that was lost undecoded there is none: ValueError."""
        if self._image is None:
            raise ValueError(f"the frame of camera {self.camera} has no image")
        return self._image

    def tensor(self, device: torch.device) -> torch.Tensor:
        """The image as (H, W, 3) uint8 on `device`, uploaded on the first call.

        On CUDA the copy runs on the calling thread's current stream; a later caller's stream waits for it on the GPU.
        """
        with self._lock:
            if device not in self._uploads:
                self._uploads[device] = _upload(self.image(), device)
                return self._uploads[device][0]  # the copy runs on the caller's own stream
            tensor, uploaded = self._uploads[device]
        if uploaded is not None:
            import torch

            stream = torch.cuda.current_stream(device)
            stream.wait_event(uploaded)
            tensor.record_stream(stream)
        return tensor


def _upload(image: npt.NDArray[np.uint8], device: torch.device) -> tuple[torch.Tensor, torch.cuda.Event | None]:
    import torch  # not above: frames also exist in the node's process

    source = torch.from_numpy(image)
    if device.type != "cuda":
        return source.to(device), None
    if not source.is_pinned():  # shared memory that is registered with CUDA is
        source = source.pin_memory()
    tensor = source.to(device, non_blocking=True)
    uploaded = torch.cuda.Event()
    uploaded.record(torch.cuda.current_stream(device))
    return tensor, uploaded
