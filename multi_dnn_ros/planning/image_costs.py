"""Cost of images by size: decoding on a core, upload and preprocessing on the device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import cv2
import numpy as np
import numpy.typing as npt
import torch

from multi_dnn_ros.backends.green_contexts import computing_on
from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.planning.image_sizes import megapixels
from multi_dnn_ros.planning.launch_cost import synchronize

#: (width, height) of the timed images.
_SMALL, _LARGE = (640, 480), (1280, 720)
_REPEATS = 5
#: JPEG quality, 0 to 100: a common default of camera drivers.
_QUALITY = 80


def decode_ms(transport: str) -> float:
    """Milliseconds per megapixel on one core. transport: raw (timed with bgr8) or compressed (JPEG).

    JPEG decoding time depends on the content; the test image has detail at every scale, like a street scene.
    """
    image = _picture()
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        if transport == "raw":
            return _ms(lambda: cv2.cvtColor(image, cv2.COLOR_BGR2RGB)) / megapixels(_LARGE)
        jpeg = cv2.imencode(".jpg", image, (cv2.IMWRITE_JPEG_QUALITY, _QUALITY))[1]
        return _ms(lambda: _decode(jpeg)) / megapixels(_LARGE)
    finally:
        cv2.setNumThreads(threads)


def preprocess_ms(task: DnnTask, device: torch.device) -> float:
    """Milliseconds of upload and preprocessing per additional megapixel. The DNN must be idle meanwhile."""
    height, width = task.enlarge_to_min(_SMALL[::-1])
    small = (width, height)
    large = _LARGE if small == _SMALL else (2 * width, 2 * height)

    def ms(size: tuple[int, int]) -> float:
        image = torch.zeros((size[1], size[0], 3), dtype=torch.uint8, pin_memory=device.type == "cuda")

        def once() -> None:
            task.preprocess(image.to(device, non_blocking=True))
            synchronize(device)

        once()
        return _ms(once)

    with torch.inference_mode(), computing_on(device, task.sms):
        return max(0.0, (ms(large) - ms(small)) / (megapixels(large) - megapixels(small)))


def _picture() -> npt.NDArray[np.uint8]:
    """Noise at every scale, with roughly equal contrast."""
    generator = np.random.default_rng(0)
    width, height = _LARGE
    total = np.full((height, width, 3), 128, np.float32)
    for scale in (2, 4, 8, 16, 32, 64):
        noise = generator.normal(0.0, 12.0, (-(-height // scale), -(-width // scale), 3)).astype(np.float32)
        total += cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.asarray(np.clip(total, 0, 255), dtype=np.uint8)


def _decode(jpeg: npt.NDArray[np.uint8]) -> object:
    image = cv2.imdecode(jpeg, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    assert image is not None
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=image)


def _ms(call: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)
