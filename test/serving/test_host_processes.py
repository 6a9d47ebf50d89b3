"""Host with real engine processes: configuring, serving, and replacing processes that end or hang."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import fake_pipelines
import pytest
from engine_faults import engine_pids
from fake_pipelines import BUSY, GPU_FAULT, SEGFAULT, settings
from host_rig import WAIT_S, HostRig, descriptors

from multi_dnn_ros.engine.task import Drop, DropReason
from multi_dnn_ros.serving.descriptions import Cancelled, ConfigureError, Level
from multi_dnn_ros.serving.engine_process import EngineProcess
from multi_dnn_ros.serving.host import Host
from multi_dnn_ros.serving.slots import slots_needed


@pytest.fixture
def make() -> Iterator[Callable[..., HostRig]]:
    rigs: list[HostRig] = []

    def make_rig(*dnns: str, **arguments: Any) -> HostRig:
        names = dnns or ("lane", "object")
        keys = ("build", "rate_hz", "restart_s", "retry_s", "make")
        rig_arguments = {key: arguments.pop(key) for key in keys if key in arguments}
        rigs.append(HostRig(settings(*names, **{"fault_window_s": 1.0, **arguments}), **rig_arguments))
        return rigs[-1]

    yield make_rig
    for rig in rigs:
        rig.close()


def test_configure_reports_progress_and_describes_the_engine(make: Callable[..., HostRig]) -> None:
    rig = make("lane", "object")
    assert {report.total for report in rig.progress} == {2}
    assert rig.description.device == "cpu"
    assert rig.description.dnns["object"].cameras == ("front",)
    (idle,) = rig.host.statuses()
    assert (idle.name, idle.level, idle.text) == ("engine cpu", Level.OK, "ready")
    assert not rig.host.serves("front")
    rig.start()
    assert rig.host.serves("front")
    (serves,) = rig.host.statuses()
    assert (serves.level, serves.text) == (Level.OK, "serving")
    assert serves.values["pid"] == engine_pids()[0]
    rig.until(lambda: rig.host.memory().get("engine processes resident memory (bytes)", 0) > 10_000_000)


@pytest.mark.parametrize(
    ("build", "words", "expected"),
    [
        (fake_pipelines.build_wrong, "parameter dnn.object.model is 'nothing'", True),
        (fake_pipelines.build_broken, "KeyError: 'broken'", False),
        (fake_pipelines.build_crashing, "the engine process ended while configuring: killed by SIGABRT", True),
    ],
)
def test_a_failed_configure_reports_the_reason_and_frees_everything(build: Any, words: str, expected: bool) -> None:
    host = Host(build)
    before = descriptors()
    with pytest.raises(ConfigureError) as caught:
        host.configure(settings("object"), lambda progress: None)
    assert words in caught.value.text
    assert caught.value.expected is expected
    assert not engine_pids()
    assert descriptors() <= before  # a descriptor of an earlier test may be closed meanwhile
    assert host.statuses() == []
    host.close()


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_configuring_can_be_cancelled(end: str) -> None:
    host = Host(fake_pipelines.build_slowly)
    progress: list[Any] = []
    failures: list[BaseException] = []

    def configure() -> None:
        try:
            host.configure(settings("object"), progress.append)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=configure)
    thread.start()
    while not progress:
        time.sleep(0.01)
    getattr(host, end)()
    thread.join()
    assert [type(error) for error in failures] == [Cancelled]
    assert not engine_pids()
    host.close()


def test_stop_finishes_the_frames_and_the_same_process_serves_again(make: Callable[..., HostRig]) -> None:
    rig = make("lane", "object").start()
    pid = rig.pid()
    for _ in range(2):
        assert rig.traffic.stop() == []
        assert rig.traffic.discrepancies() == []
        dropped = [figures.dropped for figures in rig.traffic.streams().values()]
        assert all(not drops.get(DropReason.ENGINE_LOST) for drops in dropped)
        assert not rig.host.serves("front")
        rig.restart()
        assert rig.pid() == pid


@pytest.mark.parametrize("standby", ["none", pytest.param("warm", marks=pytest.mark.long), "hot"])
def test_a_killed_process_is_replaced(
    make: Callable[..., HostRig], standby: str, request: pytest.FixtureRequest
) -> None:
    limits = {"heartbeat_timeout_s": 1.0, "job_timeout_s": 1.0} if standby == "none" else {}
    rig = make("lane", "object", standby=standby, fault_window_s=30.0, **limits).start()
    if standby == "none":
        # Importing alone takes longer than these limits: a process that is loading is not killed for being slow.
        request.getfixturevalue("new_interpreters")
    spare = 0
    if standby != "none":
        spare = rig.wait_standby(f"{standby}, ready")
    pid = rig.pid()
    os.kill(pid, signal.SIGKILL)
    rig.until(lambda: rig.pid() not in (0, pid), "another process")
    rig.wait_results()
    assert spare in (0, rig.pid())
    status = rig.status()
    assert status is not None
    assert status.level is Level.WARN
    assert status.values["restarts"] == 1
    assert "killed by SIGKILL" in status.text
    assert float(str(status.values["gap (ms)"])) == pytest.approx(
        max(rig.traffic.gap_ms("lane"), rig.traffic.gap_ms("object")), rel=0.5, abs=500.0
    )
    print(f"gap with standby {standby}: {status.values['gap (ms)']} ms")
    if standby != "none":
        rig.wait_standby(f"{standby}, ready")


@pytest.mark.parametrize("standby", ["none", pytest.param("hot", marks=pytest.mark.long)])  # tested above with a kill
def test_a_process_stopped_by_a_signal_is_replaced_without_blocking_callers(
    make: Callable[..., HostRig], standby: str
) -> None:
    rig = make("lane", "object", standby=standby, heartbeat_timeout_s=0.5).start()
    if standby == "hot":
        rig.wait_standby("hot, ready")
    pid = rig.pid()
    os.kill(pid, signal.SIGSTOP)
    rounds = 0
    while rig.pid() == pid:
        rig.host.update("object", "score_threshold", 0.1)
        rig.host.statuses()
        rig.host.serves("front")
        rounds += 1
        time.sleep(0.002)
    assert rounds >= 10, "a caller that is blocked until the process is replaced calls once"
    rig.wait_results()
    status = rig.status()
    assert status is not None
    assert "no heartbeat" in str(status.values["last loss"])


def test_a_process_with_a_fault_is_replaced_before_it_has_ended(make: Callable[..., HostRig]) -> None:
    rig = make(
        "lane", "object", standby="hot", build=fake_pipelines.build_ending_slowly, heartbeat_timeout_s=30.0
    ).start()
    rig.wait_standby("hot, ready")
    pid = rig.pid()
    rig.once["front"] = GPU_FAULT
    rig.until(lambda: rig.pid() not in (0, pid), "the standby")
    rig.wait_results()
    status = rig.status()
    assert status is not None
    assert "illegal memory access" in str(status.values["last loss"])
    assert float(str(status.values["gap (ms)"])) < 3000.0
    rig.until(lambda: (one := rig.status()) is not None and one.level is Level.OK, "OK after fault_window_s")


def test_a_process_with_a_hanging_job_is_replaced(make: Callable[..., HostRig]) -> None:
    rig = make("lane", "object", job_timeout_s=0.5).start()
    pid = rig.pid()
    rig.once["front"] = BUSY
    rig.until(lambda: rig.pid() != pid, "another process")
    rig.wait_results()
    status = rig.status()
    assert status is not None
    assert "takes longer than 0.5 s (parameter job_timeout_s)" in str(status.values["last loss"])


def test_runtime_parameters_reach_a_standby_and_a_replacement(make: Callable[..., HostRig]) -> None:
    """With a threshold above every score, results are empty."""
    rig = make("object", standby="hot", restart_s=(0.0,), retry_s=(0.0,)).start()
    rig.host.update("object", "max_detections", 7)
    rig.wait_standby("hot, ready")
    sizes: list[int] = []
    original = rig.traffic._on_result

    def record(result: Any) -> None:
        sizes.append(len(result.output.scores))
        original(result)

    rig.host.update("object", "score_threshold", 0.9)
    object.__setattr__(rig.traffic.ledger._callbacks, "on_result", record)
    for _ in range(2):
        rig.until(lambda: sizes and sizes[-1] == 0, "an empty result")
        pid = rig.pid()
        os.kill(pid, signal.SIGKILL)
        rig.until(lambda pid=pid: rig.pid() != pid, "another process")
        sizes.clear()
        rig.wait_results()
        assert set(sizes) == {0}
    rig.host.update("object", "score_threshold", 0.1)
    rig.until(lambda: sizes[-1] == 1, "a result with a box")


def test_a_segfault_loses_only_the_frames_in_progress(make: Callable[..., HostRig]) -> None:
    rig = make("lane", "object", standby="hot").start()
    rig.wait_standby("hot, ready")
    lost: list[Drop] = []
    original = rig.traffic._on_drop

    def record(drop: Drop) -> None:
        if drop.reason is DropReason.ENGINE_LOST:
            lost.append(drop)
        original(drop)

    object.__setattr__(rig.traffic.ledger._callbacks, "on_drop", record)
    rig.once["front"] = SEGFAULT
    rig.until(lambda: (one := rig.status()) is not None and one.values["restarts"] == 1, "a restart")
    rig.wait_results()
    status = rig.status()
    assert status is not None
    assert "killed by SIGSEGV" in status.text
    counts = Counter(drop.dnn for drop in lost if drop.message == "killed by SIGSEGV")
    assert 1 <= max(counts.values()) <= slots_needed(2), counts  # no more than can be in progress
    # Until the standby has taken over, which takes longer on a busy machine.
    later = [drop.message for drop in lost if drop.message != "killed by SIGSEGV"]
    assert all("no engine process serves" in message or "just ended" in message for message in later), later


def test_the_age_of_the_supervision_grows_while_it_hangs(make: Callable[..., HostRig]) -> None:
    """It hangs because a process cannot be started. The watchdog of a service manager relies on the age."""
    hangs, released = threading.Event(), threading.Event()

    def slow(*arguments: Any, **named: Any) -> EngineProcess:
        if hangs.is_set():
            released.wait(WAIT_S)
        return EngineProcess(*arguments, **named)

    assert Host().supervision_age_s() == 0.0, "nothing to supervise"
    rig = make("lane", make=slow).start()
    rig.until(lambda: rig.host.supervision_age_s() < 0.2, "a supervision that runs")
    pid = rig.pid()
    hangs.set()
    try:
        os.kill(pid, signal.SIGKILL)
        # Longer than several checks, which are at most 0.25 s apart. No method that takes the lock of the supervision
        # may be used.
        rig.until(lambda: rig.host.supervision_age_s() > 1.0, "an age that grows")
    finally:
        released.set()
    rig.until(lambda: rig.host.supervision_age_s() < 0.2, "a supervision that runs again")
    rig.wait_results()
