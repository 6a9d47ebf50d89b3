"""Which ranks of a job are reading its data, for how long, and whether the job begins without those that are late."""

from __future__ import annotations

from multi_dnn_ros.fleet import report_timer

#: A rank is late after this multiple of the time that the first rank needed, and AWAITED_S longer than that time.
_LATE_FACTOR = 2.0


class DataReading:
    """Of one start of a job."""

    def __init__(self) -> None:
        self._passed_s: dict[int, float] = {}
        self._awaited: set[int] = set()
        self._first_s: float | None = None

    def begin(self, unit: int, *, awaited: bool = True) -> None:
        """The rank of a unit has been started. awaited: whether the job waits for it before it begins."""
        self._passed_s[unit] = 0.0
        if awaited:
            self._awaited.add(unit)

    def end(self, unit: int) -> None:
        """The rank of a unit has read the data."""
        if unit in self._passed_s:
            passed_s = self._passed_s[unit]
            self._first_s = passed_s if self._first_s is None else min(passed_s, self._first_s)
        self.forget(unit)

    def forget(self, unit: int) -> None:
        """The rank of a unit has ended."""
        self._passed_s.pop(unit, None)
        self._awaited.discard(unit)

    def add(self, seconds: float) -> None:
        """Time has passed in which messages were received."""
        for unit in self._passed_s:
            self._passed_s[unit] += seconds

    @property
    def units(self) -> list[int]:
        """Those whose ranks are reading."""
        return list(self._passed_s)

    @property
    def is_enough(self) -> bool:
        """Whether the job can begin: all ranks have read the data, or those that have not are late."""
        if not self._awaited:
            return True
        if self._first_s is None:
            return False
        late_s = max(_LATE_FACTOR * self._first_s, self._first_s + report_timer.AWAITED_S)
        return all(self._passed_s[unit] >= late_s for unit in self._awaited)

    def overdue(self, limit_s: float) -> int | None:
        """The first unit whose rank has read for at least this time; None: there is none."""
        return next((unit for unit, passed_s in self._passed_s.items() if passed_s >= limit_s), None)
