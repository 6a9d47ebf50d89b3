"""Which engines hang, by a simulated clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from multi_dnn_ros.serving.hang_detector import HangDetector
from multi_dnn_ros.serving.supervised_engine import Phase

SECOND = 1_000_000_000


class Rig:
    """A configured engine process with timeouts of 2 s, whose last heartbeat was at time 0."""

    def __init__(self, phase: Phase = Phase.CONFIGURED) -> None:
        self.now = self.heartbeat = self.image = 0
        self.jobs: dict[str, int] = {}
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


def test_a_process_without_a_heartbeat() -> None:
    rig = Rig()
    rig.run(1.9)
    assert rig.fault() == ""
    rig.engine.phase = Phase.SERVING  # taking over does not start the time again
    rig.run(0.2)
    assert "no heartbeat for 2.1 s" in rig.fault()
    rig.heartbeat = rig.now
    assert rig.fault() == ""


def test_a_job_or_an_image_that_takes_too_long() -> None:
    rig = Rig(Phase.SERVING)
    rig.run(1.0)
    rig.jobs = {"lane": rig.now}
    rig.run(2.1)
    rig.heartbeat = rig.now
    assert rig.fault() == "hung: a job of DNN lane takes longer than 2 s (parameter job_timeout_s)"
    rig.jobs, rig.image = {}, SECOND
    assert "decoding an image takes longer than 2 s" in rig.fault()


def test_time_in_which_this_process_did_not_run_does_not_count() -> None:
    """The machine was suspended."""
    rig = Rig(Phase.SERVING)
    rig.jobs, rig.image = {"lane": 1}, 1
    rig.now += 3600 * SECOND
    rig.detector.tick()
    assert rig.fault() == ""
    rig.run(2.1)
    assert rig.fault() != ""


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.READY, Phase.CONFIGURING])
def test_loading_has_no_limit(phase: Phase) -> None:
    rig = Rig(phase)
    rig.run(60.0)
    assert rig.fault() == ""
