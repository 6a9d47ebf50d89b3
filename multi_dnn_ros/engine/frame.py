"""One camera image in the engine: decoded or uploaded once, shared by all DNNs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.vision.jpeg_file import FrameImage, JpegFile, size_of

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.backends import Tensors
    from multi_dnn_ros.backends.jpeg_decoding import JpegDecoder


class Frame:
    """An image of a camera and its origin.

    camera: the camera's name. stamp_ns: capture time from the message header, nanoseconds.
    image: (H, W, 3) uint8 RGB, C-contiguous, or a JPEG file. None: to be set by :meth:`set_image` before the frame is
    offered.
    context: passed through to the result (the ROS header); the engine does not read it.
    jpeg_decoder: decodes a JPEG file on the device; None: it is decoded on the CPU.
    """

    def __init__(
        self,
        camera: str,
        stamp_ns: int,
        image: FrameImage | None = None,
        context: object = None,
        jpeg_decoder: JpegDecoder | None = None,
    ) -> None:
        self.camera = camera
        self.stamp_ns = stamp_ns
        self.context = context
        self.received_ns = 0  # on the engine's clock; 0: set by Engine.offer
        self.decode_ns = 0  # duration of decoding the image, or of storing and decoding its JPEG file
        self._source = image
        self._pixels: npt.NDArray[np.uint8] | None = None  # of a JPEG file, decoded on the CPU
        self._jpeg_decoder = jpeg_decoder
        self._uploads: dict[torch.device, tuple[torch.Tensor, torch.cuda.Event | None]] = {}
        self._lock = threading.RLock()
        self._inputs: dict[Hashable, _Inputs] = {}

    def set_image(self, image: FrameImage, decode_ns: int) -> None:
        """Set the image and the duration of its decoding, before the frame is offered."""
        self._source, self.decode_ns = image, decode_ns

    @property
    def has_image(self) -> bool:
        """Whether the image was set."""
        return self._source is not None

    @property
    def source(self) -> FrameImage:
        """The image as it was given. Raises ValueError if the frame was dropped before it had one."""
        if self._source is None:
            raise ValueError(f"the frame of camera {self.camera} has no image")
        return self._source

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the image. Raises ValueError as :attr:`source` does."""
        return size_of(self.source)

    def image(self) -> npt.NDArray[np.uint8]:
        """(H, W, 3) uint8 RGB. A JPEG file is decoded on the CPU, on the first call.

        Raises ValueError as :attr:`source` does, and FrameError for a file that cannot be decoded.
        """
        source = self.source
        if not isinstance(source, JpegFile):
            return source
        with self._lock:
            if self._pixels is None:
                self._pixels = source.decode()
            return self._pixels

    def is_decoded_for(self, device: torch.device) -> bool:
        """Whether :meth:`tensor` will not decode. Without the lock: False may be out of date."""
        return not isinstance(self._source, JpegFile) or self._pixels is not None or device in self._uploads

    def decode_for(self, device: torch.device) -> None:
        """Decode a JPEG file: on the device if the frame has a decoder, otherwise or if that fails on the CPU.

        Happens once for all callers; the others wait. Releases the GIL. Raises FrameError for a file that cannot be
        decoded, and an error of the device that is_device_failure recognizes.
        """
        with self._lock:
            if self.is_decoded_for(device):
                return
            begin_ns = time.monotonic_ns()
            source = self.source
            decoded = None
            if self._jpeg_decoder is not None and isinstance(source, JpegFile):
                decoded = self._jpeg_decoder(source, self.camera)
            if decoded is not None:
                self._uploads[device] = decoded
            else:
                self.image()
            self.decode_ns += time.monotonic_ns() - begin_ns

    def tensor(self, device: torch.device) -> torch.Tensor:
        """The image as (H, W, 3) uint8 on `device`, decoded and uploaded on the first call.

        On CUDA the copy runs on the calling thread's current stream; the streams of later callers wait for it on the
        GPU, and all streams for an image that was decoded there.
        """
        with self._lock:
            if not self.is_decoded_for(device):
                self.decode_for(device)
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
        return source, None
    if source.is_pinned():  # shared memory registered with CUDA is
        tensor = torch.empty(source.shape, dtype=source.dtype, device=device)
        enqueue_on(tensor.device).copy_from_host(tensor, source.data_ptr())
    else:
        tensor = source.pin_memory().to(device, non_blocking=True)
    uploaded = torch.cuda.Event()
    uploaded.record(torch.cuda.current_stream(device))
    return tensor, uploaded
