"""What the supervisor does after losses, hangs and swaps, in every order of events; with simulated engines."""

from __future__ import annotations

import os
from typing import Any

from fake_host import Ends, FakeClock
from fake_pipelines import settings as node_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving import messages
from multi_dnn_ros.serving.descriptions import DnnDescription, EngineDescription, Level
from multi_dnn_ros.serving.groups import SupervisionTimes
from multi_dnn_ros.serving.ledger import DnnSettings, Ledger
from multi_dnn_ros.serving.supervised_engine import Phase
from multi_dnn_ros.serving.supervisor import Supervisor
from multi_dnn_ros.serving.swap import SwapPhase

DNNS = ("lane", "object")
SECOND = 1_000_000_000


class FakeEngine:
    """The part of a SupervisedEngine that the supervisor uses."""

    def __init__(self) -> None:
        self.device, self.pid = "cpu", os.getpid()
        self.phase = Phase.STARTING
        self.since_ns = self.started_ns = self.heartbeat_since_ns = 0
        self.dnns: tuple[str, ...] = ()
        self.description: EngineDescription | None = None
        self.memory: dict[str, int] = {}
        self.sent: list[Any] = []
        self.state = self
        self.killed = False

    is_unbound = property(lambda self: self.phase in (Phase.STARTING, Phase.READY))

    def running_jobs(self) -> dict[str, int]:
        return {}

    def enter(self, phase: Phase, now_ns: int) -> None:
        self.phase, self.since_ns = phase, now_ns

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def start_serving(self, ledger: Ledger, runtime: Any) -> None:
        assert not self.killed
        self.sent.append(messages.Start(runtime))

    def stop_serving(self, timeout_s: float) -> None:
        self.sent.append(messages.Stop(timeout_s))

    def kill(self, cause: str) -> None:
        self.killed = True

    def wait(self, timeout_s: float) -> bool:
        return True

    @property
    def awaited(self) -> Any:
        """The message that a working engine would give next."""
        description = EngineDescription("cpu", "a processor", 1, {dnn: DnnDescription((), {}) for dnn in self.dnns})
        if self.killed:
            return messages.Ended("killed")
        return {
            Phase.STARTING: messages.Ready(),
            Phase.CONFIGURING: messages.Configured(description),
            Phase.STOPPING: messages.Stopped(()),
            Phase.DRAINING: messages.Stopped(()),
        }.get(self.phase)


class Bench:
    """A supervisor of one device with both DNNs, which is serving."""

    def __init__(self, standby: str = "none", dnns: tuple[str, ...] = DNNS) -> None:
        self.clock, self.ends = FakeClock(), Ends()
        self.engines: list[FakeEngine] = []
        first = self.start("cpu")
        first.dnns, first.phase = dnns, Phase.CONFIGURED
        config = node_settings(*dnns, standby=standby)
        times = SupervisionTimes(fault_window_s=60.0, restart_s=(0.0, 1.0, 5.0), retry_s=(10.0, 60.0))
        engines: Any = {"cpu": first}
        start: Any = self.start
        self.supervisor = Supervisor({"cpu": config}, engines, start, lambda *_: None, times, self.clock)
        self.ledger = Ledger({dnn: DnnSettings(("front",)) for dnn in dnns}, self.ends.callbacks(), self.clock)
        self.supervisor.start(self.ledger)
        self.settle()

    def start(self, device: str) -> FakeEngine:
        self.engines.append(FakeEngine())
        return self.engines[-1]

    def tell(self, engine: FakeEngine, message: Any) -> None:
        self.supervisor.handle(engine, message)  # type: ignore[arg-type]
        if isinstance(message, messages.Ended):
            self.engines.remove(engine)

    def settle(self, seconds: float = 0.0) -> None:
        """Let time pass, and let every engine do what is expected of it."""
        for _ in range(round(seconds) + 1):
            while pending := [engine for engine in self.engines if engine.awaited is not None]:
                self.tell(pending[0], pending[0].awaited)
            self.supervisor.tick()
            if seconds:
                self.clock.now += SECOND

    def serving(self, dnn: str) -> FakeEngine | None:
        return self.supervisor.routes.get(dnn)  # type: ignore[return-value]

    def lose(self, dnn: str, cause: str = "killed by SIGSEGV") -> None:
        engine = self.serving(dnn)
        assert engine is not None
        self.tell(engine, messages.Ended(cause))

    def status(self, name: str = "engine cpu") -> Any:
        return next(status for status in self.supervisor.statuses() if status.name == name)


def test_a_lost_engine_is_replaced_at_once() -> None:
    bench = Bench()
    before = bench.serving("lane")
    bench.lose("lane")
    assert bench.supervisor.unserved("lane") == (
        DropReason.ENGINE_LOST, "no engine process serves the DNN at this moment (killed by SIGSEGV)"
    )  # fmt: skip
    assert bench.status().level is Level.ERROR
    bench.settle()
    assert bench.serving("lane") is bench.serving("object") is not before
    assert bench.status().level is Level.WARN
    assert bench.status().values["restarts"] == 1
    bench.settle(70)
    assert bench.status().level is Level.WARN  # no result yet
    assert len(bench.engines) == 1


def test_after_the_second_loss_each_dnn_keeps_an_engine_of_its_own() -> None:
    bench = Bench()
    for _ in range(2):
        bench.lose("lane")
        bench.settle()
    lane, other = bench.serving("lane"), bench.serving("object")
    assert lane is not other
    assert lane is not None
    assert (lane.dnns, bench.status("engine cpu lane").level) == (("lane",), Level.WARN)
    bench.settle(600)
    assert bench.serving("lane") is lane


def test_losses_outside_the_window_divide_nothing() -> None:
    bench = Bench()
    for _ in range(4):
        bench.lose("lane")
        bench.settle(61)
    assert bench.serving("lane") is bench.serving("object")


def test_a_dnn_whose_own_engine_is_lost_twice_is_disabled_and_tried_again_with_growing_pauses() -> None:
    bench = Bench()
    for _ in range(4):
        bench.lose("lane")
        bench.settle()
    other = bench.serving("object")
    assert bench.serving("lane") is None
    assert bench.ledger.statistics().disabled.keys() == {"lane"}
    reason, text = bench.supervisor.unserved("lane")
    assert (reason, "next retry in 10 s" in text) == (DropReason.DISABLED, True)
    bench.settle(11)
    assert bench.serving("lane") is not None
    assert not bench.ledger.statistics().disabled
    bench.lose("lane")  # once more is enough
    assert "next retry in 60 s" in bench.supervisor.unserved("lane")[1]
    bench.settle(61)
    assert bench.serving("lane") is not None
    assert bench.serving("object") is other
    bench.settle(61)  # it works: the pauses begin again
    for _ in range(2):
        bench.lose("lane")
        bench.settle(2)
    assert "next retry in 10 s" in bench.supervisor.unserved("lane")[1]


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
    assert standby not in bench.engines
    assert {engine.dnns for engine in bench.engines} == {("lane",), ("object",), ()}, "the next standby is warm"


def test_an_engine_that_cannot_be_configured_is_tried_again_after_a_pause() -> None:
    bench = Bench(dnns=("lane",))
    bench.lose("lane")
    for pause_s in (1, 5, 5):
        (engine,) = [each for each in bench.engines if not each.killed]
        bench.tell(engine, messages.Ready())
        bench.tell(engine, messages.Refused("CUDA out of memory", expected=False))
        assert f"CUDA out of memory; next attempt in {pause_s} s" in bench.status().text
        bench.settle()
        bench.clock.now += pause_s * SECOND
        bench.supervisor.tick()
    bench.settle()
    assert bench.serving("lane") is not None


def test_a_swap_takes_over_when_it_is_committed_and_a_failed_one_changes_nothing() -> None:
    bench, told = Bench("hot"), []
    before = bench.serving("lane")
    failing = bench.supervisor.begin_swap({"lane": {"model": "a.onnx"}}, lambda: told.append("notified"))
    engine = bench.engines[-1]
    bench.tell(engine, messages.Ready())
    bench.tell(engine, messages.Refused("no such file", expected=True))
    assert (failing.state().phase, failing.state().failure) == (SwapPhase.FAILED, "no such file")
    assert told
    bench.settle()
    swap = bench.supervisor.begin_swap({"lane": {"model": "b.onnx"}}, lambda: None)
    assert not swap.commit()
    bench.settle()
    assert bench.serving("lane") is before
    assert swap.commit()
    after = bench.serving("lane")
    assert after is not before
    bench.settle()
    assert before not in bench.engines
    bench.lose("lane")  # a replacement has the new settings, too
    bench.settle()
    configured = [message for engine in bench.engines for message in engine.sent
                  if isinstance(message, messages.Configure)]  # fmt: skip
    assert {message.config.dnns["lane"].model for message in configured} == {"b.onnx"}


def test_stopping_and_starting_again_keeps_the_engine() -> None:
    bench = Bench()
    engine = bench.serving("lane")
    assert engine is not None
    hanging = bench.supervisor.stop(0.0)  # no answer in time: it hangs
    assert hanging == [f"engine process {engine.pid}"]
    assert engine.killed
    bench.settle()
    assert bench.supervisor.unserved("lane")[0] is DropReason.SHUTDOWN
    bench.supervisor.start(bench.ledger)
    assert bench.serving("lane") is bench.serving("object") is not None


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("step", "end", "abort", "refuse", "time", "swap", "commit", "cancel")), st.integers(0, 9)
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(standby=st.sampled_from(("none", "warm", "hot")), events=EVENTS)
def test_after_any_events_every_dnn_is_served_again(standby: str, events: list[tuple[str, int]]) -> None:
    bench = Bench(standby)
    swap = None
    for event, number in events:
        engine = bench.engines[number % len(bench.engines)] if bench.engines else None
        if event == "time":
            bench.clock.now += number * SECOND // 2
            bench.supervisor.tick()
        elif event == "swap":
            swap = bench.supervisor.begin_swap({DNNS[number % 2]: {"model": f"{number}.onnx"}}, lambda: None)
        elif event in ("commit", "cancel") and swap is not None:
            swap.commit() if event == "commit" else swap.cancel("the test")
        elif engine is not None and event == "step" and engine.awaited is not None:
            bench.tell(engine, engine.awaited)
        elif engine is not None and event == "end":
            bench.tell(engine, messages.Ended("killed by SIGKILL"))
        elif engine is not None and event == "abort" and not engine.killed:
            bench.tell(engine, messages.Aborting("CUDA error"))
        elif engine is not None and event == "refuse" and engine.phase is Phase.CONFIGURING:
            bench.tell(engine, messages.Refused("out of memory", expected=False))
        for dnn, serving in bench.supervisor.routes.items():
            assert dnn in serving.dnns
            assert serving.phase is Phase.SERVING
        assert len([each for each in bench.engines if not each.killed]) <= 8
    if swap is not None:
        swap.cancel("the test")
    bench.settle(200)
    for dnn in DNNS:
        serving = bench.serving(dnn)
        assert serving is not None
        assert not serving.killed
    groups = {id(bench.serving(dnn)) for dnn in DNNS}
    assert len(bench.engines) == len(groups) + (standby != "none"), "an engine is left over"
