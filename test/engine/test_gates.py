"""Which DNNs are held back on a GPU while a more important frame runs. The GPU's part: test/gpu/engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_fakes import WAIT, FakeClock, frame, task, until
from engine_fakes import Gate as Held
from fake_gpu import DEVICE, FakeGpu
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.engine import Engine
from multi_dnn_ros.engine import gates as gates_module
from multi_dnn_ros.engine.gates import Gates
from multi_dnn_ros.engine.inference import Inference
from multi_dnn_ros.engine.policies import POLICIES, Priority, make_policy

AGING = 50


class Word:
    """The gate of a DNN, without a GPU."""

    def __init__(self) -> None:
        self.is_open = True


def of(dnn, at: int = 0) -> Inference:
    waiting = frame()
    waiting.received_ns = at
    return Inference(dnn, (waiting,), at)


def test_a_more_important_frame_closes_the_others_gates_until_it_has_ended() -> None:
    clock = FakeClock()
    low, equal, high = (
        task(name, on_gpu=True, priority=priority, gate=Word()) for name, priority in (("a", 0), ("b", 0), ("c", 5))
    )
    gates = Gates([low, equal, high], Priority(AGING), clock)
    first, second, urgent = of(low, clock.now), of(equal, clock.now), of(high, clock.now)
    gates.begin(first)
    gates.begin(second)
    assert low.gate.is_open
    assert equal.gate.is_open
    gates.begin(urgent)
    assert not low.gate.is_open
    assert not equal.gate.is_open
    assert high.gate.is_open
    gates.end(second)
    assert equal.gate.is_open  # nothing of it runs: what is launched next decides again
    gates.begin(second)
    assert not equal.gate.is_open  # launched while a more important one runs
    gates.end(urgent)
    assert low.gate.is_open
    assert equal.gate.is_open


@given(
    st.sampled_from(list(POLICIES)),
    st.lists(
        st.tuples(st.sampled_from(["begin", "end"]), st.integers(0, 3), st.integers(0, 100)), min_size=1, max_size=40
    ),
)
def test_some_launched_frame_always_runs_and_all_gates_are_open_at_the_end(policy: str, steps: list) -> None:
    clock = FakeClock()
    dnns = [task(str(n), on_gpu=True, priority=n % 3, deadline_ns=100 * n + 1, gate=Word()) for n in range(4)]
    gates = Gates(dnns, Priority(AGING) if policy == "priority" else make_policy(policy), clock)
    launched: dict[int, list[Inference]] = {number: [] for number in range(4)}
    for step, number, pause in steps:
        clock.now += pause
        if step == "begin" and len(launched[number]) < 2:
            launched[number].append(of(dnns[number], clock.now))
            gates.begin(launched[number][-1])
        elif step == "end" and launched[number]:
            gates.end(launched[number].pop(0))
        running = [dnns[number] for number in launched if launched[number]]
        assert not running or any(dnn.gate.is_open for dnn in running)
        assert policy != "fifo" or all(dnn.gate.is_open for dnn in dnns)
    for number in launched:
        for inference in launched[number]:
            gates.end(inference)
    assert all(dnn.gate.is_open for dnn in dnns)


def test_a_gate_that_stays_closed_is_opened_after_the_time_limit(monkeypatch, caplog) -> None:
    monkeypatch.setattr(gates_module, "TIME_LIMIT_S", 0.05)
    low, high = (task(name, on_gpu=True, priority=priority, gate=Word()) for name, priority in (("low", 0), ("b", 1)))
    gates = Gates([low, high], Priority(10**12), FakeClock())
    held = of(low)
    gates.begin(held)
    gates.begin(of(high))
    assert not low.gate.is_open
    until(lambda: low.gate.is_open)
    assert gates.forced == 1
    assert "low" in caplog.text
    gates.begin(of(high))  # this frame is not held back any more
    assert low.gate.is_open
    gates.end(held)
    gates.begin(of(low))  # but the next one is
    assert not low.gate.is_open
    gates.stop()
    assert low.gate.is_open


def test_a_frame_that_its_own_gates_block_opens_them_and_gets_another_stream() -> None:
    """Its stream and a held one share a hardware queue."""
    low, high = (
        task(name, jobs=1, on_gpu=True, priority=priority, gate=Word(), remaining_ns=(1_000_000,))
        for name, priority in (("low", 0), ("high", 1))
    )
    changed: list[str] = []
    gates = Gates([low, high], Priority(10**12), FakeClock(), changed.append)
    gates.begin(of(low))
    blocked = of(high)
    gates.begin(blocked)
    assert not low.gate.is_open
    until(lambda: low.gate.is_open)
    until(lambda: changed)
    assert changed == ["high"]
    gates.end(blocked)
    gates.begin(of(high))  # the next frame holds the others back again
    assert not low.gate.is_open
    gates.stop()


@pytest.mark.parametrize("fails", [False, True])
def test_an_engine_opens_the_gates_when_its_important_frame_ends(
    start: Callable[..., Engine], recorder, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    FakeGpu(monkeypatch)
    held = Held()

    def on_job(index: int) -> None:
        held()
        if fails:
            raise ValueError("a layer raised")

    high = task("high", jobs=1, cameras=("front",), on_gpu=True, priority=1, gate=Word(), on_job=on_job)
    blocker = Held()
    low = task("low", jobs=1, cameras=("rear",), on_gpu=True, gate=Word(), decode=lambda *_: blocker())
    engine = start(high, low, device=DEVICE, policy=Priority(10**12))
    engine.offer(frame("front"))
    held.wait_for_job()
    assert high.gate.is_open
    held.open()
    engine.offer(frame("rear"))
    blocker.wait_for_job()
    blocker.open()
    assert engine.wait_idle(WAIT)
    assert high.gate.is_open
    assert low.gate.is_open
    assert len(recorder.results) == (1 if fails else 2)
