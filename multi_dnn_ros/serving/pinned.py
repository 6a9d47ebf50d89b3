"""Shared memory that a GPU reads without another copy."""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt
import torch

log = logging.getLogger(__name__)


class PinnedImages:
    """Registers images with CUDA, once for each place and size: PyTorch then takes the memory for pinned.

    Several threads may use it, each for its own places. Without effect on a CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._bytes: dict[int, int] = {}  # registered from each address on
        self._usable = device.type == "cuda"

    def pin(self, image: npt.NDArray[np.uint8]) -> None:
        """Register the memory of an image at the beginning of a slot (page-aligned), before its first upload.

        Where CUDA refuses, a warning says so once, and images are copied to pinned memory as any other.
        """
        if not self._usable:
            return
        address, size = image.ctypes.data, image.nbytes
        before = self._bytes.get(address, 0)
        if before >= size:
            return
        torch.cuda.set_device(self._device)  # per thread
        runtime = torch.cuda.cudart()
        if before:  # nobody uploads from it: it holds a new image
            runtime.cudaHostUnregister(address)
            del self._bytes[address]
        refusal = runtime.cudaHostRegister(address, size, 0)
        if int(refusal):
            self._usable = False
            log.warning(
                "images are copied once more before they are uploaded: cudaHostRegister of %d bytes failed: %s",
                size,
                refusal,
            )
            return
        self._bytes[address] = size

    def close(self) -> None:
        """Give the memory back; nothing may be uploaded from it any more."""
        for address in self._bytes:
            torch.cuda.cudart().cudaHostUnregister(address)
        self._bytes.clear()
