"""Several devices are configured and measured: GPUs at the same time, everything on one processor in turn.

The engine processes are simulated, because the machine of the tests has no GPU.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_pipelines import build, settings
from waiting import until

from multi_dnn_ros.serving import wire
from multi_dnn_ros.serving.concurrent_devices import DeviceProgress, call_by_device, call_concurrently
from multi_dnn_ros.serving.host import (
    Cancelled,
    ConfigureError,
    DnnDescription,
    EngineDescription,
    Progress,
)
from multi_dnn_ros.serving.process_end import End
from multi_dnn_ros.serving.process_host import ProcessHost
from multi_dnn_ros.serving.shared_status import SharedStatus, create_status_memory
from multi_dnn_ros.settings.schema import NodeConfig

WAIT_S = 20.0


class FakeProcess:
    """Answers Place at once; Configure in a thread, as `devices.answer` says."""

    pid = os.getpid()

    def __init__(self, devices: FakeDevices, label: str, dnns: Any, on_message: Any, on_end: Any) -> None:
        self.label = label
        self.device = ""
        self.ended = False
        self._devices = devices
        self._on_message, self._on_end = on_message, on_end
        memory = create_status_memory(dnns)
        self.status = SharedStatus(dnns, memory)
        os.close(memory)
        self.status.set_heartbeat(time.monotonic_ns())

    def send(self, message: Any) -> None:
        if isinstance(message, wire.Place):
            self.reply(wire.Placed(self._devices.placed))
        elif isinstance(message, wire.Configure):
            self.device = message.config.device
            self._devices.events.append(f"begin {self.device}")
            threading.Thread(target=self._answer, args=(message,), daemon=True).start()

    def _answer(self, message: Any) -> None:
        answer = self._devices.answer(self)
        self._devices.events.append(f"end {self.device}")
        if isinstance(answer, Exception):
            self.reply(wire.Refused(str(answer), True))
        else:
            described = dict.fromkeys(message.dnns, DnnDescription(("front",), {}))
            service_ms = dict.fromkeys(message.timed, 1.0)
            self.reply(
                wire.Configured(
                    EngineDescription(self.device, "fake", 1, described, versions={}, service_ms=service_ms)
                )
            )

    def reply(self, message: Any) -> None:
        self._on_message(self, message)

    def report(self, text: str, ready: int, left_s: float | None = None) -> None:
        self.reply(wire.Progressed(Progress(text, ready, 1, left_s)))

    def kill(self, cause: str) -> None:
        if not self.ended:
            self.ended = True
            self._on_end(self, End(cause, None, 9, (), ""))

    def wait(self, timeout_s: float) -> bool:
        return self.ended


class FakeDevices:
    """Devices of a machine. placed: the answer to Place. answer: called when a device is configured, until it is
    done; it may return an exception. events: `begin` and `end` of each device in order.
    """

    def __init__(self, *names: str, answer: Callable[[FakeProcess], Exception | None]) -> None:
        self.placed = {"object": names}
        self.answer = answer
        self.processes: list[FakeProcess] = []
        self.events: list[str] = []
        self.host = ProcessHost(build, make=self._make)
        self.progress: list[Progress] = []

    def _make(self, label: str, dnns: Any, pools: Any, on_message: Any, on_end: Any) -> FakeProcess:
        self.processes.append(FakeProcess(self, label, dnns, on_message, on_end))
        return self.processes[-1]

    def configure(self, **parameters: Any) -> EngineDescription:
        return self.host.configure(self.config(**parameters), self.progress.append)

    def config(self, **parameters: Any) -> NodeConfig:
        config = settings("object", **parameters)
        config.dnns["object"].device = ["cuda:0"]  # any that is not auto: Place gives the names
        return config


@pytest.fixture
def machine() -> Iterator[Callable[..., FakeDevices]]:
    made: list[FakeDevices] = []

    def make(*names: str, answer: Callable[[FakeProcess], Exception | None]) -> FakeDevices:
        made.append(FakeDevices(*names, answer=answer))
        return made[-1]

    yield make
    for one in made:
        one.host.close()
        assert all(process.ended for process in one.processes)


def meet(number: int) -> Callable[[FakeProcess], Exception | None]:
    """An answer that is given when `number` devices are at it; a device that waits for them too long fails."""
    barrier = threading.Barrier(number)

    def answer(process: FakeProcess) -> Exception | None:
        try:
            barrier.wait(WAIT_S)
        except threading.BrokenBarrierError:
            return RuntimeError("the other devices have not begun")
        return None

    return answer


@pytest.mark.parametrize("names", [("cuda:0", "cuda:1"), ("cuda:3", "cuda:1", "cuda:0", "cuda:2")])
def test_gpus_are_configured_at_the_same_time_and_keep_their_order(
    machine: Callable[..., FakeDevices], names: tuple[str, ...]
) -> None:
    gpus = machine(*names, answer=meet(len(names)))
    assert gpus.configure().device == ", ".join(names)
    assert [status.name for status in gpus.host.statuses()] == [f"engine {name}" for name in names]
    assert len(gpus.processes) == len(names)


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (("cpu:1", "cpu:2"), ["cpu:1", "cpu:2"]),
        (("cpu", "cuda:0", "cpu:2"), ["cuda:0", "cpu", "cpu:2"]),
    ],
)
def test_devices_of_one_processor_are_configured_in_turn_and_the_cpu_after_the_gpus(
    machine: Callable[..., FakeDevices], names: tuple[str, ...], order: list[str]
) -> None:
    devices = machine(*names, answer=lambda process: None)
    assert devices.configure().device == ", ".join(names)
    assert devices.events == [event for name in order for event in (f"begin {name}", f"end {name}")]


@pytest.mark.parametrize("bad", ["cuda:0", "cuda:1"])
def test_a_failure_ends_the_other_gpus_at_once_and_names_its_device(
    machine: Callable[..., FakeDevices], bad: str
) -> None:
    both, never = meet(2), threading.Event()

    def answer(process: FakeProcess) -> Exception | None:
        both(process)
        if process.device == bad:
            return RuntimeError("no such file")
        never.wait()  # it would take forever
        return None

    gpus = machine("cuda:0", "cuda:1", answer=answer)
    with pytest.raises(ConfigureError) as caught:
        gpus.configure()
    assert caught.value.text == f"{bad}: no such file"
    assert caught.value.expected
    assert all(process.ended for process in gpus.processes)


def test_of_two_failures_at_the_same_time_one_is_raised(machine: Callable[..., FakeDevices]) -> None:
    both = meet(2)

    def answer(process: FakeProcess) -> Exception:
        both(process)
        return RuntimeError(f"{process.device} is broken")

    gpus = machine("cuda:0", "cuda:1", answer=answer)
    with pytest.raises(ConfigureError) as caught:
        gpus.configure()
    assert caught.value.text in ("cuda:0: cuda:0 is broken", "cuda:1: cuda:1 is broken")
    assert all(process.ended for process in gpus.processes)


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_cancelling_ends_all_devices(machine: Callable[..., FakeDevices], end: str) -> None:
    both, never = meet(2), threading.Event()

    def answer(process: FakeProcess) -> None:
        both(process)
        process.report("waiting", 0)
        never.wait()

    gpus = machine("cuda:0", "cuda:1", answer=answer)
    raised: list[BaseException] = []

    def configure() -> None:
        try:
            gpus.configure()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=configure)
    thread.start()
    until(lambda: len(gpus.progress) == 2, "both devices")
    getattr(gpus.host, end)()
    thread.join(WAIT_S)
    assert [type(error) for error in raised] == [Cancelled]
    assert all(process.ended for process in gpus.processes)


def test_the_progress_of_gpus_is_added_up_and_names_the_device(machine: Callable[..., FakeDevices]) -> None:
    def answer(process: FakeProcess) -> None:
        if process.device == "cuda:1":
            process.report("loading object", 0)
        else:
            process.report("object ready", 1)
        until(lambda: len(gpus.progress) == 2, "both reports")

    gpus = machine("cuda:0", "cuda:1", answer=answer)
    gpus.configure()
    assert {step.text for step in gpus.progress} == {"cuda:1: loading object", "cuda:0: object ready"}
    assert {step.total for step in gpus.progress} == {2}
    assert gpus.progress[-1].ready == 1


def test_the_remaining_time_is_that_of_the_device_that_takes_longest() -> None:
    steps: list[Progress] = []
    now_s = [100.0]
    combined = DeviceProgress({"cuda:0": 2, "cuda:1": 1, "cpu": 1}, steps.append, lambda: now_s[0])

    def after(seconds: float, device: str, ready: int, left_s: float | None) -> tuple[int, int, float | None]:
        now_s[0] += seconds
        combined.report(device, Progress("step", ready, 2, left_s))
        return steps[-1].ready, steps[-1].total, steps[-1].left_s

    assert after(0.0, "cuda:0", 0, 30.0) == (0, 4, None)
    assert after(1.0, "cuda:1", 0, 60.0) == (0, 4, None)  # the CPU has not begun: its time is unknown
    assert after(1.0, "cuda:0", 1, None) == (1, 4, None)
    combined.done("cuda:1")
    assert after(1.0, "cuda:0", 2, 5.0) == (3, 4, None)
    assert after(1.0, "cpu", 0, 20.0) == (3, 4, 20.0)
    assert after(1.0, "cuda:0", 2, 25.0) == (3, 4, 25.0)
    assert after(15.0, "cpu", 1, 1.0) == (4, 4, 10.0)
    combined.done("cuda:0")
    assert after(5.0, "cpu", 1, 2.0) == (4, 4, 2.0)
    assert steps[-1].text == "cpu: step"


def test_the_progress_of_one_device_is_unchanged() -> None:
    steps: list[Progress] = []
    step = Progress("compiling", 1, 2, 7.0, "object")
    DeviceProgress({"auto": 2}, steps.append, lambda: 0.0).report("auto", step)
    assert steps == [step]


def test_a_single_device_needs_no_processor() -> None:
    assert call_by_device(["auto"], str.upper, lambda: None) == {"auto": "AUTO"}


def test_the_first_exception_is_raised_when_all_calls_have_ended() -> None:
    failed, ended = threading.Event(), []

    def fail() -> None:
        raise KeyError("first")

    def end_late() -> None:
        assert failed.wait(WAIT_S)
        ended.append(True)
        raise ValueError("second")

    with pytest.raises(KeyError, match="first"):
        call_concurrently([end_late, fail], failed.set)
    assert ended


def test_calls_that_have_begun_are_ended_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    failed, ended = threading.Event(), []
    start, started = threading.Thread.start, []

    def start_one(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    def wait() -> None:
        ended.append(failed.wait(WAIT_S))

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        call_concurrently([wait, wait], failed.set)
    assert ended == [True]


def test_a_device_names_its_log_lines(machine: Callable[..., FakeDevices], caplog: pytest.LogCaptureFixture) -> None:
    def answer(process: FakeProcess) -> None:
        process.reply(wire.Logged(30, "multi_dnn_ros.test", "job 1 runs eager"))

    machine("cuda:0", "cuda:1", answer=answer).configure()
    lines = {record.getMessage() for record in caplog.records if record.name == "multi_dnn_ros.test"}
    assert lines == {"cuda:0: job 1 runs eager", "cuda:1: job 1 runs eager"}
