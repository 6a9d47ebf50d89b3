"""Preprocessing as part of the first job's launches: colour order, resize and normalization captured in one graph."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.backends.agreement import check_agreement
from multi_dnn_ros.backends.capture import Launch

log = logging.getLogger(__name__)

#: What a graph needs is an image in memory of its own; more sizes than this run without one.
MOST_SIZES = 4
_TOLERANCE = 1e-4


class PreprocessGraph:
    """Takes an image on the device and leaves the network's input where the first job reads it.

    preprocess: (H, W, 3) uint8 -> inputs of the first job. destination: the memory that the first job reads; as it
    belongs to the DNN, an image may come when the frame before is through. capture: makes one launch of a function that
    reads and writes fixed memory (see `capture_on`).

    The cameras' sizes are known with their first frames: until `specialize` was called for a size, and when capturing
    failed, `preprocess` runs as it is, operation by operation.
    """

    def __init__(
        self, preprocess: Callable[[torch.Tensor], Tensors], destination: Tensors, capture: Callable[[Launch], Launch]
    ) -> None:
        self._preprocess = preprocess
        self._destination = destination
        self._capture = capture
        self._graphs: dict[tuple[int, ...], tuple[torch.Tensor, Launch]] = {}

    def __call__(self, image: torch.Tensor) -> Tensors:
        found = self._graphs.get(tuple(image.shape))
        if found is None:
            return self._preprocess(image)
        place, replay = found
        place.copy_(image, non_blocking=True)
        replay()
        return self._destination

    def specialize(self, size: tuple[int, int]) -> None:
        """Capture for images of (H, W); nothing else may run on the device meanwhile.

        Raises what capturing raises, ValueError when the graph computes otherwise; images of this size then go on as
        before.
        """
        shape = (*size, 3)
        if shape in self._graphs:
            return
        if len(self._graphs) == MOST_SIZES:
            raise ValueError(f"images of {MOST_SIZES} other sizes are captured already")
        with torch.inference_mode():
            device = self._destination[0].device
            noise = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
            image = noise.to(device)

            def run() -> None:
                for place, tensor in zip(self._destination, self._preprocess(image), strict=True):
                    place.copy_(tensor)

            # A frame may be on its way whose later jobs still read what the first one was given.
            kept = tuple(place.clone() for place in self._destination)
            replay = self._capture(run)
            expected = tuple(
                tensor.to(place.dtype) for tensor, place in zip(self._preprocess(image), self._destination, strict=True)
            )
            replay()
            try:
                check_agreement(self._destination, expected, _TOLERANCE)
            finally:
                for place, tensor in zip(self._destination, kept, strict=True):
                    place.copy_(tensor)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
        self._graphs[shape] = (image, replay)
