"""Registers shared memory with CUDA, so that images are uploaded without another copy."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)


class PinnedImages:
    """Registers the memory of images with CUDA, once per address and size; PyTorch then treats it as pinned.

    Several threads may use it, each for its own slots. No effect on a CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._bytes: dict[int, int] = {}  # by address, the registered bytes
        self._usable = device.type == "cuda"

    def pin(self, image: npt.NDArray[np.uint8]) -> None:
        """Register the memory of an image, (H, W, 3) uint8, at the beginning of a slot (page-aligned).

        If CUDA rejects it, a warning is logged once, and images are copied to pinned memory instead.
        """
        if not self._usable:
            return
        import torch

        address, size = image.ctypes.data, image.nbytes
        registered = self._bytes.get(address, 0)
        if registered >= size:
            return
        torch.cuda.set_device(self._device)  # per thread
        runtime = torch.cuda.cudart()
        if registered:  # no upload from this memory is in progress, because it contains a new image
            runtime.cudaHostUnregister(address)
            del self._bytes[address]
        if int(error := runtime.cudaHostRegister(address, size, 0)):
            self._usable = False
            log.warning("cudaHostRegister of %d bytes failed (%s): images are copied before their upload", size, error)
        else:
            self._bytes[address] = size

    def close(self) -> None:
        """Unregister all memory. No upload may be in progress."""
        for address in self._bytes:
            import torch

            torch.cuda.cudart().cudaHostUnregister(address)
        self._bytes.clear()
