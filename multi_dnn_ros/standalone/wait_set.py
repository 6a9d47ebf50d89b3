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
        self._attached: Set[Any] = frozenset()
        self._closed = False
        self._guard = DdsGuardCondition(context.participant.entity)
        self._set = WaitSet(context.participant.entity)
        self._set.attach(self._guard)
        # Not WaitSet.wait, which does not say what has triggered: Cyclone returns the addresses given in attach().
        self._wait = DDS._dll_handle.dds_waitset_wait
        self._make_buffer()

    def wait(self, conditions: Set[Any], timeout_ns: int) -> list[Any] | None:
        """Wait until a condition triggers, :meth:`wake` is called, or the timeout expires.

        Returns the triggered conditions; None: the wait set is closed, or another thread waited until the timeout or
        until now.
        """
        if not self._lock.acquire(blocking=False):
            if self._lock.acquire(timeout=min(timeout_ns / 1e9, threading.TIMEOUT_MAX)):
                self._lock.release()
            return None  # the caller knows how much of its time is left
        try:
            if self._closed:
                return None
            if conditions != self._attached:
                self._attach(conditions)
            count = self._wait(self._set._ref, self._triggered, self._capacity, timeout_ns)
            if count < 0:
                raise DDSException(count, "Occurred while waiting for entities")
            triggered = [self._conditions_by_address[address] for address in self._triggered[:count]]
            if self._guard in triggered:
                triggered.remove(self._guard)
                self._guard.take()
            return triggered
        finally:
            self._lock.release()

    def _attach(self, wanted: Set[Any]) -> None:
        conditions = frozenset(wanted)
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
        self._make_buffer()

    def _make_buffer(self) -> None:
        """Make the buffer for the addresses of triggered conditions."""
        self._conditions_by_address: dict[int | None, Any] = {
            ctypes.addressof(pointer): condition for condition, pointer in self._set.attached
        }
        self._capacity = len(self._conditions_by_address)
        self._triggered = (ctypes.c_void_p * self._capacity)()

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
                self._attached = frozenset()
