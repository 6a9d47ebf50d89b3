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
#: CUresult of a split for which the resource has too few SMs.
_TOO_FEW = frozenset({1, 914, 915})


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
        self._unused: Any = self._whole  # None: all SMs belong to parts

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
        if self._unused is not None:
            part, rest = _resource(), _resource()
            result = self._split(self._unused, part, rest, sms)
            if result == 0:
                self._unused = self._divisible(rest)
                return part
            if result not in _TOO_FEW:
                check(result)
        log.warning("GPU %d has too few unused SMs for a share of %d SMs; it overlaps other shares",
                    self._device.index or 0, sms)  # fmt: skip
        part = _resource()
        check(self._split(self._whole, part, None, sms))
        return part

    def _split(self, resource: Any, part: Any, rest: Any, sms: int) -> int:
        """The CUresult of taking `sms` SMs from `resource`; nonzero, too, if there is no such part."""
        groups = ctypes.c_uint(1)
        result = int(driver().cuDevSmResourceSplitByCount(part, ctypes.byref(groups), resource, rest, 0, sms))
        return result or (0 if groups.value == 1 else 1)

    def _divisible(self, rest: Any) -> Any:
        """The same SMs as a resource that can be divided: the rest of a split cannot be split, but that of a context
        can. None if there are no SMs.
        """
        try:
            context = self._context(rest)
        except RuntimeError:  # no SMs are left
            return None
        resource = _resource()
        check(driver().cuGreenCtxGetDevResource(context, resource, _SM))
        return resource

    def _context(self, resource: Any) -> ctypes.c_void_p:
        """A green context with these SMs."""
        description, context = ctypes.c_void_p(), ctypes.c_void_p()
        check(driver().cuDevResourceGenerateDesc(ctypes.byref(description), resource, 1))
        check(driver().cuGreenCtxCreate(ctypes.byref(context), description, self._number, _DEFAULT_STREAM))
        return context


def _resource() -> Any:
    return ctypes.create_string_buffer(_RESOURCE_BYTES)
