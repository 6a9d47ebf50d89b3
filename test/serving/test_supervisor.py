"""What the supervisor does after losses, hangs and swaps, in every order of events; with simulated engines."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fake_host import Ends, FakeClock
from fake_pipelines import settings as node_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import DropReason, Timing
from multi_dnn_ros.serving import messages
from multi_dnn_ros.serving.descriptions import DnnDescription, EngineDescription, Level
from multi_dnn_ros.serving.engine_process import Engine
from multi_dnn_ros.serving.ledger import DnnSettings, Ledger
from multi_dnn_ros.serving.supervisor import Supervisor

DNNS = ("lane", "object")
SECOND = 1_000_000_000
PIDS = itertools.count(1_000_000)


class FakeEngine:
    """The part of an Engine that the supervisor uses."""

    def __init__(self, clock: FakeClock) -> None:
        self.device, self.label, self.pid = "cpu", "engine cpu", next(PIDS)
        self.since_ns = self.started_ns = clock.now
        self.dnns: tuple[str, ...] = ()
        self.config: Any = None
        self.ledger: Ledger | None = None
        self.description: EngineDescription | None = None
        self.is_ready = self.retired = self.killed = False
        self.memory: Any = dict
        self.sent: list[Any] = []
        self.jobs: dict[str, int] = {}
        self.heartbeat_ns: int | None = None  # None: it beats
        self.state = SimpleNamespace(
            running_jobs=lambda: self.jobs,
            heartbeat_ns=lambda: clock.now if self.heartbeat_ns is None else self.heartbeat_ns,
        )  # fmt: skip

    fault = Engine.fault

    def send(self, message: Any) -> None:
        assert not self.killed
        self.sent.append(message)

    def kill(self, cause: str) -> None:
        self.killed = True

    @property
    def awaited(self) -> Any:
        """The message that a working engine would give next."""
        if self.killed:
            return messages.Ended("killed")
        if not self.is_ready:
            return messages.Ready()
        return description_of(self.dnns) if self.dnns and self.description is None else None


def description_of(dnns: tuple[str, ...]) -> EngineDescription:
    return EngineDescription("cpu", "a processor", 1, {dnn: DnnDescription((), {}) for dnn in dnns})


class Bench(Supervisor):
    """A supervisor of one device with both DNNs, which is serving."""

    def __init__(self, standby: str = "none", dnns: tuple[str, ...] = DNNS) -> None:
        self.clock, self.ends = FakeClock(), Ends()
        super().__init__(lambda *_: None, (0.0, 1.0, 10.0, 60.0), self.clock)
        config = node_settings(*dnns, standby=standby, job_timeout_s=2.0, heartbeat_timeout_s=2.0)
        first: Any = FakeEngine(self.clock)
        first.dnns, first.config, first.is_ready, first.description = dnns, config, True, description_of(dnns)
        self._supervise({"cpu": config}, [first])
        self.start(self.new_ledger())
        self.settle()

    def new_ledger(self) -> Ledger:
        dnns = self._groups[0].dnns if len(self._groups) == 1 else DNNS
        self.ledger = Ledger({dnn: DnnSettings(("front",)) for dnn in dnns}, self.ends.callbacks(), self.clock)
        return self.ledger

    def _start_engine(self, device: str) -> Any:
        return FakeEngine(self.clock)

    @property
    def engines(self) -> list[Any]:
        return self._engines

    def settle(self, seconds: float = 0.0) -> None:
        """Let time pass, and let every engine do what is expected of it."""
        for _ in range(round(seconds) + 1):
            self.tick()
            while pending := [engine for engine in self.engines if engine.awaited is not None]:
                self.handle(pending[0], pending[0].awaited)
                self.tick()
            if seconds:
                self.clock.now += SECOND

    def serving(self, dnn: str) -> Any:
        return self.routes.get(dnn)

    def lose(self, dnn: str, cause: str = "killed by SIGSEGV") -> None:
        self.handle(self.serving(dnn), messages.Ended(cause))

    def status(self, name: str = "engine cpu") -> Any:
        return next(status for status in self.statuses() if status.name == name)

    def open_frame(self, *dnns: str) -> int:
        frame = Frame("front", 0)
        frame.received_ns = self.clock.now
        self.ledger.arrived(frame)
        buffer: Any = SimpleNamespace(release=lambda: None)
        return self.ledger.open(frame, buffer, dnns or DNNS, lambda dnn: self.route(self.ledger, dnn))[0]

    def answer(self, number: int, dnn: str, engine: Any) -> None:
        self.ledger.result(number, dnn, None, Timing(0, 0, self.clock.now, 0, 0, 0, 0), engine)


def test_a_lost_engine_is_replaced_at_once_and_the_gap_is_measured() -> None:
    bench = Bench()
    before = bench.serving("lane")
    number = bench.open_frame()
    bench.answer(number, "object", before)
    bench.lose("lane")
    assert [drop.reason for drop in bench.ends.drops] == [DropReason.ENGINE_LOST]
    assert bench.unserved("lane") == (
        DropReason.ENGINE_LOST, "no engine process serves the DNN at this moment (killed by SIGSEGV)"
    )  # fmt: skip
    bench.clock.now += 2 * SECOND
    bench.tick()
    assert bench.serving("lane") is bench.serving("object") is None
    assert (bench.status().level, bench.status().values["gap (ms)"]) == (Level.ERROR, "ongoing")
    bench.settle()
    assert bench.serving("lane") is bench.serving("object") is not before
    assert (bench.status().level, bench.status().values["restarts"]) == (Level.WARN, 1)
    bench.settle(70)
    assert (bench.status().level, bench.status().values["gap (ms)"]) == (Level.OK, "2000")
    assert len(bench.engines) == 1


def test_after_the_second_loss_within_the_window_each_dnn_keeps_an_engine_of_its_own() -> None:
    bench = Bench()
    for _ in range(4):
        bench.lose("lane")
        bench.settle(61)
    assert bench.serving("lane") is bench.serving("object")
    for _ in range(2):
        bench.lose("lane")
        bench.settle()
    lane, other = bench.serving("lane"), bench.serving("object")
    assert lane is not other
    assert (lane.dnns, bench.status("engine cpu lane").level) == (("lane",), Level.WARN)
    bench.settle(600)
    assert bench.serving("lane") is lane


def test_a_dnn_whose_own_engine_is_lost_twice_is_disabled_and_tried_again_with_growing_pauses() -> None:
    bench = Bench()
    for _ in range(4):
        bench.lose("lane")
        bench.settle()
    other = bench.serving("object")
    assert bench.serving("lane") is None
    assert bench.ledger.disabled().keys() == {"lane"}
    reason, text = bench.unserved("lane")
    assert (reason, "next retry in 1 s" in text) == (DropReason.DISABLED, True)
    bench.settle(2)
    assert bench.serving("lane") is not None
    assert not bench.ledger.disabled()
    bench.lose("lane")  # once more is enough
    assert "next retry in 10 s" in bench.unserved("lane")[1]
    bench.settle(11)
    assert bench.serving("lane") is not None
    assert bench.serving("object") is other
    bench.settle(61)  # it works: the pauses begin again
    for _ in range(2):
        bench.lose("lane")
        bench.settle()
    assert "next retry in 1 s" in bench.unserved("lane")[1]


def test_a_hot_standby_takes_over_at_once_and_serves_until_each_dnn_has_its_own_engine() -> None:
    bench = Bench("hot")
    for number in range(2):
        (standby,) = [engine for engine in bench.engines if engine is not bench.serving("lane")]
        assert bench.status().values["standby"] == "hot, ready"
        bench.lose("lane")
        assert bench.serving("lane") is bench.serving("object") is standby
        if number == 0:
            bench.settle()
    bench.settle()
    assert bench.serving("lane") is not bench.serving("object")
    assert {engine.dnns for engine in bench.engines} == {("lane",), ("object",)}


def test_an_engine_that_cannot_be_configured_is_tried_again_after_a_pause() -> None:
    bench = Bench(dnns=("lane",))
    bench.lose("lane")
    for pause_s in (1, 10, 60, 60):
        (engine,) = [each for each in bench.engines if not each.killed]
        bench.handle(engine, messages.Refused("CUDA out of memory", expected=False))
        assert f"CUDA out of memory; next attempt in {pause_s} s" in bench.status().text
        bench.settle()
        bench.clock.now += pause_s * SECOND
        bench.tick()
    bench.settle()
    assert bench.serving("lane") is not None


def test_a_swap_takes_over_when_it_is_committed_and_a_failed_one_changes_nothing() -> None:
    bench, told = Bench("hot"), []
    before = bench.serving("lane")
    failing = bench.swap({"lane": {"model": "a.onnx"}}, lambda: told.append("notified"))
    bench.handle(bench.engines[-1], messages.Refused("no such file", expected=True))
    assert failing.failure == "no such file"
    assert told
    bench.settle()
    swap = bench.swap({"lane": {"model": "b.onnx"}}, lambda: None)
    assert not swap.commit()
    bench.settle()
    assert bench.serving("lane") is before
    number = bench.open_frame()
    assert swap.commit()
    assert bench.serving("lane") is not before
    bench.settle()
    assert before in bench.engines, "it has frames to finish"
    for dnn in DNNS:
        bench.answer(number, dnn, before)
        bench.clock.now += SECOND
        bench.answer(bench.open_frame(dnn), dnn, bench.serving(dnn))
    bench.settle()
    assert before not in bench.engines
    assert not bench.ends.drops
    bench.lose("lane")  # a replacement has the new settings, too
    bench.settle()
    configured = [it for engine in bench.engines for it in engine.sent if isinstance(it, messages.Configure)]
    assert {message.config.dnns["lane"].model for message in configured} == {"b.onnx"}


def test_a_changed_parameter_reaches_engines_that_are_configured_later() -> None:
    bench = Bench("hot")
    bench.update("lane", "score_threshold", 0.75)
    assert [engine.sent[-1].values["score_threshold"] for engine in bench.engines] == [0.75, 0.75]
    swap = bench.swap({"object": {"model": "b.onnx"}}, lambda: None)
    bench.update("lane", "priority", 9)
    bench.settle()
    assert swap.commit()
    updates = {message.dnn: message.values for message in bench.serving("lane").sent
               if isinstance(message, messages.Update)}  # fmt: skip
    assert (updates["lane"]["score_threshold"], updates["lane"]["priority"]) == (0.75, 9)


def test_an_engine_that_does_not_finish_its_frames_is_replaced_when_the_node_stops() -> None:
    bench = Bench()
    engine = bench.serving("lane")
    assert bench.stop(0.0) == []  # it has no frame
    bench.start(bench.new_ledger())
    bench.open_frame()
    assert bench.stop(0.0) == ["engine cpu"]
    assert engine.killed
    assert {drop.reason for drop in bench.ends.drops} == {DropReason.ENGINE_LOST}
    bench.settle()
    assert bench.unserved("lane")[0] is DropReason.SHUTDOWN
    bench.start(bench.new_ledger())
    assert bench.serving("lane") is bench.serving("object") is not None


def hang(bench: Bench, engine: Any, kind: str) -> None:
    now_ns = bench.clock.now
    engine.heartbeat_ns = now_ns if kind == "no heartbeat" else None
    engine.jobs = {"lane": now_ns} if kind == "a job of DNN lane" else {}


@pytest.mark.parametrize("kind", ["no heartbeat", "a job of DNN lane"])
def test_an_engine_that_hangs_is_replaced_but_not_because_the_machine_was_suspended(kind: str) -> None:
    bench = Bench()
    engine = bench.serving("lane")
    bench.clock.now += 3600 * SECOND
    hang(bench, engine, kind)
    bench.clock.now += 3600 * SECOND  # nothing ran
    for _ in range(9):
        bench.tick()
        bench.clock.now += SECOND // 5
    assert bench.serving("lane") is engine
    for _ in range(3):
        bench.clock.now += SECOND // 5
        bench.tick()
    assert bench.serving("lane") is not engine
    assert kind in bench.status().values["last loss"]


def test_receivers_of_the_results_that_a_loss_sets_free_may_use_the_supervisor() -> None:
    """The new engine's result waits for a frame of the lost one; its receiver waits for a thread that asks for more."""
    bench, answered = Bench(), []

    def receive(result: Any) -> None:
        thread = threading.Thread(target=bench.statuses, daemon=True)
        thread.start()
        thread.join(20.0)
        answered.append(not thread.is_alive())

    callbacks = replace(bench.ends.callbacks(), on_result=receive)
    bench.stop(0.0)
    bench.ledger = Ledger({dnn: DnnSettings(("front",)) for dnn in DNNS}, callbacks, bench.clock)
    bench.start(bench.ledger)
    bench.open_frame()
    swap = bench.swap({"lane": {"model": "b.onnx"}}, lambda: None)
    bench.settle()
    before = bench.serving("lane")
    assert swap.commit()
    bench.answer(bench.open_frame("lane"), "lane", bench.serving("lane"))
    assert not answered
    bench.handle(before, messages.Aborting("CUDA error"))
    assert answered == [True]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("step", "end", "abort", "refuse", "time", "swap", "commit", "cancel", "frame", "stop")),
        st.integers(0, 9),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(standby=st.sampled_from(("none", "warm", "hot")), events=EVENTS)
def test_after_any_events_every_dnn_is_served_again_and_every_frame_answered(
    standby: str, events: list[tuple[str, int]]
) -> None:
    bench = Bench(standby)
    swap = None
    for event, number in events:
        engine = bench.engines[number % len(bench.engines)] if bench.engines else None
        if event == "time":
            bench.clock.now += number * SECOND // 2
            bench.tick()
        elif event == "swap":
            swap = bench.swap({DNNS[number % 2]: {"model": f"{number}.onnx"}}, lambda: None)
        elif event in ("commit", "cancel") and swap is not None:
            swap.commit() if event == "commit" else swap.cancel("the test")
        elif event == "frame" and len(bench.routes) == len(DNNS):
            opened = bench.open_frame()
            if number % 2:  # otherwise only the end of the engine answers it
                for dnn in DNNS:
                    bench.answer(opened, dnn, bench.serving(dnn))
        elif event == "stop":
            bench.stop(0.0)
            assert bench.ledger.wait_idle(0.0)
            bench.start(bench.new_ledger())
        elif engine is not None and event == "step" and engine.awaited is not None:
            bench.handle(engine, engine.awaited)
        elif engine is not None and event == "end":
            bench.handle(engine, messages.Ended("killed by SIGKILL"))
        elif engine is not None and event == "abort" and not engine.killed:
            bench.handle(engine, messages.Aborting("CUDA error"))
        elif engine is not None and event == "refuse" and engine.dnns and engine.description is None:
            bench.handle(engine, messages.Refused("out of memory", expected=False))
        for dnn, serving in bench.routes.items():
            assert dnn in serving.dnns
            assert serving.description is not None
        assert len([each for each in bench.engines if not each.killed]) <= 8
    if swap is not None:
        swap.cancel("the test")
    bench.settle(200)
    for dnn in DNNS:
        assert not bench.serving(dnn).killed
    assert bench.stop(0.0) == [] or bench.ledger.wait_idle(0.0)
    bench.settle()
    divided = bench.serving("lane") is not bench.serving("object")
    assert len(bench.engines) == (2 if divided else 1 + (standby != "none")), "an engine is left over"
