"""Which processes hang, by a simulated clock."""

from __future__ import annotations

import pytest

from multi_dnn_ros.serving.supervision.hang_detector import HangDetector
from multi_dnn_ros.serving.supervision.process_table import ProcessTable
from multi_dnn_ros.serving.supervision.states import Phase, ProcessState, SupervisionTimes

SECOND = 1_000_000_000


class Rig:
    """A configured process with a heartbeat timeout of 2 s, whose last heartbeat was at time 0."""

    def __init__(self) -> None:
        self.now = 0
        self.stopped = False
        self.heartbeat = 0
        self.table = ProcessTable("cpu", ("lane",), SupervisionTimes(), lambda: self.now)
        self.process: ProcessState = self.table.processes[self.table.add_process(Phase.CONFIGURED, ("lane",))]
        self.detector = HangDetector(2.0, 2.0, lambda: self.now, lambda pid: self.stopped)

    def last_heartbeat_ns(self) -> int:
        return self.heartbeat

    def image_since_ns(self) -> int | None:
        return None

    def running_jobs(self) -> dict[str, int]:
        return {}

    def run(self, seconds: float) -> None:
        for _ in range(round(10 * seconds)):
            self.now += SECOND // 10
            self.detector.tick()

    def hangs(self) -> bool:
        return self.detector.check(self.process, 1, self) is not None

    def standby_fault(self) -> str:
        fault = self.detector.check_standby(self.process, 1, self)
        return fault.cause if fault is not None else ""


def test_taking_over_does_not_restart_the_clock_of_the_heartbeat() -> None:
    rig = Rig()
    rig.run(1.9)
    assert not rig.hangs()
    rig.table.set_phase(rig.process, Phase.SERVING)
    rig.run(0.2)
    assert rig.hangs()


@pytest.mark.parametrize("before", [Phase.STARTING, Phase.READY, Phase.CONFIGURING])
def test_the_clock_starts_when_the_process_is_configured(before: Phase) -> None:
    rig = Rig()
    rig.process = rig.table.processes[rig.table.add_process(before)]
    rig.run(60.0)
    rig.table.set_phase(rig.process, Phase.CONFIGURED)
    assert not rig.hangs()
    rig.run(1.9)
    assert not rig.hangs()
    rig.run(0.2)
    assert rig.hangs()


def test_a_standby_may_be_silent_for_half_the_timeout() -> None:
    rig = Rig()
    rig.run(1.0)
    assert rig.standby_fault() == ""
    rig.run(0.1)
    assert rig.standby_fault() == (
        "hung: no heartbeat for 1.1 s when it had to take over (50% of parameter heartbeat_timeout_s: 2)"
    )
    rig.heartbeat = rig.now
    assert rig.standby_fault() == ""


@pytest.mark.parametrize("phase", list(Phase)[:5])
def test_a_standby_that_is_stopped_does_not_take_over(phase: Phase) -> None:
    rig = Rig()
    rig.table.set_phase(rig.process, phase)
    assert rig.standby_fault() == ""
    rig.stopped = True
    assert rig.standby_fault() == "stopped by a signal when it had to take over"


def test_a_standby_that_loads_needs_no_heartbeat() -> None:
    rig = Rig()
    rig.table.set_phase(rig.process, Phase.CONFIGURING)
    rig.run(60.0)
    assert rig.standby_fault() == ""
