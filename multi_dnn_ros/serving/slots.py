"""Frames in memory that the node's process and the engine processes share.

The memory is anonymous (memfd): it is gone with the last process that has it, however that process ends. It is sparse:
a page that nobody wrote takes no memory, so a slot is as large as `max_pixels` allows and costs what the images need.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_CHANNELS = 3


@dataclass(frozen=True)
class SlotLayout:
    """How the memory of one camera is divided; what an engine process needs to know to map it.

    count: slots. max_pixels: of an image, parameter `camera.<camera>.max_pixels`. outputs: DNNs that have room in each
    slot for results as large as an image, one byte a pixel, in this order.
    """

    camera: str
    count: int
    max_pixels: int
    outputs: tuple[str, ...] = ()

    @property
    def image_bytes(self) -> int:
        """Room for one image, in whole pages: CUDA registers pages."""
        return _whole_pages(_CHANNELS * self.max_pixels)

    @property
    def output_bytes(self) -> int:
        """Room for one DNN's large results."""
        return _whole_pages(self.max_pixels)

    @property
    def slot_bytes(self) -> int:
        return self.image_bytes + len(self.outputs) * self.output_bytes

    @property
    def total_bytes(self) -> int:
        return self.count * self.slot_bytes


class SlotMemory:
    """One camera's slots as mapped by this process. fd: of the memfd, which stays open with the caller."""

    def __init__(self, layout: SlotLayout, fd: int) -> None:
        self.layout = layout
        self._bytes = np.frombuffer(mmap.mmap(fd, layout.total_bytes), dtype=np.uint8)

    def image(self, slot: int, height: int, width: int) -> npt.NDArray[np.uint8]:
        """The image in a slot, (H, W, 3) uint8, a view."""
        size = _CHANNELS * height * width
        if size > self.layout.image_bytes:
            raise ValueError(f"an image of {width} x {height} does not fit a slot of {self.layout.max_pixels} pixels")
        begin = slot * self.layout.slot_bytes
        return self._bytes[begin : begin + size].reshape(height, width, _CHANNELS)

    def output(self, slot: int, dnn: str) -> npt.NDArray[np.uint8]:
        """Room for the large results of one DNN for the image in a slot, (bytes,) uint8, a view.

        Empty for a DNN without any.
        """
        layout = self.layout
        if dnn not in layout.outputs:
            return self._bytes[:0]
        begin = slot * layout.slot_bytes + layout.image_bytes + layout.outputs.index(dnn) * layout.output_bytes
        return self._bytes[begin : begin + layout.output_bytes]

    def close(self) -> None:
        """Give the memory, and the descriptor that mmap keeps, back when the last view is gone; image() fails then."""
        self._bytes = np.empty(0, dtype=np.uint8)


class Slot:
    """A slot that is in use. It is free again when everybody who holds it has released it."""

    def __init__(self, pool: SlotPool, index: int) -> None:
        self._pool = pool
        self.index = index
        self._users = 1

    def image(self, height: int, width: int) -> npt.NDArray[np.uint8]:
        """Where the image goes, (H, W, 3) uint8, a view."""
        return self._pool.memory.image(self.index, height, width)

    def output(self, dnn: str) -> npt.NDArray[np.uint8]:
        """See :meth:`SlotMemory.output`."""
        return self._pool.memory.output(self.index, dnn)

    def hold(self) -> None:
        """One more user."""
        with self._pool.changed:
            self._users += 1

    def release(self) -> None:
        """One user less; the last one frees the slot."""
        with self._pool.changed:
            self._users -= 1
            if self._users == 0:
                self._pool.free.append(self.index)
                self._pool.changed.notify_all()


class SlotPool:
    """One camera's slots in the node's process, which decides what is written where; thread-safe."""

    def __init__(self, layout: SlotLayout) -> None:
        # Room is taken when a page is written first, not here.
        self.fd = os.memfd_create(f"multi_dnn_ros/{layout.camera}", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.fd, layout.total_bytes)
            self.memory = SlotMemory(layout, self.fd)
        except BaseException:
            os.close(self.fd)
            raise
        self.free = list(range(layout.count))
        self.changed = threading.Condition()

    def take(self, timeout_s: float = 0.0) -> Slot | None:
        """A free slot, held by the caller; None when none gets free in time."""
        with self.changed:
            if not self.changed.wait_for(lambda: self.free, timeout_s):
                return None
            return Slot(self, self.free.pop())

    def close(self) -> None:
        """Give the descriptor back; the memory goes when nobody refers to it any more. No image fits from now on."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.memory.close()


def slots_needed(dnns: int) -> int:
    """Slots for a camera that so many DNNs serve.

    Each DNN may have one frame under way and one in its mailbox, all of them different ones; one more is being decoded,
    and one is decoded and not offered yet.
    """
    return 2 * dnns + 2


def open_pools(layouts: Mapping[str, SlotLayout]) -> dict[str, SlotPool]:
    """The pools of all cameras; nothing stays behind when one cannot be made."""
    pools: dict[str, SlotPool] = {}
    try:
        for camera, layout in layouts.items():
            pools[camera] = SlotPool(layout)
    except BaseException:
        for pool in pools.values():
            pool.close()
        raise
    return pools


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
