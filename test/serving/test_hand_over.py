"""One process takes over from another: any order of events keeps the accounts exact and the results in order."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.reports import Callbacks
from multi_dnn_ros.engine.task import DropReason, Result, Timing
from multi_dnn_ros.serving import wire
from multi_dnn_ros.serving.accounts import Accounts
from multi_dnn_ros.serving.hand_over import HandOver
from multi_dnn_ros.serving.process_end import End
from multi_dnn_ros.serving.served_process import ServedProcess

DNNS = ("lane", "object")
CAMERAS = ("front", "rear")
TIMING = Timing(0, 0, 0, 0, 0, 0, 0)


class Buffer:
    """A slot. users: the accounts, and processes that may read it."""

    index = 0

    def __init__(self) -> None:
        self.users = 1

    def output(self, dnn: str) -> np.ndarray:
        return np.zeros(0, np.uint8)

    def hold(self) -> None:
        self.users += 1

    def release(self) -> None:
        self.users -= 1
        assert self.users >= 0


class FakeProcess:
    """An engine process whose messages the test sends. waiting: (number, DNN) without an answer."""

    pid = 1

    def __init__(self, label: str, dnns: Sequence[str], pools: Mapping[str, Any], on_message: Any, on_end: Any) -> None:
        self.status = self
        self.waiting: list[tuple[int, str]] = []
        self.stopped = self.ended = False
        self._on_message, self._on_end = on_message, on_end

    def send(self, message: Any) -> None:
        if isinstance(message, wire.Offer):
            assert not self.stopped, "a frame was sent after Stop"
            self.waiting += [(message.number, dnn) for dnn in message.dnns]
        elif isinstance(message, wire.Stop):
            self.stopped = True

    def close(self) -> None:
        """Of the shared status."""

    def answer(self, index: int, *, drops: bool) -> None:
        """Answer a frame; those of one DNN are answered in their order."""
        if self.ended or not self.waiting:
            return
        dnn = self.waiting[index % len(self.waiting)][1]
        number, _ = found = next(entry for entry in self.waiting if entry[1] == dnn)
        self.waiting.remove(found)
        if drops:
            self._on_message(self, wire.FrameDropped(number, dnn, DropReason.DNN_ERROR, "raised"))
        else:
            self._on_message(self, wire.FrameResult(number, dnn, TIMING, pickle.dumps(number), ()))

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self._on_end(self, End("killed by SIGKILL", None, 9, False, (), ""))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["offer", "offer", "former", "former", "new", "new", "drop former", "drop new", "route", "stop", "end"]
        ),
        st.integers(0, 7),
    ),
    max_size=60,
)


@given(before=st.integers(0, 4), steps=STEPS)
def test_every_frame_is_answered_once_and_in_order(before: int, steps: list[tuple[str, int]]) -> None:
    """before: number of frames before the first step. The threads of the cameras see the new routes at any time."""
    results: list[tuple[str, str, int]] = []
    accounts = Accounts(
        dict.fromkeys(DNNS, CAMERAS),
        Callbacks(lambda it: results.append((it.dnn, it.frame.camera, it.output)), _ignore, _ignore),
        lambda: 0,
    )
    gaps: dict[str, float] = {}
    former, former_process = _serve(lambda process: accounts)
    new, new_process = _serve(lambda process: HandOver(accounts, former, gaps.__setitem__))
    buffers: list[Buffer] = []
    routed_to_new: set[str] = set()  # cameras

    def offer(camera: str) -> None:
        accounts.arrived(camera)
        frame, buffer = Frame(camera, 0, np.zeros((1, 1, 3), np.uint8)), Buffer()
        buffers.append(buffer)
        number = accounts.open(frame, buffer, DNNS)
        target = new if camera in routed_to_new else former
        if not target.offer(number, frame, buffer, DNNS) and not new.offer(number, frame, buffer, DNNS):
            raise AssertionError("nothing serves")

    for index in range(before):
        offer(CAMERAS[index % 2])
    for kind, pick in steps:
        if kind == "offer":
            offer(CAMERAS[pick % 2])
        elif kind == "route":
            routed_to_new.add(CAMERAS[pick % 2])
        elif kind == "stop" and not former_process.stopped:
            former.stop_serving(1.0)
        elif kind == "end":
            former_process.end()
        elif kind.endswith("former"):
            former_process.answer(pick, drops=kind.startswith("drop"))
        elif kind.endswith("new"):
            new_process.answer(pick, drops=kind.startswith("drop"))
    former.stop_serving(1.0)
    for process in (former_process, new_process):
        while process.waiting and not process.ended:
            process.answer(0, drops=False)
    former_process.end()
    for (dnn, camera), figures in accounts.statistics().streams.items():
        assert figures.offered == figures.published + sum(figures.dropped.values())
        numbers = [number for name, where, number in results if (name, where) == (dnn, camera)]
        assert numbers == sorted(numbers)
        assert len(numbers) == figures.published
    assert not [buffer.users for buffer in buffers if buffer.users], "a slot is still held"
    assert gaps.keys() <= {dnn for dnn, _, _ in results}


def test_the_gap_is_reported_once_if_a_result_arrives_while_others_are_passed_on() -> None:
    results: list[int] = []
    gaps: list[str] = []

    def on_result(result: Result) -> None:
        results.append(result.output)
        if result.output == 2:  # of the new process; it has waited for the former one
            later.start()
            later.join(0.2)  # until the next result of the new process waits for the lock

    accounts = Accounts({"lane": ("front",)}, Callbacks(on_result, _ignore, _ignore), lambda: 0)
    former, former_process = _serve(lambda process: accounts)
    new, new_process = _serve(lambda process: HandOver(accounts, former, lambda dnn, gap_ms: gaps.append(dnn)))
    later = threading.Thread(target=new_process.answer, args=(0,), kwargs={"drops": False})
    for process in (former, new, new):
        _offer(accounts, process)
    former.stop_serving(1.0)
    new_process.answer(0, drops=False)
    assert results == []
    former_process.answer(0, drops=False)
    later.join()
    assert results == [1, 2, 3]
    assert gaps == ["lane"]


def test_no_frame_is_sent_after_stop() -> None:
    class Slow(FakeProcess):
        """Is told to stop while a frame is sent; FakeProcess asserts that no frame follows."""

        def send(self, message: Any) -> None:
            if isinstance(message, wire.Offer):
                stopping.start()
                stopping.join(0.2)  # until it waits for the frame
            super().send(message)

    accounts = Accounts({"lane": ("front",)}, Callbacks(_ignore, _ignore, _ignore), lambda: 0)
    served, process = _serve(lambda process: accounts, Slow)
    stopping = threading.Thread(target=served.stop_serving, args=(1.0,))
    assert _offer(accounts, served)
    stopping.join()
    assert process.stopped
    assert process.waiting == [(1, "lane")]
    assert not _offer(accounts, served)


def _offer(accounts: Accounts, process: ServedProcess) -> bool:
    """Offer a frame of camera front to DNN lane."""
    accounts.arrived("front")
    frame, buffer = Frame("front", 0, np.zeros((1, 1, 3), np.uint8)), Buffer()
    number = accounts.open(frame, buffer, ("lane",))
    return process.offer(number, frame, buffer, ("lane",))


def _serve(
    outcomes: Callable[[ServedProcess], Any], kind: type[FakeProcess] = FakeProcess
) -> tuple[ServedProcess, FakeProcess]:
    made: list[FakeProcess] = []

    def make(*arguments: Any) -> FakeProcess:
        made.append(kind(*arguments))
        return made[0]

    process = ServedProcess(make, "engine", DNNS, {}, _ignore)  # type: ignore[arg-type]
    process.start_serving(outcomes(process), {})
    return process, made[0]


def _ignore(*arguments: Any) -> None:
    pass
