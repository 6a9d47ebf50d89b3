"""Images and large results in memory that the node's process and the engine processes share.

The memory is anonymous (memfd): the kernel frees it with the last process that maps it, however that process ends. It
is sparse: a page that was never written takes no memory, so a slot has the size of the largest allowed image
(`max_pixels`), but occupies only the memory of the actual images and results.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.settings.schema import NodeConfig

_CHANNELS = 3


def create_memory(name: str, size: int) -> int:
    """File descriptor of `size` bytes of new shared memory, all zeros; the caller closes it. Raises OSError."""
    fd = os.memfd_create(f"multi_dnn_ros/{name}", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


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

    @property
    def image_bytes(self) -> int:
        """Space for one image, in whole pages, because CUDA registers pages."""
        return _whole_pages(_CHANNELS * self.max_pixels)

    @property
    def slot_bytes(self) -> int:
        return self.image_bytes + len(self.outputs) * _whole_pages(self.max_pixels)


class SlotMemory:
    """The slots of one camera, mapped into this process. fd: the memfd; the caller closes it."""

    def __init__(self, layout: SlotLayout, fd: int) -> None:
        self.layout = layout
        self.bytes = np.frombuffer(mmap.mmap(fd, layout.slots * layout.slot_bytes), dtype=np.uint8)

    def close(self) -> None:
        """Free the memory, and the descriptor that mmap keeps, with the last view of it. A slot's `image` raises."""
        self.bytes = np.empty(0, dtype=np.uint8)


class Slot:
    """A slot of `memory`. on_release: called by :meth:`release`, which must be called once, when nobody reads it."""

    def __init__(self, memory: SlotMemory, index: int, on_release: Callable[[int], None] = lambda index: None) -> None:
        self.index = index
        self._layout, begin = memory.layout, index * memory.layout.slot_bytes
        self._bytes = memory.bytes[begin : begin + self._layout.slot_bytes]
        self._on_release = on_release

    def image(self, height: int, width: int) -> npt.NDArray[np.uint8]:
        """View of the image, (H, W, 3) uint8. Raises ValueError if it is larger than the slot."""
        pixels = self._layout.max_pixels
        if _CHANNELS * height * width > self._layout.image_bytes:
            raise ValueError(f"an image of {width} x {height} pixels does not fit into a slot of {pixels} pixels")
        return self._bytes[: _CHANNELS * height * width].reshape(height, width, _CHANNELS)

    def output(self, dnn: str) -> npt.NDArray[np.uint8]:
        """View of the space for the large results of one DNN, (bytes,) uint8; empty if the DNN has none in a slot."""
        if dnn not in self._layout.outputs:
            return self._bytes[:0]
        size = _whole_pages(self._layout.max_pixels)
        begin = self._layout.image_bytes + self._layout.outputs.index(dnn) * size
        return self._bytes[begin : begin + size]

    def release(self) -> None:
        self._on_release(self.index)


class SlotPool(SlotMemory):
    """The slots of one camera in the node's process, which assigns them; thread-safe. Raises OSError."""

    def __init__(self, layout: SlotLayout) -> None:
        # Memory is taken when a page is first written, not here.
        self.fd = create_memory(layout.camera, layout.slots * layout.slot_bytes)
        super().__init__(layout, self.fd)
        self._free = list(range(layout.slots))
        self._lock = threading.RLock()  # lock the RLock directly; via the Condition it is 10x slower
        self._changed = threading.Condition(self._lock)

    def take(self, timeout_s: float = 0.0) -> Slot | None:
        """A free slot, which the caller releases; None on timeout."""
        with self._lock:
            if not self._free and not self._changed.wait_for(lambda: self._free, timeout_s):
                return None
            return Slot(self, self._free.pop(), self._give_back)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            super().close()

    def _give_back(self, index: int) -> None:
        with self._lock:
            self._free.append(index)
            self._changed.notify()


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
