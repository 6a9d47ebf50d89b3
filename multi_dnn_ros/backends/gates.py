"""Points inside a captured graph at which it waits, on the GPU, while a more important DNN's frame is under way.

What is launched cannot be taken back, and a stream's priority only decides whose blocks of threads begin next: those of
other DNNs go on to fill caches and memory bandwidth. Launching job by job, with few of them unfinished, bounds that,
but costs most of the throughput from Python. So all jobs of a frame are one launch, with a gate in front of each: a
kernel of one warp that looks whether a graph on a stream of higher priority is under way, and sleeps until none is. A
more important frame then waits for the jobs that run, not for the frames that are launched.
"""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from typing import Any

import torch

from multi_dnn_ros.reasons import reason_of

log = logging.getLogger(__name__)

#: Graphs of one device that can have gates at the same time: two for each thread of the kernel.
_SLOTS = 64
#: Longest time that one gate waits, microseconds: what is less important never stands still, whatever happens.
_LIMIT_US = 20_000
_SOURCE = """
extern "C" __global__ void gate(const volatile int* levels, const volatile int* own, int limit_us) {
    const int level = *own;
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    for (;;) {
        const bool higher = levels[threadIdx.x] > level || levels[threadIdx.x + 32] > level;
        if (!__any_sync(0xffffffffu, higher)) return;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (__any_sync(0xffffffffu, now - begin > 1000ull * limit_us)) return;
        __nanosleep(2000);
    }
}
"""


class Gates:
    """Of one device. levels: by slot, that of the graph under way there; 0: the lowest, or none.

    enabled: whether they are used; for measurements without them.
    """

    enabled = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.levels = torch.zeros(_SLOTS, dtype=torch.int32, device=device)
        self.kernel = torch.cuda._compile_kernel(_SOURCE, "gate")
        self.highest = 0
        self._free = list(range(_SLOTS))
        self._lock = threading.Lock()
        self._levels: dict[int, int] = {}  # by slot, that of the stream of its last launch

    def take(self) -> int:
        """A slot of `levels`. RuntimeError when none is left."""
        with self._lock:
            if not self._free:
                raise RuntimeError(f"{_SLOTS} graphs have gates already")
            return self._free.pop()

    def set_level(self, slot: int, level: int) -> None:
        """From now on the slot's graph is launched on streams of this level."""
        with self._lock:
            self._levels[slot] = level
            self.highest = max(self._levels.values())

    def give_back(self, slot: int) -> None:
        """Its graph is gone."""
        self.set_level(slot, 0)
        with self._lock:
            self._free.append(slot)


class Gate:
    """Of one graph, which is launched again when it is through. Its level is the priority of the launching stream."""

    def __init__(self, gates: Gates) -> None:
        self._gates = gates
        slot = gates.take()
        weakref.finalize(self, gates.give_back, slot).atexit = False
        self._slot = slot
        self._mark = gates.levels[slot]
        with torch.inference_mode(False):
            self._own = torch.zeros(1, dtype=torch.int32, device=gates.device)
        self._stream = -1
        self._level = 0

    def wait(self) -> None:
        """Launch the kernel that waits, on the current stream."""
        self._gates.kernel(grid=(1, 1, 1), block=(32, 1, 1), args=[self._gates.levels, self._own, _LIMIT_US])

    def enter(self) -> bool:
        """Before a launch on the current stream: graphs of lower levels wait from here on, until `leave`.

        Whether there are graphs of higher levels, for which this one has to wait.
        """
        gates = self._gates
        if not gates.enabled:
            return False
        stream = torch._C._cuda_getCurrentRawStream(gates.levels.get_device())
        if stream != self._stream:  # at first, and when the DNN's priority has changed
            self._stream = stream
            self._level = -torch.cuda.current_stream(gates.device).priority
            self._own.fill_(self._level)
            gates.set_level(self._slot, self._level)
        if self._level:
            self._mark.fill_(self._level)
        return self._level < gates.highest

    def leave(self) -> None:
        """Behind the launch."""
        if self._level and self._gates.enabled:
            self._mark.fill_(0)


@functools.cache
def gates_of(device: torch.device) -> Gates | None:
    """A device's; None, with a line in the log, where their kernel cannot be compiled."""
    try:
        with torch.cuda.device(device), torch.inference_mode(False):
            return Gates(device)
    except Exception as error:  # a PyTorch without the compiler's interface, or a GPU before compute capability 7.0
        log.warning("%s: jobs do not wait for more important ones that come later: %s", device, reason_of(error))
        return None


def new_gate(device: torch.device) -> Gate | None:
    """None where there are no gates, or no more."""
    gates: Any = gates_of(device)
    try:
        return None if gates is None else Gate(gates)
    except RuntimeError as error:
        log.warning("a DNN's jobs do not wait for more important ones that come later: %s", error)
        return None
