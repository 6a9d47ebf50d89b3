"""One process takes over from another: any order of events keeps the accounts exact and the results in order."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_pipelines import settings
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.reports import Callbacks, Failure
from multi_dnn_ros.engine.task import DropReason, Result, Timing
from multi_dnn_ros.serving import wire
from multi_dnn_ros.serving.accounts import Accounts
from multi_dnn_ros.serving.action_executor import ProcessTemplate
from multi_dnn_ros.serving.device_outcomes import DeviceOutcomes
from multi_dnn_ros.serving.engine_reports import OutcomeSender
from multi_dnn_ros.serving.hand_over import HandOver
from multi_dnn_ros.serving.host import EngineDescription
from multi_dnn_ros.serving.process_end import End
from multi_dnn_ros.serving.process_host import ProcessHost, _Serving
from multi_dnn_ros.serving.routes import CameraRoutes
from multi_dnn_ros.serving.served_process import ServedProcess
from multi_dnn_ros.serving.slots import SlotLayout, SlotPool
from multi_dnn_ros.serving.supervised_processes import SupervisedProcesses
from multi_dnn_ros.serving.supervision.states import Phase, SupervisionTimes

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

    def reserve_output(self, dnn: str, size: int) -> None:
        pass

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
        """Close the shared status, which this object stands for, too."""

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

    def fail(self, failure: Failure) -> None:
        self._on_message(self, wire.Failed(failure))

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self._on_end(self, End("killed by SIGKILL", None, 9, (), ""))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "offer",
                "offer",
                "previous",
                "previous",
                "new",
                "new",
                "drop previous",
                "drop new",
                "route",
                "stop",
                "end",
            ]
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
        Callbacks(lambda each: results.append((each.dnn, each.frame.camera, each.output)), _ignore, _ignore),
        lambda: 0,
    )
    gaps: dict[str, float] = {}
    previous, previous_process = _serve(lambda process: accounts)
    new, new_process = _serve(lambda process: HandOver(accounts, previous, gaps.__setitem__))
    buffers: list[Buffer] = []
    routed_to_new: set[str] = set()  # cameras

    def offer(camera: str) -> None:
        accounts.arrived(camera)
        frame, buffer = Frame(camera, 0, np.zeros((1, 1, 3), np.uint8)), Buffer()
        buffers.append(buffer)
        number = accounts.open(frame, buffer, DNNS)
        target = new if camera in routed_to_new else previous
        if not target.offer(number, frame, buffer, DNNS) and not new.offer(number, frame, buffer, DNNS):
            raise AssertionError("nothing serves")

    for index in range(before):
        offer(CAMERAS[index % 2])
    for kind, pick in steps:
        if kind == "offer":
            offer(CAMERAS[pick % 2])
        elif kind == "route":
            routed_to_new.add(CAMERAS[pick % 2])
        elif kind == "stop" and not previous_process.stopped:
            previous.stop_serving(1.0)
        elif kind == "end":
            previous_process.end()
        elif kind.endswith("previous"):
            previous_process.answer(pick, drops=kind.startswith("drop"))
        elif kind.endswith("new"):
            new_process.answer(pick, drops=kind.startswith("drop"))
    previous.stop_serving(1.0)
    for process in (previous_process, new_process):
        while process.waiting and not process.ended:
            process.answer(0, drops=False)
    previous_process.end()
    for (dnn, camera), figures in accounts.statistics().by_dnn_and_camera.items():
        assert figures.offered == figures.published + sum(figures.dropped.values())
        numbers = [output for result_dnn, source, output in results if (result_dnn, source) == (dnn, camera)]
        assert numbers == sorted(numbers)
        assert len(numbers) == figures.published
    assert not [buffer.users for buffer in buffers if buffer.users], "a slot is still held"
    assert gaps.keys() <= {dnn for dnn, _, _ in results}


def test_the_gap_is_reported_once_if_a_result_arrives_while_others_are_passed_on() -> None:
    results: list[int] = []
    gaps: list[str] = []

    def on_result(result: Result) -> None:
        results.append(result.output)
        if result.output == 2:  # of the new process; it has waited for the previous one
            later.start()
            later.join(0.2)  # until the next result of the new process waits for the lock

    accounts = Accounts({"lane": ("front",)}, Callbacks(on_result, _ignore, _ignore), lambda: 0)
    previous, previous_process = _serve(lambda process: accounts)
    new, new_process = _serve(lambda process: HandOver(accounts, previous, lambda dnn, gap_ms: gaps.append(dnn)))
    later = threading.Thread(target=new_process.answer, args=(0,), kwargs={"drops": False})
    for process in (previous, new, new):
        _offer(accounts, process)
    previous.stop_serving(1.0)
    new_process.answer(0, drops=False)
    assert results == []
    previous_process.answer(0, drops=False)
    later.join()
    assert results == [1, 2, 3]
    assert gaps == ["lane"]


@pytest.mark.parametrize("finishes", [True, False])
def test_a_failure_of_a_process_that_finishes_its_frames_disables_no_dnn(finishes: bool) -> None:
    """Another process has taken over the DNN, and may serve it with another model."""
    failures: list[Failure] = []
    accounts = Accounts({"lane": ("front",)}, Callbacks(_ignore, _ignore, failures.append), lambda: 0)
    previous, process = _serve(lambda process: accounts)
    if finishes:
        previous.stop_serving(1.0)
    process.fail(Failure("lane", "it raised", 5, disabled=True, retry_s=600.0))
    assert [failure.message for failure in failures] == ["it raised"]
    assert accounts.enabled_dnns("front") == (("lane",) if finishes else ())


def test_no_frame_is_sent_after_stop() -> None:
    class Slow(FakeProcess):
        """Must stop while a frame is being sent; FakeProcess asserts that no frame follows."""

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


def test_a_process_that_does_not_finish_its_frames_is_killed() -> None:
    class Hanging(FakeProcess):
        cause = ""

        def last_heartbeat_ns(self) -> int:
            return time.monotonic_ns()

        def image_since_ns(self) -> int | None:
            return None

        def running_jobs(self) -> dict[str, int]:
            return {}

        def kill(self, cause: str) -> None:
            self.cause = self.cause or cause

        def wait(self, timeout_s: float) -> bool:
            return True

    config = settings("object", stop_timeout_s=0.5)
    served, process = _serve(_ignore, Hanging)
    template = ProcessTemplate(config, _ignore, {}, Hanging)  # type: ignore[arg-type]
    engines = SupervisedProcesses(template, EngineDescription("cpu", "", 1, {}), SupervisionTimes(), served)
    with engines.lock:
        (state,) = engines._supervisor.processes.values()
        state.phase, state.since_ns = Phase.DRAINING, time.monotonic_ns() - 1_600_000_000
        engines._check_processes()
    engines.close(1.0)
    assert process.cause == "hung: it did not finish its frames within 1.5 s (parameter stop_timeout_s plus 1 s)"


@pytest.mark.parametrize("slow", [True, False])
def test_a_process_is_not_blamed_if_the_node_does_not_read_that_it_has_stopped(slow: bool) -> None:
    """slow: publishing a result takes longer than stop_timeout_s."""
    publishing, stopped = threading.Event(), threading.Event()

    class Unread(FakeProcess):
        def last_heartbeat_ns(self) -> int:
            return time.monotonic_ns()

        def image_since_ns(self) -> int | None:
            return None

        def running_jobs(self) -> dict[str, int]:
            return {}

        def kill(self, cause: str) -> None:
            killed.append(cause)

        def wait(self, timeout_s: float) -> bool:
            return True

    def publish(result: Result) -> None:
        publishing.set()
        assert not slow or stopped.wait(60.0)

    killed: list[str] = []
    accounts = Accounts({"lane": ("front",)}, Callbacks(publish, _ignore, _ignore), lambda: 0)
    served, process = _serve(lambda process: accounts, Unread)
    template = ProcessTemplate(settings("lane"), _ignore, {}, Unread)  # type: ignore[arg-type]
    engines = SupervisedProcesses(template, EngineDescription("cpu", "", 1, {}), SupervisionTimes(), served)
    engines.start(accounts)
    assert _offer(accounts, served)
    reader = threading.Thread(target=process.answer, args=(0,), kwargs={"drops": False})
    reader.start()
    assert publishing.wait(60.0)
    assert engines.stop(0.4) == ["engine process 1"]
    stopped.set()
    reader.join()
    engines.close(1.0)
    late = "it did not stop within 0.4 s (parameter stop_timeout_s)"
    unread = ", or its report was not read in time: the node published results for 0.4 s of this time"
    assert killed[0] == (f"{late}{unread}" if slow else f"hung: {late}")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_frame_moves_to_a_process_that_has_it_already_for_another_dnn(order: tuple[int, int]) -> None:
    """This happens when DNNs are merged into a serving process while the thread of a camera offers a frame."""
    rig = OfferRig()
    common, common_process = _serve(lambda process: rig.accounts)
    single, _ = _serve(lambda process: rig.accounts)
    before = ((common, ("lane",)), (single, ("object",)))
    rig.routes = [CameraRoutes(tuple(before[index] for index in order)), CameraRoutes(((common, DNNS),))]
    single.stop_serving(1.0)
    rig.offer()
    assert sorted(common_process.waiting) == [(1, "lane"), (1, "object")]
    while common_process.waiting:
        common_process.answer(0, drops=False)
    assert rig.counts() == {"lane": (1, {}), "object": (1, {})}
    assert len(rig.pool.free) == 2, "a slot is still held"
    rig.pool.close()


def test_a_frame_that_is_offered_while_the_engine_stops_is_counted_as_shutdown() -> None:
    rig = OfferRig()
    process, _ = _serve(lambda process: rig.accounts)
    stopping = tuple((dnn, DropReason.SHUTDOWN, "the engine is stopping") for dnn in DNNS)
    rig.routes = [CameraRoutes(((process, DNNS),)), CameraRoutes((), stopping)]
    process.stop_serving(1.0)
    rig.offer()
    assert rig.counts() == dict.fromkeys(DNNS, (0, {DropReason.SHUTDOWN: 1}))
    assert len(rig.pool.free) == 2
    rig.pool.close()


def test_the_slot_of_a_frame_is_known_while_the_frame_is_offered_again() -> None:
    """The thread of a DNN may be sending its result."""

    class Slots(dict[int, tuple[str, int]]):
        def pop(self, number: int, *default: Any) -> Any:
            assert number != 2, "the slot of an unanswered frame is forgotten"
            return super().pop(number, *default)

    sender = OutcomeSender(SimpleNamespace(), {})  # type: ignore[arg-type]
    sender._slot_of = Slots()
    offer = wire.Offer(1, "front", 0, 1, 1, 0, 0, 0, ("lane",))
    for each in (offer, offer._replace(number=2), offer._replace(number=2, dnns=("object",))):
        sender.expect(each)
    assert sender._slot_of == {2: ("front", 0)}


class OfferRig:
    """Offers a frame to the processes of one device. routes: what successive calls see; the last one remains."""

    def __init__(self) -> None:
        self.accounts = Accounts(dict.fromkeys(DNNS, ("front",)), Callbacks(_ignore, _ignore, _ignore), lambda: 0)
        self.routes: list[CameraRoutes] = []
        self.pool = SlotPool(SlotLayout("front", 2, 16))
        self._host = ProcessHost()
        self._host._engines = {"cpu": SimpleNamespace(routes=lambda camera: self.next_routes())}  # type: ignore[dict-item]
        self._host._serving = _Serving(self.accounts, {"cpu": DeviceOutcomes("cpu", self.accounts, None)}, None)

    def next_routes(self) -> CameraRoutes:
        return self.routes.pop(0) if len(self.routes) > 1 else self.routes[0]

    def offer(self) -> None:
        slot = self.pool.take()
        assert slot is not None
        frame = Frame("front", 0, slot.image(1, 1))
        self.accounts.arrived("front")
        self._host.offer(self.accounts.open(frame, slot, DNNS), frame, slot, DNNS)

    def counts(self) -> dict[str, tuple[int, dict[DropReason, int]]]:
        """Numbers of results and drops, by DNN."""
        streams = self.accounts.statistics().by_dnn_and_camera.items()
        return {dnn: (each.published, {why: n for why, n in each.dropped.items() if n}) for (dnn, _), each in streams}


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
