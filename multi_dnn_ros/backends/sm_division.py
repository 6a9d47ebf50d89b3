"""Divides the SMs of a GPU into parts that do not overlap, each with a CUDA green context.

PyTorch's green contexts always contain the first SMs of the GPU, so that two of different size overlap. Source of the
method: CUDA driver API, "Green Contexts".
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import torch

from multi_dnn_ros.backends.cuda_driver import check, driver

log = logging.getLogger(__name__)

#: CUdevResourceType: SMs. CUgreenCtxCreate_flags and CUstream_flags: neither waits for the default stream.
_SM, _DEFAULT_STREAM, _NON_BLOCKING = 1, 1, 1
#: Bytes for one CUdevResource, which has 144 in CUDA 12 and 13; more for later versions.
_RESOURCE_BYTES = 1024
#: Offset of the number of SMs, an unsigned int, in a CUdevResource: after its type and 92 bytes of padding.
_COUNT_OFFSET = 96
#: CUresult: CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, and with CUDA_ERROR_INVALID_RESOURCE_TYPE, of an empty resource.
_TOO_FEW_SMS = 915
_TOO_FEW = frozenset({914, _TOO_FEW_SMS})
#: Functions used here. The last one came with CUDA 12.5, the others with 12.4.
_FUNCTIONS = (
    "cuDeviceGetDevResource", "cuDevSmResourceSplitByCount", "cuDevResourceGenerateDesc", "cuGreenCtxCreate",
    "cuGreenCtxGetDevResource", "cuGreenCtxStreamCreate",
)  # fmt: skip
_OLDEST_DRIVER = 12050


def available() -> bool:
    """Whether the NVIDIA driver can divide SMs: one for CUDA 12.5 or newer."""
    version = ctypes.c_int()
    try:
        library = driver()
        if library.cuDriverGetVersion(ctypes.byref(version)):
            return False
    except (OSError, AttributeError):  # there is no driver
        return False
    return version.value >= _OLDEST_DRIVER and all(hasattr(library, name) for name in _FUNCTIONS)


class SmDivision:
    """The SMs of one GPU. Parts last until the process ends, because streams and graphs do not outlive their context.

    Not thread-safe. All methods raise RuntimeError if the driver fails.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._number = ctypes.c_int()
        torch.zeros(1, device=device)  # a green context needs the primary context
        check(driver().cuDeviceGet(ctypes.byref(self._number), device.index or 0))
        self._whole = _resource()
        check(driver().cuDeviceGetDevResource(self._number, self._whole, _SM))
        self._unused: Any = self._whole  # the SMs that belong to no part; it may be empty
        self._divisible = True

    def streams(self, sms: int, count: int) -> list[torch.cuda.Stream]:
        """`count` streams on a new part of `sms` SMs, none of which belongs to another part if enough are unused."""
        context = self._context(self._take(sms))
        streams: list[torch.cuda.Stream] = []
        for _ in range(count):
            stream = ctypes.c_void_p()
            check(driver().cuGreenCtxStreamCreate(ctypes.byref(stream), context, _NON_BLOCKING, 0))
            streams.append(torch.cuda.ExternalStream(stream.value or 0, self._device))
        return streams

    def _take(self, sms: int) -> Any:
        """A resource of `sms` SMs: of the unused ones or, if they do not suffice, of all."""
        unused = _count(self._unused)
        found = f"{unused} unused"
        if unused >= sms:
            part, rest = _resource(), _resource()
            self._make_divisible()
            result = self._split(self._unused, part, rest, sms)
            if result == 0:
                self._unused, self._divisible = rest, False
                return part
            if result not in _TOO_FEW:
                check(result)
            found += f", CUresult {result}"
        log.warning("GPU %d has too few unused SMs for a share of %d SMs (%s); it overlaps other shares",
                    self._device.index or 0, sms, found)  # fmt: skip
        part = _resource()
        check(self._split(self._whole, part, None, sms))
        return part

    def _split(self, resource: Any, part: Any, rest: Any, sms: int) -> int:
        """The CUresult of taking `sms` SMs from `resource`; _TOO_FEW_SMS if the driver finds no such part."""
        groups = ctypes.c_uint(1)
        result = int(driver().cuDevSmResourceSplitByCount(part, ctypes.byref(groups), resource, rest, 0, sms))
        return result or (0 if groups.value else _TOO_FEW_SMS)

    def _make_divisible(self) -> None:
        """The rest of a split cannot be split, but the same SMs as the resource of a context can."""
        if self._divisible:
            return
        resource = _resource()
        check(driver().cuGreenCtxGetDevResource(self._context(self._unused), resource, _SM))
        self._unused, self._divisible = resource, True

    def _context(self, resource: Any) -> ctypes.c_void_p:
        """A green context with these SMs."""
        description, context = ctypes.c_void_p(), ctypes.c_void_p()
        check(driver().cuDevResourceGenerateDesc(ctypes.byref(description), resource, 1))
        check(driver().cuGreenCtxCreate(ctypes.byref(context), description, self._number, _DEFAULT_STREAM))
        return context


def _resource() -> Any:
    return ctypes.create_string_buffer(_RESOURCE_BYTES)


def _count(resource: Any) -> int:
    """Number of SMs of a resource; 0 for one that is empty or was never filled."""
    return ctypes.c_uint.from_buffer(resource, _COUNT_OFFSET).value
