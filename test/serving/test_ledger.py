"""The ledger: exactly one answer per image and DNN, results in order, buffers released once and not too early."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_host import Ends, FakeClock
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DropReason, Result, Timing
from multi_dnn_ros.serving.ledger import DnnSettings, Ledger

DNNS = ("lane", "object")
CAMERAS = ("front", "rear")
MS = 1_000_000


class Buffer:
    """Memory that must be released once, when no engine reads it."""

    def __init__(self) -> None:
        self.readers: set[object] = set()
        self.released = False

    def output(self, dnn: str) -> None: ...

    def release(self) -> None:
        assert not self.released, "released twice"
        assert not self.readers, "released while an engine may read it"
        self.released = True


def timing(frame: Frame, finished_ns: int = 0) -> Timing:
    return Timing(frame.received_ns, 0, finished_ns, 0, 0, 0, 0)


class LedgerMachine(RuleBasedStateMachine):
    """Images arrive, are handed to one of two engines, and are answered in any order; engines are lost and end."""

    def __init__(self) -> None:
        super().__init__()
        self.ends, self.clock = Ends(), FakeClock()
        callbacks = replace(self.ends.callbacks(), on_result=self._on_result)
        self.ledger = Ledger({dnn: DnnSettings(CAMERAS) for dnn in DNNS}, callbacks, self.clock)
        self.arrived = 0
        self.frames: dict[int, tuple[Frame, Buffer]] = {}
        self.sent: list[tuple[int, str, object]] = []  # not answered by their engine yet
        self.published: dict[tuple[str, str], list[int]] = {}
        self.raises = False

    def _on_result(self, result: Result) -> None:
        assert isinstance(result.frame.context, int)
        self.published.setdefault((result.dnn, result.frame.camera), []).append(result.frame.context)
        if self.raises:
            raise ValueError("a message that cannot be built")

    @rule(camera=st.sampled_from(CAMERAS), engine=st.sampled_from(("first", "second", None)))
    def arrive(self, camera: str, engine: str | None) -> None:
        self.clock.now += 10 * MS
        self.arrived += 1
        frame = Frame(camera, 0, context=self.arrived)
        frame.received_ns = self.clock.now
        dnns = self.ledger.arrived(frame)
        if engine is None or not dnns:
            self.ledger.lose(frame, dnns, DropReason.OVERWRITTEN, "")
            return
        buffer = Buffer()
        number, engines = self.ledger.open(frame, buffer, dnns, lambda dnn: engine)
        assert engines == {engine: list(dnns)}
        self.frames[number] = frame, buffer
        buffer.readers = set(dnns)
        self.sent += [(number, dnn, engine) for dnn in dnns]

    @rule(data=st.data(), drops=st.booleans(), raises=st.booleans())
    def answer(self, data: st.DataObject, drops: bool, raises: bool) -> None:
        if not self.sent:
            return
        number, dnn, engine = self.sent[data.draw(st.integers(0, len(self.sent) - 1))]
        camera = self.frames[number][0].camera  # an engine answers the frames of a stream in order
        number = next(n for n, *of in self.sent if of == [dnn, engine] and self.frames[n][0].camera == camera)
        self.sent.remove((number, dnn, engine))
        frame, buffer = self.frames[number]
        buffer.readers.discard(dnn)
        self.raises = raises
        if drops:
            self.ledger.drop(number, dnn, DropReason.OVERWRITTEN, "", engine)
        else:
            self.ledger.result(number, dnn, None, timing(frame), engine)
        assert self.ledger.buffer(number, dnn, engine) is None

    @rule(engine=st.sampled_from(("first", "second")), ends=st.booleans())
    def lose_engine(self, engine: str, ends: bool) -> None:
        if not ends:
            self.ledger.engine_lost(engine, "killed")
            return
        for number, dnn, other in list(self.sent):
            if other == engine:
                self.frames[number][1].readers.discard(dnn)
                self.sent.remove((number, dnn, other))
        self.ledger.engine_lost(engine, "killed", ended=True)

    @rule(dnn=st.sampled_from(DNNS), enabled=st.booleans())
    def switch(self, dnn: str, enabled: bool) -> None:
        self.ledger.update(dnn, enabled=enabled)

    @rule()
    def drop_all(self) -> None:
        self.ledger.drop_unanswered(DropReason.SHUTDOWN, "stopped")
        assert self.ledger.wait_idle(0.0)

    @invariant()
    def counts_add_up(self) -> None:
        figures = self.ledger.statistics().values()
        assert sum(it.offered for it in figures) == self.arrived * len(DNNS)
        for it in figures:
            assert it.pending >= 0
            assert it.offered == it.published + sum(it.dropped.values()) + it.pending

    @invariant()
    def results_are_in_order(self) -> None:
        for numbers in self.published.values():
            assert numbers == sorted(set(numbers))

    def teardown(self) -> None:
        for engine in ("first", "second"):
            self.lose_engine(engine, ends=True)
        assert self.ledger.wait_idle(0.0)
        assert all(buffer.released for _, buffer in self.frames.values())
        assert not any(it.pending for it in self.ledger.statistics().values())
        self.counts_add_up()


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger({"object": DnnSettings(("front",), deadline_ns=20 * MS)}, Ends().callbacks(), FakeClock())


def open_frame(ledger: Ledger, engine: object) -> int:
    frame = Frame("front", 0)
    frame.received_ns = ledger._clock()
    dnns = ledger.arrived(frame)
    return ledger.open(frame, Buffer(), dnns, lambda dnn: engine)[0]


def test_results_of_the_next_engine_wait_for_the_frames_of_the_previous_one(ledger: Ledger) -> None:
    numbers = [open_frame(ledger, engine) for engine in ("old", "old", "new")]
    for number, engine in zip(numbers, ("old", "old", "new"), strict=True):
        ledger._clock.now += 5 * MS  # type: ignore[attr-defined]
        if number != numbers[1]:
            ledger.result(number, "object", None, timing(Frame("front", 0)), engine)
    assert ledger.statistics()["object", "front"].published == 1
    ledger.engine_lost("old", "killed")
    figures = ledger.statistics()["object", "front"]
    assert (figures.published, figures.dropped) == (2, {DropReason.ENGINE_LOST: 1})


def test_a_disabled_dnn_is_counted_as_disabled_until_its_retry(ledger: Ledger) -> None:
    frame = Frame("front", 0)
    ledger.failure(Failure("object", "5 failures in a row", 5, disabled=True, retry_s=1.0))
    assert ledger.wanted_by(("object",)) == ()
    ledger.lose(frame, ("object",), DropReason.OVERWRITTEN, "")
    ledger.lose(frame, ("object",), DropReason.BAD_IMAGE, "")
    assert ledger.statistics()["object", "front"].dropped == {
        DropReason.DISABLED: 1, DropReason.BAD_IMAGE: 1
    }  # fmt: skip
    assert ledger.disabled() == {"object": "5 failures in a row"}
    ledger._clock.now += 1000 * MS  # type: ignore[attr-defined]
    assert ledger.wanted_by(("object",)) == ("object",)


def test_late_results_are_deadline_misses_and_predict_the_next_start(ledger: Ledger) -> None:
    clock = ledger._clock
    for service_ms in (10, 30):
        number = open_frame(ledger, "engine")
        assert (ledger.next_start_ns("front", ("object",)) == 0) == (service_ms == 10)
        arrived_ns, clock.now = clock.now, clock.now + service_ms * MS  # type: ignore[attr-defined]
        frame = Frame("front", 0)
        frame.received_ns = arrived_ns
        ledger.result(number, "object", None, timing(frame, clock.now), "engine")  # type: ignore[attr-defined]
        assert ledger.next_start_ns("front", ("object",)) == 0  # it has no frame
    assert ledger.statistics()["object", "front"].deadline_misses == 1
    open_frame(ledger, "engine")
    assert ledger.next_start_ns("front", ("object",)) == clock() + round(0.875 * 10 * MS)


@given(rate_hz=st.floats(0.5, 100.0), gaps_ms=st.lists(st.integers(0, 400), min_size=2, max_size=100))
def test_a_rate_limit_holds_on_average(rate_hz: float, gaps_ms: list[int]) -> None:
    """At most 1 + (T + 1.25 P) / P images are accepted within any time T, P being the period."""
    accepted = times_accepted(rate_hz, [gap_ms * MS for gap_ms in gaps_ms])
    period_ns = 1e9 / rate_hz
    for number, begin in enumerate(accepted):
        assert len(accepted) - number <= 1 + (accepted[-1] - begin + 1.25 * period_ns) / period_ns + 1e-6


@pytest.mark.parametrize("jitter_ms", [0, 7])
def test_a_camera_as_fast_as_its_limit_loses_nothing(jitter_ms: int) -> None:
    gaps_ns = [33_333_333 + (-1) ** number * jitter_ms * MS for number in range(300)]
    assert len(times_accepted(30.0, gaps_ns)) == 300


def times_accepted(rate_hz: float, gaps_ns: list[int]) -> list[int]:
    ledger = Ledger({"object": DnnSettings(("front",), max_rate_hz=rate_hz)}, Ends().callbacks())
    now_ns, accepted = 10**9, []
    for gap_ns in gaps_ns:
        now_ns += gap_ns
        frame = Frame("front", 0)
        frame.received_ns = now_ns
        accepted += [now_ns] * len(ledger.arrived(frame))
    return accepted
