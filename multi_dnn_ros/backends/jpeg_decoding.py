"""Decoding of JPEG files on the device that runs the DNNs, by type of device."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from multi_dnn_ros.backends.device_errors import is_device_failure
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.vision.jpeg_file import JpegFile

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

#: A decoded image on the device, (H, W, 3) uint8 RGB, contiguous, and an event after which it is complete; None: it is.
Decoded = tuple[Any, Any]
#: Thread-safe. Raises any exception if it cannot decode the file.
DecodeOnDevice = Callable[[JpegFile], Decoded]

#: Size (height, width) of the file that is decoded to see whether a device can; not a multiple of a JPEG's blocks.
_TRIAL_SIZE = (70, 101)
#: Maximum of the mean difference from OpenCV's pixels, in levels. Decoders differ in rounding and in the interpolation
#: of chroma.
_TRIAL_DIFFERENCE = 3.0
#: Images of a camera that fail in a row, after which the device is not tried again for it.
_MAX_FAILURES = 3


class JpegUnavailable(Exception):
    """JPEG files cannot be decoded on the device; the message is the reason."""


class NvJpeg:
    """A :data:`DecodeOnDevice` for a CUDA GPU: nvJPEG, called by torchvision.

    torchvision decodes one file at a time per process, on a stream of its own, and waits for its end without the GIL.
    """

    def __init__(self, device: torch.device) -> None:
        import torch
        from torchvision.io import ImageReadMode, decode_jpeg

        self._decode = decode_jpeg
        self._mode = ImageReadMode.RGB
        self._lock = threading.Lock()
        self._device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        self._stream = torch.cuda.Stream(self._device)

    def __call__(self, file: JpegFile) -> Decoded:
        import torch

        data = torch.from_numpy(file.data)
        with self._lock, torch.cuda.stream(self._stream):
            # torchvision writes to memory of the current stream on its own stream, without waiting for the current one
            # (decode_jpegs_cuda.cpp of 0.26): the previous copy, whose source may be that memory, must have ended.
            self._stream.synchronize()
            planes = self._decode(data, mode=self._mode, device=self._device)
            image = planes.permute(1, 2, 0).contiguous()
            complete = torch.cuda.Event()
            complete.record(self._stream)
        return image, complete


#: By type of device, makes the function that decodes there; it may raise any exception if that is impossible.
JPEG_DECODERS: dict[str, Callable[[Any], DecodeOnDevice]] = {"cuda": NvJpeg}


class JpegDecoder:
    """Decodes JPEG files on one device; thread-safe."""

    def __init__(self, decode: DecodeOnDevice) -> None:
        self._decode = decode
        self._failures: dict[str, int] = {}  # by camera, in a row
        self._logged: set[str] = set()  # cameras

    def __call__(self, file: JpegFile, camera: str) -> Decoded | None:
        """The image on the device, (H, W, 3) uint8 RGB; None if that fails, which is logged once per camera, or if
        it has failed for the last images of the camera.

        Raises an error of the device that is_device_failure recognizes.
        """
        failures = self._failures.get(camera, 0)
        if failures >= _MAX_FAILURES:
            return None
        try:
            image, complete = self._decode(file)
            if tuple(image.shape) != (file.height, file.width, 3):
                raise ValueError(f"the header says {file.width} x {file.height}, the result is {tuple(image.shape)}")
        except Exception as error:
            if is_device_failure(error):
                raise
            self._failures[camera] = failures + 1
            if camera not in self._logged:
                self._logged.add(camera)
                log.warning(
                    "camera %s: a JPEG image of %d x %d could not be decoded on the GPU and is decoded on the CPU; "
                    "after %d in a row the GPU is not tried again: %s",
                    camera,
                    file.width,
                    file.height,
                    _MAX_FAILURES,
                    summarize_error(error),
                )
            return None
        self._failures[camera] = 0
        return image, complete


def make_jpeg_decoder(device: torch.device) -> JpegDecoder:
    """The decoder for a device, after it has decoded a small file as OpenCV does.

    Raises JpegUnavailable, and an error of the device that is_device_failure recognizes.
    """
    factory = JPEG_DECODERS.get(device.type)
    if factory is None:
        raise JpegUnavailable(f"device {device} cannot decode JPEG files")
    file = _trial_file()
    try:
        decode = factory(device)
        image, _ = decode(file)
        pixels = _to_host(image)
    except Exception as error:
        if is_device_failure(error):
            raise
        raise JpegUnavailable(summarize_error(error)) from None
    expected = file.decode()
    if pixels.shape != expected.shape:
        raise JpegUnavailable(f"a trial image of shape {expected.shape} was decoded to {pixels.shape}")
    difference = float(np.abs(pixels.astype(np.float32) - expected).mean())
    if difference > _TRIAL_DIFFERENCE:
        raise JpegUnavailable(
            f"a trial image differs from OpenCV's by {difference:.1f} levels; allowed: {_TRIAL_DIFFERENCE:g}"
        )
    if device.type == "cuda":
        _stop_polling(device)
    return JpegDecoder(decode)


def _stop_polling(device: torch.device) -> None:
    """Let the process sleep while it waits for the GPU in the driver.

    By default it polls. While DNNs keep the GPU busy, that costs more CPU time than decoding on the CPU.
    """
    try:
        from multi_dnn_ros.backends.cuda_driver import wait_without_polling

        wait_without_polling(device)
    except (RuntimeError, AttributeError) as error:
        if is_device_failure(error):
            raise
        log.info("decoding JPEG images polls the GPU, because the driver rejects waits that sleep: %s", error)


def _to_host(image: torch.Tensor) -> np.ndarray[Any, Any]:
    if image.device.type == "cuda":
        import torch

        torch.cuda.synchronize(image.device)  # it was written on another stream
    return image.cpu().numpy()


def _trial_file() -> JpegFile:
    """Gradients in all three channels: without edges, the interpolation of chroma hardly matters."""
    import cv2

    height, width = _TRIAL_SIZE
    rows, columns = np.linspace(0, 255, height)[:, None], np.linspace(0, 255, width)[None, :]
    channels = (rows + 0 * columns, 0 * rows + columns, (rows + columns) / 2)
    _, data = cv2.imencode(".jpg", np.stack(channels, axis=2).astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 95])
    return JpegFile(data.reshape(-1), height, width)
