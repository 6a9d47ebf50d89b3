"""The node responds during a transition, which can be cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pytest
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetAvailableTransitions
from node_bench import Bench

from multi_dnn_ros.ros.node_status import progress_text
from multi_dnn_ros.serving.descriptions import (
    Cancelled,
    ConfigureError,
    DnnDescription,
    EngineDescription,
    EngineStatus,
    Level,
    Progress,
    ResultDescription,
)
from multi_dnn_ros.serving.ledger import Ledger
from multi_dnn_ros.settings.schema import NodeConfig

WARN, ERROR = 1, 2
CONFIGURE, CLEANUP, ACTIVATE = (
    Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_CLEANUP, Transition.TRANSITION_ACTIVATE,
)  # fmt: skip
SHUTDOWN = Transition.TRANSITION_UNCONFIGURED_SHUTDOWN


class SlowHost:
    """A host whose configure() blocks until the test releases it, or it is cancelled."""

    def __init__(self) -> None:
        self.configuring = threading.Event()
        self.go = threading.Event()
        self.cancelled = threading.Event()
        self.error: Exception | None = None
        self.updates: list[tuple[str, str, Any]] = []
        self.closed = False
        self.stopping = threading.Event()
        self.finished = threading.Event()
        self.config: NodeConfig | None = None

    def check(self, config: NodeConfig) -> Sequence[str]:
        return ()

    def configure(self, config: NodeConfig, progress: Callable[[Progress], None]) -> EngineDescription:
        self.config = config
        progress(Progress("compiling job 3 of 4", ready=1, total=3, left_s=40.0))
        self.configuring.set()
        while not self.go.wait(0.005):
            if self.cancelled.is_set():
                raise Cancelled
        if self.error is not None:
            raise self.error
        result = ResultDescription(("thing",), 0.4, "detections")
        dnns = {name: DnnDescription(("front",), {"": result}) for name in config.dnns}
        return EngineDescription("cpu", "a processor", 2, dnns, versions={"torch": "9.9"})

    def start(self, ledger: Ledger) -> None:
        pass

    def serves(self, camera: str) -> bool:
        return False

    def decodes_jpeg(self, dnns: Collection[str]) -> bool:
        return False

    def stop(self, timeout_s: float) -> list[str]:
        self.stopping.set()
        self.finished.wait(10.0)
        return []

    def cancel(self) -> None:
        self.cancelled.set()

    def update(self, dnn: str, name: str, value: Any) -> None:
        self.updates.append((dnn, name, value))

    def statuses(self) -> list[EngineStatus]:
        return [EngineStatus("engine cpu", Level.WARN, "starts", {"restarts": 2})]

    def memory(self) -> Mapping[str, int]:
        return {"engine resident memory (bytes)": 5}

    def close(self) -> None:
        self.closed = True


class Case:
    """A node that is configuring."""

    def __init__(self, bench: Bench, parameters: dict[str, Any] | None = None) -> None:
        self.bench = bench
        self.hosts: list[SlowHost] = []
        self.node = bench.node(parameters, host=self._host)
        self.client = bench.peer.create_client(ChangeState, "/multi_dnn/change_state")
        bench.until(self.client.service_is_ready, "change_state")

    def _host(self, build: Any) -> Any:
        self.hosts.append(SlowHost())
        return self.hosts[-1]

    def ask(self, number: int) -> Any:
        """Request a transition; returns the future of the response."""
        return self.client.call_async(ChangeState.Request(transition=Transition(id=number)))

    def configuring(self) -> Any:
        future, before = self.ask(CONFIGURE), len(self.hosts)
        self.bench.until(lambda: len(self.hosts) > before and self.hosts[-1].configuring.is_set(), "configuring")
        return future

    def answer(self, future: Any) -> bool:
        self.bench.until(future.done, "the answer")
        return bool(future.result().success)

    @property
    def host(self) -> SlowHost:
        return self.hosts[-1]


@pytest.fixture
def case(bench: Bench) -> Iterator[Case]:
    instance = Case(bench)
    yield instance
    for host in instance.hosts:
        host.go.set()


def test_the_node_responds_while_configuring(bench: Bench, case: Case) -> None:
    configured = case.configuring()
    assert bench.state() == "configuring"
    bench.until(lambda: bench.status("node").by_key.get("state") == "configuring", "diagnostics")
    status = bench.status("node")
    assert (status.level, status.message) == (
        WARN, "configuring: DNN 2 of 3, compiling job 3 of 4, about 40 s left"
    )  # fmt: skip
    assert bench.status("engine cpu").level == WARN
    assert bench.status("engine cpu").by_key == {"restarts": "2"}
    assert bench.set("dnn.object.priority", 3) == (True, "")
    taken, reason = bench.set("workers", 4)
    assert not taken
    assert "read-only while the node is configured" in reason
    assert not configured.done()
    case.host.go.set()
    assert case.answer(configured)
    assert bench.state() == "inactive"
    assert case.host.updates == [("object", "priority", 3)]
    bench.until(lambda: bench.status("node").by_key.get("state") == "inactive", "the report")
    assert bench.status("node").by_key["torch"] == "9.9"
    assert bench.status("node").by_key["engine resident memory (bytes)"] == "5"


def test_cleanup_cancels_configuring_which_can_be_repeated(bench: Bench, case: Case) -> None:
    configured = case.configuring()
    cleaned = case.ask(CLEANUP)
    assert case.answer(cleaned)
    assert not case.answer(configured)
    assert bench.state() == "unconfigured"
    assert case.host.closed
    assert bench.set("workers", 1)[0]
    configured = case.configuring()
    assert case.host.config.workers == 1
    case.host.go.set()
    assert case.answer(configured)
    assert len(case.hosts) == 2


def test_shutdown_cancels_configuring(bench: Bench, case: Case) -> None:
    configured = case.configuring()
    assert case.answer(case.ask(SHUTDOWN))
    assert not case.answer(configured)
    assert bench.state() == "finalized"
    assert case.host.closed
    bench.until(lambda: bench.status("node").by_key.get("state") == "finalized", "the report")


def test_another_transition_is_rejected_while_configuring(bench: Bench, case: Case) -> None:
    configured = case.configuring()
    assert not case.answer(case.ask(ACTIVATE))
    assert not case.answer(case.ask(CONFIGURE))
    assert not case.host.cancelled.is_set()
    case.host.go.set()
    assert case.answer(configured)


def test_a_transition_that_the_state_does_not_allow_gets_a_response(bench: Bench, case: Case) -> None:
    assert not case.answer(case.ask(ACTIVATE))
    assert bench.state() == "unconfigured"


def test_the_node_responds_while_the_last_frames_are_finished(bench: Bench, case: Case) -> None:
    configured = case.configuring()
    case.host.go.set()
    assert case.answer(configured)
    assert case.answer(case.ask(ACTIVATE))
    assert bench.state() == "active"
    deactivated = case.ask(Transition.TRANSITION_DEACTIVATE)
    bench.until(case.host.stopping.is_set, "the host to stop")
    assert bench.state() == "deactivating"
    finalized = case.ask(SHUTDOWN)  # to run after it
    assert bench.state() == "deactivating"
    assert not deactivated.done()
    case.host.finished.set()
    assert case.answer(deactivated)
    assert case.answer(finalized)
    assert bench.state() == "finalized"


def test_the_end_of_the_node_waits_for_the_last_frames(bench: Bench, case: Case) -> None:
    configured = case.configuring()
    case.host.go.set()
    assert case.answer(configured)
    assert case.answer(case.ask(ACTIVATE))
    case.ask(Transition.TRANSITION_DEACTIVATE)
    bench.until(case.host.stopping.is_set, "the host to stop")
    threading.Timer(1.3, case.host.finished.set).start()
    case.node.close()
    assert case.host.finished.is_set()
    assert case.host.closed
    assert case.node.hung == []


def test_available_transitions_while_configuring(bench: Bench, case: Case) -> None:
    configured = case.configuring()
    name, kind = "/multi_dnn/get_available_transitions", GetAvailableTransitions
    labels = [entry.transition.label for entry in bench.call(kind, name, kind.Request()).available_transitions]
    assert {"cleanup", "shutdown"} <= set(labels)
    case.host.go.set()
    assert case.answer(configured)
    labels = [entry.transition.label for entry in bench.call(kind, name, kind.Request()).available_transitions]
    assert sorted(labels) == ["activate", "cleanup", "shutdown"]


@pytest.mark.parametrize("expected", [True, False])
def test_failed_configuring_leaves_nothing_and_can_be_repeated(bench: Bench, case: Case, expected: bool) -> None:
    configured = case.configuring()
    case.host.error = ConfigureError("Traceback:\nit broke" if not expected else "dnn.object.model: no such file",
                                     expected=expected)  # fmt: skip
    case.host.go.set()
    assert not case.answer(configured)
    assert bench.state() == "unconfigured"
    assert case.host.closed
    words = "cannot configure: dnn.object.model: no such file" if expected else "cannot configure: it broke"
    bench.until(lambda: bench.status("node").message == words, "the reason")
    assert bench.status("node").level == ERROR
    bench.until(lambda: "transition" not in [thread.name for thread in threading.enumerate()], "the thread to end")
    configured = case.configuring()
    case.host.go.set()
    assert case.answer(configured)
    bench.until(lambda: bench.status("node").message == "inactive", "the reason to be gone")


def test_the_node_can_be_closed_while_configuring(bench: Bench, case: Case) -> None:
    configured = case.configuring()
    case.node.close()  # without a spinning executor, as at the end of the process
    assert case.host.closed
    assert case.node.hung == []
    assert case.node.pending_responses == 1
    assert not case.answer(configured)


def test_a_host_that_does_not_stop_configuring_is_closed_and_logged(
    bench: Bench, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.configuring()
    monkeypatch.setattr(case.host, "cancel", lambda: None)
    case.node.close()
    assert case.host.closed
    assert case.node.hung == ["transition"]
    case.host.go.set()
    bench.until(lambda: not case.node.hung, "the thread to end")
    bench.nodes.remove(case.node)  # closing it again would wait for the transition, whose end nobody reports
    case.node.destroy_node()


def test_cancelling_autostart_prevents_activation(bench: Bench) -> None:
    case = Case(bench, {"autostart": True})
    bench.until(lambda: case.hosts and case.host.configuring.is_set(), "configuring")
    assert case.answer(case.ask(CLEANUP))
    assert bench.state() == "unconfigured"
    assert len(case.hosts) == 1


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress("importing"), "importing"),
        (Progress("first run", 3, 3), "3 of 3 DNNs ready, first run"),
        (Progress("loading", 0, 2, 7.4), "DNN 1 of 2, loading, about 7 s left"),
    ],
)
def test_progress_as_text(progress: Progress, text: str) -> None:
    assert progress_text(progress) == text
