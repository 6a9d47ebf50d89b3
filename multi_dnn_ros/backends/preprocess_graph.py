"""Preprocessing (colour order, resize, normalization) captured as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.backends.agreement import check_agreement
from multi_dnn_ros.backends.capture import Launch

#: Each graph needs memory for an image of its size; further sizes are not captured.
MAX_SIZES = 4
_TOLERANCE = 1e-4


class PreprocessGraph:
    """Called with an image on the device, writes the network's input to the memory that the first stage reads.

    preprocess: (H, W, 3) uint8 -> inputs of the first stage. destination: the memory that the first stage reads; no
    call may start before the previous frame has finished. capture: see capture_on. copy: copies its second argument to
    its first one, on the calling thread's current stream. copy_from_host: the same from an address on the host.

    Image sizes become known with the cameras' first frames. `preprocess` runs eager until `specialize` has been called
    for a size, and if the capture failed.
    """

    def __init__(
        self,
        preprocess: Callable[[torch.Tensor], Tensors],
        destination: Tensors,
        capture: Callable[[Launch], Launch],
        copy: Callable[[torch.Tensor, torch.Tensor], object],
        copy_from_host: Callable[[torch.Tensor, int], object],
    ) -> None:
        self._preprocess = preprocess
        self._destination = destination
        self._capture = capture
        self._copy = copy
        self._copy_from_host = copy_from_host
        self._graphs: dict[tuple[int, ...], tuple[torch.Tensor, Launch]] = {}

    def __call__(self, image: torch.Tensor) -> Tensors:
        found = self._graphs.get(tuple(image.shape))
        if found is None:
            return self._preprocess(image)
        target, replay = found
        self._copy(target, image)
        replay()
        return self._destination

    def from_host(self, image: npt.NDArray[np.uint8]) -> Tensors | None:
        """As a call, with (H, W, 3) uint8 on the host, C-contiguous; None if its size is not captured.

        Each DNN copies the image for itself: that takes less time than sharing a copy on the device, which needs
        memory and events per frame. The image must not change before the copy has been made.
        """
        found = self._graphs.get(image.shape)
        if found is None:
            return None
        target, replay = found
        self._copy_from_host(target, image.ctypes.data)
        replay()
        return self._destination

    def specialize(self, size: tuple[int, int]) -> None:
        """Capture for images of (H, W); nothing may be launched on the device meanwhile. Overwrites the destination.

        Raises what the capture raises, and ValueError if the results differ or MAX_SIZES are captured; preprocessing
        of this size then stays eager.
        """
        shape = (*size, 3)
        if shape in self._graphs:
            return
        if len(self._graphs) == MAX_SIZES:
            raise ValueError(f"images of {MAX_SIZES} other sizes are captured already")
        with torch.inference_mode():
            device = self._destination[0].device
            noise = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
            image = noise.to(device)

            def run() -> None:
                for target, tensor in zip(self._destination, self._preprocess(image), strict=True):
                    target.copy_(tensor)

            _synchronize(device)  # a frame in progress may still read the first stage's input
            replay = self._capture(run)
            expected = tuple(
                tensor.to(target.dtype)
                for tensor, target in zip(self._preprocess(image), self._destination, strict=True)
            )
            replay()
            check_agreement(self._destination, expected, _TOLERANCE)
            _synchronize(device)
        self._graphs[shape] = (image, replay)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
