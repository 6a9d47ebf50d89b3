"""One camera image on its way through the engine: decoded once, uploaded once, shared by every DNN."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.frame_error import FrameError

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)


class Frame:
    """An image that is decoded when its first job needs it, not when it arrives.

    camera: the camera's name. stamp_ns: capture time from the message's header, nanoseconds.
    load: returns the image as (H, W, 3) uint8 RGB, C-contiguous; raises :class:`FrameError`.
    context: anything the caller wants back with the result (the ROS header); the engine does not look at it.
    on_bad: told once when the image cannot be used, however many DNNs lose it, in the thread that decodes.
    """

    def __init__(
        self,
        camera: str,
        stamp_ns: int,
        load: Callable[[], npt.NDArray[np.uint8]] | None = None,
        context: object = None,
        on_bad: Callable[[FrameError], None] = lambda error: None,
    ) -> None:
        self.camera = camera
        self.stamp_ns = stamp_ns
        self.context = context
        self.received_ns = 0  # on the engine's clock; 0: set by Engine.offer
        self.decode_ns = 0  # that decoding took, when it was done on arrival
        self._load: Callable[[], npt.NDArray[np.uint8]] | None = load
        self._image: npt.NDArray[np.uint8] | None = None
        self._on_bad = on_bad
        self._error: FrameError | None = None
        self._uploads: dict[torch.device, tuple[torch.Tensor, torch.cuda.Event | None]] = {}
        self._lock = threading.Lock()

    def set_image(self, image: npt.NDArray[np.uint8], decode_ns: int) -> None:
        """The image, decoded before the frame is offered; in place of `load`."""
        self._image, self.decode_ns = image, decode_ns

    def image(self) -> npt.NDArray[np.uint8]:
        """The decoded image, (H, W, 3) uint8 RGB; decoded on the first call, by whichever thread comes first."""
        image = self._image
        if image is not None:  # without the lock, which costs more than all the rest
            return image
        with self._lock:
            return self._decoded()

    def tensor(self, device: torch.device) -> torch.Tensor:
        """The image as (H, W, 3) uint8 on `device`, uploaded on the first call.

        On CUDA the copy runs on the calling thread's current stream; a later caller's stream waits for it on the GPU.
        """
        with self._lock:
            if device not in self._uploads:
                self._uploads[device] = _upload(self._decoded(), device)
                return self._uploads[device][0]  # the copy runs on the caller's own stream
            tensor, uploaded = self._uploads[device]
        if uploaded is not None:
            import torch

            stream = torch.cuda.current_stream(device)
            stream.wait_event(uploaded)
            tensor.record_stream(stream)
        return tensor

    def _decoded(self) -> npt.NDArray[np.uint8]:
        if self._error is not None:
            raise self._error
        if self._image is None:
            assert self._load is not None
            try:
                self._image = self._load()
            except Exception as error:
                bad = error if isinstance(error, FrameError) else FrameError(f"{type(error).__name__}: {error}")
                self._error = bad
                self._report(bad)
                if bad is error:
                    raise
                raise bad from error
            finally:
                self._load = None  # the message is not needed any more
        return self._image

    def _report(self, error: FrameError) -> None:
        """A callback that raises must not end the thread that decodes."""
        try:
            self._on_bad(error)
        except Exception:
            log.exception("the callback for bad images of camera %s raised", self.camera)


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
