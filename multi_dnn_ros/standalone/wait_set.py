"""The wait set of an executor."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Set
from typing import Any

from cyclonedds.core import DDSException, WaitSet
from cyclonedds.core import GuardCondition as DdsGuardCondition
from cyclonedds.internal import DDS

from multi_dnn_ros.standalone import dds
from multi_dnn_ros.standalone.context import Context


class ExecutorWaitSet:
    """A DDS wait set with a guard condition that ends a wait."""

    def __init__(self, context: Context) -> None:
        self._lock = threading.Lock()  # acquired while waiting, so that the wait set is not freed meanwhile
        self._guard_lock = threading.RLock()  # a signal handler may call wake() in a thread that is in wake()
        self._attached: set[Any] = set()
        self._conditions_by_address: dict[int, Any] = {}  # Cyclone returns addresses for triggered conditions
        self._triggered: Any = None  # buffer for these addresses
        self._closed = False
        self._guard = DdsGuardCondition(context.participant.entity)
        self._set = WaitSet(context.participant.entity)
        self._set.attach(self._guard)

    def untriggered(self) -> Set[Any]:
        """Return conditions that are certainly not triggered; never blocks.

        One call into DDS replaces one per entity, because an executor checks all its entities before each callback. A
        condition stays triggered until its data is taken, so nothing is missed. A pending :meth:`wake` stays pending.
        """
        if not self._lock.acquire(blocking=False):  # another thread waits
            return frozenset()
        try:
            if self._closed or self._triggered is None:
                return frozenset()
            count = DDS._dll_handle.dds_waitset_wait(
                self._set._ref, self._triggered, ctypes.c_size_t(len(self._triggered)), ctypes.c_int64(0)
            )
            if not 0 <= count <= len(self._triggered):
                return frozenset()
            return self._attached - {self._conditions_by_address.get(address) for address in self._triggered[:count]}
        finally:
            self._lock.release()

    def wait(self, conditions: set[Any], timeout_ns: int) -> None:
        """Wait until a condition triggers, :meth:`wake` is called, or the timeout expires."""
        with self._lock:
            if self._closed:
                return
            changed = conditions != self._attached
            for condition in self._attached - conditions:
                if hasattr(condition, "_ref"):
                    with contextlib.suppress(DDSException):  # freed by another thread since
                        self._set.detach(condition)
                self._set.attached[:] = [entry for entry in self._set.attached if entry[0] is not condition]
            for condition in conditions - self._attached:
                try:
                    self._set.attach(condition)
                except (DDSException, AttributeError):  # freed by another thread since
                    conditions = conditions - {condition}
            self._attached = conditions
            if changed or self._triggered is None:
                self._conditions_by_address = {
                    ctypes.addressof(pointer): condition for condition, pointer in self._set.attached
                }
                self._triggered = (ctypes.c_void_p * len(self._conditions_by_address))()
            self._set.wait(timeout_ns)
            self._guard.take()

    def wake(self) -> None:
        """End the current wait, or the next one."""
        with self._guard_lock:
            if not self._closed:
                self._guard.set(True)

    def close(self) -> None:
        """Free the wait set once no thread is waiting."""
        self.wake()
        with self._lock, self._guard_lock:
            if not self._closed:
                self._closed = True
                self._set.attached.clear()  # freeing the set detaches them
                dds.delete(self._set)
                dds.delete(self._guard)
                self._attached = set()
