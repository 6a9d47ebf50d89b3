"""Memory that the node's process and the engine processes share: images and large results, and the state of an engine.

The memory is anonymous (memfd): the kernel frees it with the last process that maps it, however that process ends. It
is sparse: a page that was never written takes no memory, so a slot has the size of the largest allowed image
(`max_pixels`), but occupies only the memory of the actual images and results.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.engine.reports import Observer
from multi_dnn_ros.settings.schema import NodeConfig

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

_CHANNELS = 3
#: Columns of an engine's state; the start of each DNN's job follows.
_HEARTBEAT, _ALLOCATED, _RESERVED, _FIRST_DNN = range(4)


def create_memory(name: str, size: int) -> int:
    """File descriptor of `size` bytes of new shared memory, all zeros; the caller closes it. Raises OSError."""
    fd = os.memfd_create(f"multi_dnn_ros/{name}", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


# -- images and results


@dataclass(frozen=True)
class SlotLayout:
    """How the memory of one camera is divided; an engine process maps it accordingly.

    slots: their number. max_pixels: maximum size of an image, parameter `camera.<camera>.max_pixels`. outputs: DNNs
    with space for large results in each slot, in this order; one byte per pixel.
    """

    camera: str
    slots: int
    max_pixels: int
    outputs: tuple[str, ...] = ()

    @cached_property
    def image_bytes(self) -> int:
        """Space for one image, in whole pages, because CUDA registers pages."""
        return _whole_pages(_CHANNELS * self.max_pixels)

    @cached_property
    def output_bytes(self) -> int:
        """Space for the large results of one DNN."""
        return _whole_pages(self.max_pixels)

    @cached_property
    def slot_bytes(self) -> int:
        return self.image_bytes + len(self.outputs) * self.output_bytes


class SlotMemory:
    """The slots of one camera, mapped into this process. fd: the memfd; the caller closes it."""

    def __init__(self, layout: SlotLayout, fd: int) -> None:
        self.layout = layout
        self.bytes = np.frombuffer(mmap.mmap(fd, layout.slots * layout.slot_bytes), dtype=np.uint8)
        self.slots = [Slot(self, index) for index in range(layout.slots)]
        self.free = list(self.slots)  # used in the node's process, which assigns them
        self.lock = threading.RLock()  # lock the RLock directly; via the Condition it is 10x slower
        self.changed = threading.Condition(self.lock)

    def close(self) -> None:
        """Free the memory, and the descriptor that mmap keeps, with the last view of it. A slot's `image` raises."""
        self.bytes = np.empty(0, dtype=np.uint8)


class Slot:
    """A slot of `memory`."""

    def __init__(self, memory: SlotMemory, index: int) -> None:
        self.index = index
        self._memory, self._layout = memory, memory.layout
        self._begin = index * memory.layout.slot_bytes

    def image(self, height: int, width: int) -> npt.NDArray[np.uint8]:
        """View of the image, (H, W, 3) uint8. Raises ValueError if it is larger than the slot."""
        pixels, size = self._layout.max_pixels, _CHANNELS * height * width
        if size > self._layout.image_bytes:
            raise ValueError(f"an image of {width} x {height} pixels does not fit into a slot of {pixels} pixels")
        return self._memory.bytes[self._begin : self._begin + size].reshape(height, width, _CHANNELS)

    def output(self, dnn: str) -> npt.NDArray[np.uint8]:
        """View of the space for the large results of one DNN, (bytes,) uint8; empty if the DNN has none in a slot."""
        if dnn not in self._layout.outputs:
            return self._memory.bytes[:0]
        size = self._layout.output_bytes
        begin = self._begin + self._layout.image_bytes + self._layout.outputs.index(dnn) * size
        return self._memory.bytes[begin : begin + size]

    def release(self) -> None:
        """Return a slot that was taken; must be called once, when nobody reads it."""
        with self._memory.lock:
            self._memory.free.append(self)
            self._memory.changed.notify()


class SlotPool(SlotMemory):
    """The slots of one camera in the node's process, which assigns them; thread-safe. Raises OSError."""

    def __init__(self, layout: SlotLayout) -> None:
        # Memory is taken when a page is first written, not here.
        self.fd = create_memory(layout.camera, layout.slots * layout.slot_bytes)
        super().__init__(layout, self.fd)

    def take(self, timeout_s: float = 0.0) -> Slot | None:
        """A free slot, which the caller releases; None on timeout."""
        with self.lock:
            if not self.free and not self.changed.wait_for(lambda: self.free, timeout_s):
                return None
            return self.free.pop()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            super().close()


def slots_needed(dnns: int) -> int:
    """Number of slots for a camera that this many DNNs serve.

    Each DNN may have one frame in progress and one in its mailbox, and all these frames may differ. One more frame is
    being decoded, and one is decoded and not offered yet.
    """
    return 2 * dnns + 2


def open_pools(config: NodeConfig) -> dict[str, SlotPool]:
    """The slots of each camera whose frames at least one DNN processes. Raises OSError if memory cannot be reserved."""
    pools: dict[str, SlotPool] = {}
    try:
        for camera, settings in config.cameras.items():
            dnns = tuple(name for name, dnn in config.dnns.items() if not dnn.cameras or camera in dnn.cameras)
            if dnns:  # slots have space for every DNN's large results; it occupies no memory until there are some
                pools[camera] = SlotPool(SlotLayout(camera, slots_needed(len(dnns)), settings.max_pixels, dnns))
    except BaseException:
        for pool in pools.values():
            pool.close()
        raise
    return pools


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


class PinnedImages:
    """In an engine: registers the memory of images with CUDA, once per address and size, so that they are uploaded
    without another copy; PyTorch then treats it as pinned.

    Several threads may use it, each for its own slots. device: a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._bytes: dict[int, int] = {}  # by address, the registered bytes
        self._usable = True

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


# -- the state of an engine


def create_state(dnns: Sequence[str]) -> int:
    """File descriptor of new memory for an EngineState; the caller closes it. Raises OSError."""
    return create_memory("state", 8 * (_FIRST_DNN + len(dnns)))


class EngineState(Observer):
    """What an engine is computing, written by it and readable by the node's process when it hangs or has ended.

    It is one row of int64; times are nanoseconds on the monotonic clock, which all processes share. An aligned 8-byte
    store is atomic. fd: the memory, from :func:`create_state`.

    on_failed: called in the engine with the error of the device.
    """

    def __init__(
        self, dnns: Sequence[str], fd: int, on_failed: Callable[[BaseException], None] = lambda error: None
    ) -> None:
        self.dnns = tuple(dnns)
        self._row = np.frombuffer(mmap.mmap(fd, 8 * (_FIRST_DNN + len(dnns))), dtype=np.int64)
        self._columns = {name: column for column, name in enumerate(dnns, start=_FIRST_DNN)}
        self._running = dict.fromkeys(dnns, 0)
        self._lock = threading.Lock()
        self.on_failed = on_failed

    def beat(self) -> None:
        """Record that the engine is able to run Python code."""
        self._row[_HEARTBEAT] = time.monotonic_ns()

    def set_gpu_memory(self, allocated_bytes: int, reserved_bytes: int) -> None:
        self._row[_ALLOCATED], self._row[_RESERVED] = allocated_bytes, reserved_bytes

    def began(self, dnn: str) -> None:
        with self._lock:
            self._running[dnn] += 1
            if self._running[dnn] == 1:
                self._row[self._columns[dnn]] = time.monotonic_ns()

    def ended(self, dnn: str) -> None:
        """A GPU runs the operations of a DNN in order: the next one has only just started; its time counts from now."""
        with self._lock:
            self._running[dnn] -= 1
            self._row[self._columns[dnn]] = time.monotonic_ns() if self._running[dnn] else 0

    def device_failed(self, dnn: str, error: BaseException) -> None:
        self.on_failed(error)

    # -- in the node's process

    def heartbeat_ns(self) -> int:
        """Time of the last heartbeat; 0: there was none yet."""
        return int(self._row[_HEARTBEAT])

    def gpu_memory(self) -> dict[str, int]:
        """By name with the unit; empty without a GPU."""
        if not self._row[_RESERVED]:
            return {}
        allocated, reserved = int(self._row[_ALLOCATED]), int(self._row[_RESERVED])
        return {"GPU allocated (bytes)": allocated, "GPU reserved (bytes)": reserved}

    def running_jobs(self) -> dict[str, int]:
        """By DNN, the start of its running job; DNNs without one are left out."""
        return {name: since for name, column in self._columns.items() if (since := int(self._row[column]))}

    def close(self) -> None:
        """Free the memory and the descriptor that mmap keeps; the last values remain readable."""
        self._row = self._row.copy()
