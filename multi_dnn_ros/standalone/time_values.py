"""rclpy's time and duration types."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

from multi_dnn_ros.standalone.messages import message_class
from multi_dnn_ros.standalone.missing import Surface

S_TO_NS: Final = 1_000_000_000
_INT64_MAX: Final = 2**63 - 1


class ClockType(IntEnum):
    """The epoch of a clock, and whether it can be simulated."""

    UNINITIALIZED = 0
    ROS_TIME = 1
    SYSTEM_TIME = 2
    STEADY_TIME = 3


class Duration(Surface):
    """A duration in nanoseconds, of either sign."""

    def __init__(self, *, seconds: float = 0, nanoseconds: int = 0) -> None:
        total = int(seconds * S_TO_NS) + int(nanoseconds)
        if not -_INT64_MAX - 1 <= total <= _INT64_MAX:
            raise OverflowError(f"Total nanoseconds value is too large to store in C duration: {total}")
        self._nanoseconds = total

    @property
    def nanoseconds(self) -> int:
        """The duration in nanoseconds."""
        return self._nanoseconds

    def to_msg(self) -> Any:
        """Return a builtin_interfaces/Duration."""
        seconds, nanoseconds = divmod(self._nanoseconds, S_TO_NS)
        return message_class("builtin_interfaces/msg/Duration")(sec=seconds, nanosec=nanoseconds)

    @classmethod
    def from_msg(cls, msg: Any) -> Duration:
        """Return the duration in a builtin_interfaces/Duration.

        Raises:
            TypeError: for any other object.
        """
        if not isinstance(msg, message_class("builtin_interfaces/msg/Duration")):
            raise TypeError(f"Must pass a builtin_interfaces.msg.Duration object, not {msg!r:.80}")
        return cls(seconds=msg.sec, nanoseconds=msg.nanosec)

    def __repr__(self) -> str:
        return f"Duration(nanoseconds={self._nanoseconds})"

    def __str__(self) -> str:
        return "Infinite" if self._nanoseconds == _INT64_MAX else f"{self._nanoseconds} nanoseconds"

    def __eq__(self, other: object) -> bool:
        return self._nanoseconds == other.nanoseconds if isinstance(other, Duration) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._nanoseconds)

    def __lt__(self, other: Duration) -> bool:
        return self._nanoseconds < other.nanoseconds if isinstance(other, Duration) else NotImplemented

    def __le__(self, other: Duration) -> bool:
        return self._nanoseconds <= other.nanoseconds if isinstance(other, Duration) else NotImplemented

    def __gt__(self, other: Duration) -> bool:
        return self._nanoseconds > other.nanoseconds if isinstance(other, Duration) else NotImplemented

    def __ge__(self, other: Duration) -> bool:
        return self._nanoseconds >= other.nanoseconds if isinstance(other, Duration) else NotImplemented


Infinite: Final = Duration(nanoseconds=_INT64_MAX)


class Time(Surface):
    """A point in time on one type of clock; comparison and subtraction require the same type."""

    def __init__(
        self, *, seconds: float = 0, nanoseconds: int = 0, clock_type: ClockType = ClockType.SYSTEM_TIME
    ) -> None:
        if not isinstance(clock_type, ClockType):
            raise TypeError(f"Clock type must be a ClockType enum, not {clock_type!r}")
        if seconds < 0:
            raise ValueError(f"Seconds value must not be negative: {seconds}")
        if nanoseconds < 0:
            raise ValueError(f"Nanoseconds value must not be negative: {nanoseconds}")
        total = int(seconds * S_TO_NS) + int(nanoseconds)
        if total > _INT64_MAX:
            raise OverflowError(f"Total nanoseconds value is too large to store in C time point: {total}")
        self._nanoseconds = total
        self._clock_type = clock_type

    @property
    def nanoseconds(self) -> int:
        """Nanoseconds since the clock's epoch."""
        return self._nanoseconds

    @property
    def clock_type(self) -> ClockType:
        """The type of clock of this time."""
        return self._clock_type

    def seconds_nanoseconds(self) -> tuple[int, int]:
        """Return seconds and the remaining nanoseconds."""
        return divmod(self._nanoseconds, S_TO_NS)

    def to_msg(self) -> Any:
        """Return a builtin_interfaces/Time."""
        seconds, nanoseconds = self.seconds_nanoseconds()
        return message_class("builtin_interfaces/msg/Time")(sec=seconds, nanosec=nanoseconds)

    @classmethod
    def from_msg(cls, msg: Any, clock_type: ClockType = ClockType.ROS_TIME) -> Time:
        """Return the time in a builtin_interfaces/Time.

        Raises:
            TypeError: for any other object.
        """
        if not isinstance(msg, message_class("builtin_interfaces/msg/Time")):
            raise TypeError(f"Must pass a builtin_interfaces.msg.Time object, not {msg!r:.80}")
        return cls(seconds=msg.sec, nanoseconds=msg.nanosec, clock_type=clock_type)

    def __repr__(self) -> str:
        return f"Time(nanoseconds={self._nanoseconds}, clock_type={self._clock_type.name})"

    def __add__(self, other: Duration) -> Time:
        if not isinstance(other, Duration):
            return NotImplemented
        return Time(nanoseconds=self._nanoseconds + other.nanoseconds, clock_type=self._clock_type)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, Time):
            self._same_clock(other, "subtract")
            return Duration(nanoseconds=self._nanoseconds - other.nanoseconds)
        if isinstance(other, Duration):
            return Time(nanoseconds=self._nanoseconds - other.nanoseconds, clock_type=self._clock_type)
        return NotImplemented

    def _same_clock(self, other: Time, verb: str) -> int:
        if self._clock_type != other.clock_type:
            raise TypeError(f"Can't {verb} times with different clock types: {self!r} and {other!r}")
        return other.nanoseconds

    def __eq__(self, other: object) -> bool:
        return self._nanoseconds == self._same_clock(other, "compare") if isinstance(other, Time) else NotImplemented

    def __hash__(self) -> int:
        return hash((self._nanoseconds, self._clock_type))

    def __lt__(self, other: Time) -> bool:
        return self._nanoseconds < self._same_clock(other, "compare") if isinstance(other, Time) else NotImplemented

    def __le__(self, other: Time) -> bool:
        return self._nanoseconds <= self._same_clock(other, "compare") if isinstance(other, Time) else NotImplemented

    def __gt__(self, other: Time) -> bool:
        return self._nanoseconds > self._same_clock(other, "compare") if isinstance(other, Time) else NotImplemented

    def __ge__(self, other: Time) -> bool:
        return self._nanoseconds >= self._same_clock(other, "compare") if isinstance(other, Time) else NotImplemented
