"""Which engines hang, by a simulated clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from multi_dnn_ros.serving.hang_detector import HangDetector
from multi_dnn_ros.serving.supervised_engine import Phase

SECOND = 1_000_000_000


class Rig:
    """A configured engine process with timeouts of 2 s, whose last heartbeat was at time 0."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, phase: Phase = Phase.CONFIGURED) -> None:
        self.now = self.heartbeat = self.image = 0
        self.status = psutil.STATUS_SLEEPING
        self.jobs: dict[str, int] = {}
        monkeypatch.setattr(psutil.Process, "status", lambda process: self.status)
        state = SimpleNamespace(
            heartbeat_ns=lambda: self.heartbeat, image_ns=lambda: self.image, running_jobs=lambda: self.jobs
        )
        self.engine: Any = SimpleNamespace(pid=1, phase=phase, heartbeat_since_ns=0, state=state)
        self.detector = HangDetector(2.0, 2.0, lambda: self.now)

    def run(self, seconds: float) -> None:
        for _ in range(round(10 * seconds)):
            self.now += SECOND // 10
            self.detector.tick()

    def fault(self) -> str:
        return self.detector.fault(self.engine)


def test_a_process_without_a_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.run(1.9)
    assert rig.fault() == ""
    rig.engine.phase = Phase.SERVING  # taking over does not start the time again
    rig.run(0.2)
    assert "no heartbeat for 2.1 s" in rig.fault()
    rig.heartbeat = rig.now
    assert rig.fault() == ""


def test_a_job_or_an_image_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, Phase.SERVING)
    rig.run(1.0)
    rig.jobs = {"lane": rig.now}
    rig.run(2.1)
    rig.heartbeat = rig.now
    assert rig.fault() == "hung: a job of DNN lane takes longer than 2 s (parameter job_timeout_s)"
    rig.jobs, rig.image = {}, SECOND
    assert "decoding an image takes longer than 2 s" in rig.fault()


def test_time_in_which_this_process_did_not_run_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine was suspended."""
    rig = Rig(monkeypatch, Phase.SERVING)
    rig.jobs, rig.image = {"lane": 1}, 1
    rig.now += 3600 * SECOND
    rig.detector.tick()
    assert rig.fault() == ""
    rig.run(2.1)
    assert rig.fault() != ""


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.READY, Phase.CONFIGURING])
def test_loading_has_no_limit_unless_a_signal_stopped_it(monkeypatch: pytest.MonkeyPatch, phase: Phase) -> None:
    rig = Rig(monkeypatch, phase)
    rig.run(60.0)
    assert rig.fault() == ""
    rig.status = psutil.STATUS_STOPPED
    assert rig.fault() == ""
    rig.run(2.1)
    assert rig.fault() == "stopped by a signal for 2 s (parameter heartbeat_timeout_s)"


def test_a_standby_that_is_silent_or_stopped_does_not_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.run(1.0)
    assert rig.detector.standby_fault(rig.engine) == ""
    rig.run(0.1)
    assert "no heartbeat for 1.1 s when it had to take over" in rig.detector.standby_fault(rig.engine)
    rig.heartbeat, rig.status = rig.now, psutil.STATUS_STOPPED
    assert rig.detector.standby_fault(rig.engine) == "stopped by a signal when it had to take over"
