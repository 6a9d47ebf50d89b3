"""Timers, guard conditions, and the base class of everything that an executor runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

from multi_dnn_ros.standalone.callback_groups import CallbackGroup
from multi_dnn_ros.standalone.clock import Clock, ROSClock
from multi_dnn_ros.standalone.errors import InvalidHandle, RCLError
from multi_dnn_ros.standalone.missing import Surface
from multi_dnn_ros.standalone.time_values import S_TO_NS

Work: TypeAlias = Callable[[], Any]


class Waitable(Surface):
    """Something with a callback; an executor checks whether it is ready, takes its work and runs it.

    condition: the DDS condition that triggers when the entity may be ready, or None; it never changes.
    """

    def __init__(self, callback_group: CallbackGroup | None) -> None:
        self.condition: Any = None
        self.callback_group = callback_group
        self._wake: Callable[[], None] = _nothing
        if callback_group is not None:
            callback_group.add_entity(self)

    def is_ready(self) -> bool:
        """Return whether :meth:`take` would find work."""
        raise NotImplementedError

    def take(self) -> Work | None:
        """Take the pending work and return a function that runs it, or None."""
        raise NotImplementedError

    def nanoseconds_until_ready(self) -> int | None:
        """Return the maximum wait until the next check; None if a wake-up signals it. Not used with a condition."""
        return None

    def destroy(self) -> None:
        """Free its resources; idempotent."""
        raise NotImplementedError


def _nothing() -> None:
    """Default until the node sets how its executor is woken."""


class Timer(Waitable):
    """Runs its callback once per period of a clock; a late timer skips missed periods and keeps its phase."""

    def __init__(
        self,
        callback: Callable[[], Any] | None,
        callback_group: CallbackGroup,
        timer_period_ns: int,
        clock: Clock,
        *,
        context: Any = None,
        autostart: bool = True,
    ) -> None:
        super().__init__(callback_group)
        if timer_period_ns < 0:
            raise RCLError(f"failed to create timer: timer period must be non-negative, not {timer_period_ns} ns")
        self.callback = callback
        self.clock = clock
        self._lock = threading.Lock()
        self._period_ns = int(timer_period_ns)
        self._canceled = not autostart
        self._destroyed = False
        self._last_ns = clock.now_ns()
        self._next_ns = self._last_ns + self._period_ns
        if isinstance(clock, ROSClock):
            clock.add_jump_listener(self._on_jump)

    @property
    def timer_period_ns(self) -> int:
        """The period in nanoseconds; a change takes effect from the next call."""
        return self._period_ns

    @timer_period_ns.setter
    def timer_period_ns(self, value: int) -> None:
        if value < 0:
            raise RCLError(f"timer period must be non-negative, not {value} ns")
        self._period_ns = int(value)

    def _on_jump(self, difference_ns: int) -> None:
        with self._lock:
            now = self.clock.now_ns()
            if difference_ns < 0 and self._next_ns > now + self._period_ns:
                # Time jumped back, for example when a bag restarts: the next call would be far in the future.
                self._last_ns, self._next_ns = now, now + self._period_ns
            elif difference_ns > 0 and not self._last_ns:
                self._last_ns, self._next_ns = now, now + self._period_ns  # created before time started
        self._wake()

    def is_ready(self) -> bool:
        """Return whether the period has elapsed."""
        return not self._canceled and not self._destroyed and self.clock.now_ns() >= self._next_ns

    def take(self) -> Work | None:
        """Start the next period and return the callback."""
        with self._lock:
            if not self.is_ready():
                return None
            now = self.clock.now_ns()
            self._last_ns = now
            self._next_ns += self._period_ns
            if self._next_ns < now:
                behind = now - self._next_ns
                self._next_ns = now if not self._period_ns else now + self._period_ns - behind % self._period_ns
        return self.callback

    def nanoseconds_until_ready(self) -> int | None:
        """Return the rest of the period; None if canceled, and under simulated time, where /clock
        wakes the executor.
        """
        if self._canceled or self._destroyed or self.clock.is_simulated:
            return None
        return max(self._next_ns - self.clock.now_ns(), 0)

    def time_since_last_call(self) -> int:
        """Return nanoseconds since the last call, or since the start."""
        return self.clock.now_ns() - self._last_ns

    def time_until_next_call(self) -> int | None:
        """Return nanoseconds until the next call, negative when overdue, None when canceled."""
        return None if self._canceled else self._next_ns - self.clock.now_ns()

    def cancel(self) -> None:
        """Stop calling until :meth:`reset`."""
        self._canceled = True

    def is_canceled(self) -> bool:
        """Return whether the timer is stopped."""
        return self._canceled

    def reset(self) -> None:
        """Start, or restart the period."""
        with self._lock:
            if self._destroyed:
                raise InvalidHandle("the timer was destroyed")
            self._canceled = False
            self._last_ns = self.clock.now_ns()
            self._next_ns = self._last_ns + self._period_ns
        self._wake()

    def destroy(self) -> None:
        """End the timer."""
        self._destroyed = True
        self._canceled = True


class GuardCondition(Waitable):
    """Runs its callback after a thread has called :meth:`trigger`."""

    def __init__(
        self, callback: Callable[[], Any] | None, callback_group: CallbackGroup | None, context: Any = None
    ) -> None:
        super().__init__(callback_group)
        self.callback = callback
        self._triggered = threading.Event()
        self._destroyed = False

    def trigger(self) -> None:
        """Make an executor run the callback."""
        if self._destroyed:
            raise InvalidHandle("the guard condition was destroyed")
        self._triggered.set()
        self._wake()

    def is_ready(self) -> bool:
        """Return whether it was triggered."""
        return self._triggered.is_set()

    def take(self) -> Work | None:
        """Reset the trigger and return the callback."""
        if not self._triggered.is_set():
            return None
        self._triggered.clear()
        return self.callback

    def destroy(self) -> None:
        """End the guard condition."""
        self._destroyed = True
        self._triggered.clear()


def period_ns(seconds: float) -> int:
    """Return a period in nanoseconds."""
    return int(float(seconds) * S_TO_NS)
