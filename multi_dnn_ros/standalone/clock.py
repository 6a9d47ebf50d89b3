"""rclpy's clocks; the ROS clock follows /clock when simulated time is enabled."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.standalone.clock_jumps import ClockChange, JumpHandle, JumpHandles, JumpThreshold, TimeJump
from multi_dnn_ros.standalone.errors import NotInitializedException
from multi_dnn_ros.standalone.missing import Surface
from multi_dnn_ros.standalone.time_values import S_TO_NS, ClockType, Duration, Time

if TYPE_CHECKING:
    from multi_dnn_ros.standalone.context import Context


class Clock(Surface):
    """A clock of one type; `Clock(clock_type=ClockType.ROS_TIME)` is a :class:`ROSClock`."""

    def __new__(cls, *, clock_type: ClockType = ClockType.SYSTEM_TIME) -> Clock:
        """Create an instance of the class for the clock type."""
        if not isinstance(clock_type, ClockType) or clock_type == ClockType.UNINITIALIZED:
            raise TypeError(f"Clock type must be a ClockType enum, and not UNINITIALIZED: {clock_type!r}")
        return super().__new__(ROSClock if clock_type == ClockType.ROS_TIME else cls)

    def __init__(self, *, clock_type: ClockType = ClockType.SYSTEM_TIME) -> None:
        self._clock_type = clock_type
        self._changed = threading.Condition()
        self.jump_handles = JumpHandles()

    def __repr__(self) -> str:
        return f"Clock(clock_type={self._clock_type.name})"

    @property
    def clock_type(self) -> ClockType:
        """The type of this clock."""
        return self._clock_type

    def now(self) -> Time:
        """Return the current time on this clock."""
        return Time(nanoseconds=self.now_ns(), clock_type=self._clock_type)

    def now_ns(self) -> int:
        """Return the current time in nanoseconds."""
        return time.monotonic_ns() if self._clock_type == ClockType.STEADY_TIME else time.time_ns()

    @property
    def is_simulated(self) -> bool:
        """Whether time only advances when it is set."""
        return False

    def sleep_for(self, rel_time: Duration, context: Context | None = None) -> bool:
        """Sleep for a duration on this clock; return False if the context was shut down first."""
        return self.sleep_until(self.now() + rel_time, context)

    def sleep_until(self, until: Time, context: Context | None = None) -> bool:
        """Sleep until a time on this clock.

        Returns:
            True when the time is reached; False if the context is shut down or simulated time is switched before.

        Raises:
            NotInitializedException: if the context is not initialized.
            ValueError: if the time is on a clock of another type.
        """
        from multi_dnn_ros.standalone.context import get_default_context

        context = context or get_default_context()
        if not context.ok():
            raise NotInitializedException
        if until.clock_type != self._clock_type:
            raise ValueError(
                f"until's clock type does not match this clock's type: {until.clock_type.name}, {self._clock_type.name}"
            )

        def wake() -> None:
            with self._changed:
                self._changed.notify_all()

        context.on_shutdown(wake)
        try:
            with self._changed:
                switches = self.switches
                while context.ok() and self.switches == switches:
                    left = until.nanoseconds - self.now_ns()
                    if left <= 0:
                        return True
                    self._changed.wait(None if self.is_simulated else min(left / S_TO_NS, threading.TIMEOUT_MAX))
                return False
        finally:
            context.forget_on_shutdown(wake)

    @property
    def switches(self) -> int:
        """How often simulated time was enabled or disabled."""
        return 0

    def create_jump_callback(
        self,
        threshold: JumpThreshold,
        *,
        pre_callback: Callable[[], Any] | None = None,
        post_callback: Callable[[TimeJump], Any] | None = None,
    ) -> JumpHandle:
        """Call `pre_callback()` before and `post_callback(jump)` after jumps of this clock, as long as the handle
        exists.
        """
        return JumpHandle(clock=self, threshold=threshold, pre_callback=pre_callback, post_callback=post_callback)


class ROSClock(Clock):
    """System time, or the time of /clock while simulated time is enabled."""

    def __new__(cls, *, clock_type: ClockType = ClockType.ROS_TIME) -> ROSClock:
        """Make a ROS clock."""
        return object.__new__(cls)

    def __init__(self, *, clock_type: ClockType = ClockType.ROS_TIME) -> None:
        super().__init__(clock_type=ClockType.ROS_TIME)
        self._active = False
        self._override_ns = 0
        self._switches = 0
        self._listeners: list[weakref.WeakMethod[Callable[[int], None]]] = []

    @property
    def switches(self) -> int:
        """How often simulated time was enabled or disabled."""
        return self._switches

    @property
    def ros_time_is_active(self) -> bool:
        """Whether simulated time is enabled."""
        return self._active

    @property
    def is_simulated(self) -> bool:
        """Whether time only advances when it is set."""
        return self._active

    def now_ns(self) -> int:
        """Return the current time in nanoseconds; 0 under simulated time before the first /clock message."""
        return self._override_ns if self._active else time.time_ns()

    def set_ros_time_override(self, time: Time) -> None:
        """Set simulated time; used while simulated time is enabled."""
        if not isinstance(time, Time):
            raise TypeError(f"Time must be specified as rclpy.time.Time. Received type: {type(time)}")
        self._move(self._active, time.nanoseconds, ClockChange.ROS_TIME_NO_CHANGE)

    def _set_ros_time_is_active(self, enabled: bool) -> None:
        """Enable or disable simulated time."""
        if enabled != self._active:
            change = ClockChange.ROS_TIME_ACTIVATED if enabled else ClockChange.ROS_TIME_DEACTIVATED
            self._move(enabled, self._override_ns, change)

    def _move(self, active: bool, override_ns: int, change: ClockChange) -> None:
        # As in rcl, setting a clock that is not simulated is not a jump, and switching simulation is a jump of zero.
        jump_ns = override_ns - self._override_ns if self._active and active else 0
        triggered = self.jump_handles.triggered(change, jump_ns) if self._active or active else []
        for handle in triggered:
            if handle.pre_callback is not None:
                handle.pre_callback()
        with self._changed:
            before = self.now_ns()
            self._active, self._override_ns = active, override_ns
            self._switches += change is not ClockChange.ROS_TIME_NO_CHANGE
            difference = self.now_ns() - before
            self._changed.notify_all()
            self._listeners = [kept for kept in self._listeners if kept() is not None]
            listeners = [kept() for kept in self._listeners]
        for listener in listeners:
            if listener is not None:
                listener(difference)
        for handle in triggered:
            if handle.post_callback is not None:
                handle.post_callback(TimeJump(change, Duration(nanoseconds=jump_ns)))

    def add_jump_listener(self, listener: Callable[[int], None]) -> None:
        """Call a bound method, held by a weak reference, with each change of the time in nanoseconds."""
        with self._changed:
            self._listeners.append(weakref.WeakMethod(listener))
