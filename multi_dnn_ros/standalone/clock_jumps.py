"""Callbacks before and after time jumps of a ROS clock."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from multi_dnn_ros.standalone.missing import Surface


class ClockChange(IntEnum):
    """Whether a jump is caused by switching simulated time."""

    ROS_TIME_NO_CHANGE = 1
    ROS_TIME_ACTIVATED = 2
    ROS_TIME_DEACTIVATED = 3
    SYSTEM_TIME_NO_CHANGE = 4


class JumpThreshold(Surface):
    """Which jumps trigger a callback."""

    def __init__(self, *, min_forward: Any, min_backward: Any, on_clock_change: bool = True) -> None:
        """Create a threshold.

        Args:
            min_forward: minimum forward jump, a positive Duration; None: forward jumps do not count.
            min_backward: minimum backward jump, a negative Duration; None: backward jumps do not count.
            on_clock_change: whether switching simulated time counts.

        Raises:
            ValueError: for a duration of the wrong sign, or if no jump is selected.
        """
        if min_forward is not None and min_forward.nanoseconds <= 0:
            raise ValueError("min_forward must be a positive non-zero duration")
        if min_backward is not None and min_backward.nanoseconds >= 0:
            raise ValueError("min_backward must be a negative non-zero duration")
        if min_forward is None and min_backward is None and not on_clock_change:
            raise ValueError("At least one jump threshold must be enabled")
        self.min_forward = min_forward
        self.min_backward = min_backward
        self.on_clock_change = on_clock_change

    def exceeded(self, change: ClockChange, difference_ns: int) -> bool:
        """Return whether a jump counts."""
        if change in (ClockChange.ROS_TIME_ACTIVATED, ClockChange.ROS_TIME_DEACTIVATED):
            return self.on_clock_change
        if difference_ns < 0:
            return self.min_backward is not None and difference_ns <= self.min_backward.nanoseconds
        return self.min_forward is not None and 0 < difference_ns >= self.min_forward.nanoseconds


class TimeJump(Surface):
    """A jump: its kind and its size, a Duration."""

    def __init__(self, clock_change: ClockChange, delta: Any) -> None:
        if not isinstance(clock_change, ClockChange):
            raise TypeError("clock_change must be an instance of rclpy.clock.ClockChange")
        self._clock_change = clock_change
        self._delta = delta

    @property
    def clock_change(self) -> ClockChange:
        """The kind of the jump."""
        return self._clock_change

    @property
    def delta(self) -> Any:
        """Size of the jump."""
        return self._delta


class JumpHandle(Surface):
    """A registered pair of callbacks, active as long as it is referenced."""

    def __init__(
        self,
        *,
        clock: Any,
        threshold: JumpThreshold,
        pre_callback: Callable[[], Any] | None,
        post_callback: Callable[[TimeJump], Any] | None,
    ) -> None:
        """Register with a clock.

        Raises:
            ValueError: if both callbacks are None, or one is not callable.
        """
        if pre_callback is None and post_callback is None:
            raise ValueError("One of pre_callback or post_callback must be callable")
        for name, callback in (("pre_callback", pre_callback), ("post_callback", post_callback)):
            if callback is not None and not callable(callback):
                raise ValueError(f"{name} must be callable if given")
        self.threshold = threshold
        self.pre_callback = pre_callback
        self.post_callback = post_callback
        self._clock = clock
        clock.jump_handles.add(self)

    def unregister(self) -> None:
        """Remove the callbacks from the clock."""
        if self._clock is not None:
            self._clock.jump_handles.remove(self)
            self._clock = None

    def __enter__(self) -> JumpHandle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.unregister()


class JumpHandles:
    """Weak references to the handles of one clock, in order of registration."""

    def __init__(self) -> None:
        self._handles: list[weakref.ref[JumpHandle]] = []

    def add(self, handle: JumpHandle) -> None:
        """Add a handle."""
        self._handles.append(weakref.ref(handle))

    def remove(self, handle: JumpHandle) -> None:
        """Remove a handle."""
        self._handles = [kept for kept in self._handles if kept() not in (None, handle)]

    def triggered(self, change: ClockChange, difference_ns: int) -> list[JumpHandle]:
        """Return the handles that a jump triggers."""
        handles = [handle for handle in (kept() for kept in self._handles) if handle is not None]
        return [handle for handle in handles if handle.threshold.exceeded(change, difference_ns)]
