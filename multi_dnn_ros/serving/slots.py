"""Images and large results in memory that the node's process and the engine processes share.

The memory is anonymous (memfd): the kernel frees it with the last process that maps it, however that process ends. It
is sparse: a page that was never written takes no memory, so a slot has the size of the largest allowed image
(`max_pixels`), but occupies only the memory of the actual images and results.
"""

from __future__ import annotations

import mmap
import os
import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.settings.schema import NodeConfig

_CHANNELS = 3


@dataclass(frozen=True)
class SlotLayout:
    """How the memory of one camera is divided; an engine process maps it accordingly.

    count: number of slots. max_pixels: maximum size of an image, parameter `camera.<camera>.max_pixels`. outputs: DNNs
    with space for large results in each slot, in this order; one byte per pixel.
    """

    camera: str
    count: int
    max_pixels: int
    outputs: tuple[str, ...] = ()

    @property
    def image_bytes(self) -> int:
        """Space for one image, in whole pages, because CUDA registers pages."""
        return _whole_pages(_CHANNELS * self.max_pixels)

    @property
    def output_bytes(self) -> int:
        """Space for one DNN's large results."""
        return _whole_pages(self.max_pixels)

    @property
    def slot_bytes(self) -> int:
        return self.image_bytes + len(self.outputs) * self.output_bytes

    @property
    def total_bytes(self) -> int:
        return self.count * self.slot_bytes


class SlotMemory:
    """The slots of one camera, mapped into this process. fd: the memfd; the caller closes it."""

    def __init__(self, layout: SlotLayout, fd: int) -> None:
        self.layout = layout
        self._bytes = np.frombuffer(mmap.mmap(fd, layout.total_bytes), dtype=np.uint8)

    def image(self, slot: int, height: int, width: int) -> npt.NDArray[np.uint8]:
        """View of the image in a slot, (H, W, 3) uint8. Raises ValueError if it is larger than the slot."""
        size = _CHANNELS * height * width
        if size > self.layout.image_bytes:
            raise ValueError(
                f"an image of {width} x {height} pixels does not fit into a slot of {self.layout.max_pixels} pixels"
            )
        begin = slot * self.layout.slot_bytes
        return self._bytes[begin : begin + size].reshape(height, width, _CHANNELS)

    def file(self, slot: int, size: int) -> npt.NDArray[np.uint8]:
        """View of the JPEG file of `size` bytes in a slot, (bytes,) uint8; it has the place of the image. Raises
        ValueError if it is larger than the slot.
        """
        if size > self.layout.image_bytes:
            raise ValueError(f"a file of {size} bytes does not fit into a slot of {self.layout.image_bytes} bytes")
        begin = slot * self.layout.slot_bytes
        return self._bytes[begin : begin + size]

    def output(self, slot: int, dnn: str) -> npt.NDArray[np.uint8]:
        """View of the space for the large results of one DNN, (bytes,) uint8; empty if the DNN has none in a slot."""
        layout = self.layout
        if dnn not in layout.outputs:
            return self._bytes[:0]
        begin = slot * layout.slot_bytes + layout.image_bytes + layout.outputs.index(dnn) * layout.output_bytes
        return self._bytes[begin : begin + layout.output_bytes]

    def close(self) -> None:
        """Free the memory, and the descriptor that mmap keeps, with the last view of it. `image` raises from now on."""
        self._bytes = np.empty(0, dtype=np.uint8)


class Slot:
    """A slot in use, until it is released."""

    def __init__(self, pool: SlotPool, index: int) -> None:
        self._pool = pool
        self.index = index

    def image(self, height: int, width: int) -> npt.NDArray[np.uint8]:
        """See :meth:`SlotMemory.image`."""
        return self._pool.memory.image(self.index, height, width)

    def file(self, size: int) -> npt.NDArray[np.uint8] | None:
        """See :meth:`SlotMemory.file`; None if the file is larger than the slot."""
        if size > self._pool.memory.layout.image_bytes:
            return None
        return self._pool.memory.file(self.index, size)

    def output(self, dnn: str) -> npt.NDArray[np.uint8]:
        """See :meth:`SlotMemory.output`."""
        return self._pool.memory.output(self.index, dnn)

    def release(self) -> None:
        """Free the slot; to be called once, when no process reads it any more."""
        with self._pool.lock:
            self._pool.free.append(self.index)
            self._pool.changed.notify()


class SlotPool:
    """The slots of one camera in the node's process, which assigns them; thread-safe."""

    def __init__(self, layout: SlotLayout) -> None:
        # Memory is taken when a page is first written, not here.
        self.fd = os.memfd_create(f"multi_dnn_ros/{layout.camera}", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.fd, layout.total_bytes)
            self.memory = SlotMemory(layout, self.fd)
        except BaseException:
            os.close(self.fd)
            raise
        self.free = list(range(layout.count))
        self.lock = threading.RLock()  # lock the RLock directly; via the Condition it is 10x slower
        self.changed = threading.Condition(self.lock)

    def take(self, timeout_s: float = 0.0) -> Slot | None:
        """A free slot, which the caller releases; None on timeout."""
        with self.lock:
            if not self.free and not self.changed.wait_for(lambda: self.free, timeout_s):
                return None
            return Slot(self, self.free.pop())

    def close(self) -> None:
        """Close the descriptor; the memory is freed with the last view of it. `image` raises from now on."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.memory.close()


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
