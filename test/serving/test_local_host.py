"""LocalHost: the engine in the node's own process."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import fake_pipelines
import numpy as np
import pytest
from fake_pipelines import settings

from multi_dnn_ros.engine import Drop, DropReason, Frame, Result
from multi_dnn_ros.engine.reports import Callbacks
from multi_dnn_ros.serving.accounts import Accounts
from multi_dnn_ros.serving.host import Cancelled, ConfigureError, Level, Progress
from multi_dnn_ros.serving.local_host import LocalHost

WAIT_S = 30.0


class Session:
    """A serving host and its results and drops."""

    def __init__(self, *dnns: str, **parameters: Any) -> None:
        self.config = settings(*dnns, **parameters)
        self.host = LocalHost(build=fake_pipelines.build)
        self.reports: list[Progress] = []
        self.description = self.host.configure(self.config, self.reports.append)
        self.results: list[Result] = []
        self.drops: list[Drop] = []
        self.accounts = Accounts(
            {name: dnn.cameras for name, dnn in self.description.dnns.items()},
            Callbacks(self.results.append, self.drops.append, lambda failure: None),
            time.monotonic_ns,
        )
        self.host.start(self.accounts)

    def send(self, value: int, size: tuple[int, int] = (48, 64), camera: str = "front") -> Frame:
        """Send an image full of `value`, and wait until it is settled."""
        self.accounts.arrived(camera)
        buffer = self.host.buffer(camera, WAIT_S)
        assert buffer is not None
        image = buffer.image(*size)
        image[:] = value
        frame = Frame(camera, 5, image, "the header")
        frame.received_ns, frame.decode_ns = time.monotonic_ns() - 3_000_000, 2_000_000
        frame.image()
        number = self.accounts.open(frame, buffer, self.accounts.dnns_of(camera))
        self.host.offer(number, frame, buffer, self.accounts.dnns_of(camera))
        assert self.accounts.wait_idle(WAIT_S)
        return frame


@pytest.fixture
def serving() -> Iterator[Callable[..., Session]]:
    sessions: list[Session] = []

    def make(*dnns: str, **parameters: Any) -> Session:
        sessions.append(Session(*dnns, **parameters))
        return sessions[-1]

    yield make
    for session in sessions:
        session.host.close()


def test_results_carry_the_frame_and_count_latency_from_arrival(serving: Callable[..., Session]) -> None:
    session = serving("object", "mask")
    frame = session.send(200)
    assert {result.dnn for result in session.results} == {"object", "mask"}
    for result in session.results:
        assert result.frame is frame
        assert result.timing.received_ns == frame.received_ns
        assert result.timing.decode_ns == 2_000_000
        assert result.timing.arrival_to_result_ns > 3_000_000
        assert 0 <= result.timing.mailbox_ns < result.timing.started_ns - frame.received_ns
    masks = [result.output.mask for result in session.results if result.dnn == "mask"]
    np.testing.assert_array_equal(masks[0], np.full((48, 64), 200, np.uint8))


def test_description_and_progress(serving: Callable[..., Session]) -> None:
    session = serving("object", "lane", cameras=("front", "rear"))
    description = session.description
    assert description.device == "cpu"
    assert description.dnns["object"].cameras == ("front", "rear")
    (result,) = description.dnns["object"].results.values()
    assert result.labels == ("thing", "other")
    assert result.own_threshold == 0.25
    assert description.versions["torch"]
    assert [(report.ready, report.total) for report in session.reports][:2] == [(1, 2), (2, 2)]
    assert session.host.memory()["resident memory (bytes)"] > 0
    assert [status.level for status in session.host.statuses()] == [Level.OK]


def test_runtime_parameters_reach_decoder_and_engine(serving: Callable[..., Session]) -> None:
    session = serving("object")
    session.send(100)
    session.host.update("object", "score_threshold", 0.9)
    session.send(100)
    assert [len(result.output) for result in session.results] == [1, 0]
    session.host.update("object", "max_age_ms", 1.0)
    session.send(100)  # arrived 3 ms ago
    assert [drop.reason for drop in session.drops] == [DropReason.TOO_OLD]


def test_updates_remain_for_the_next_start(serving: Callable[..., Session]) -> None:
    session = serving("object")
    assert session.host.stop(WAIT_S) == []
    session.host.update("object", "max_age_ms", 1.0)
    session.host.start(session.accounts)
    session.send(100)
    assert [drop.reason for drop in session.drops] == [DropReason.TOO_OLD]


def test_slots_of_dropped_frames_are_released(serving: Callable[..., Session]) -> None:
    session = serving("object")
    for _ in range(20):  # more than there are slots
        session.send(fake_pipelines.RAISE)
    reasons = {drop.reason for drop in session.drops}
    assert reasons == {DropReason.DNN_ERROR, DropReason.DISABLED}  # after max_failures in a row
    assert len(session.drops) == 20


def test_a_frame_offered_after_the_stop_is_counted(serving: Callable[..., Session]) -> None:
    session = serving("object", "mask")
    session.host.stop(WAIT_S)
    session.send(100)
    assert sorted((drop.dnn, drop.reason) for drop in session.drops) == [
        ("mask", DropReason.SHUTDOWN),
        ("object", DropReason.SHUTDOWN),
    ]


def test_a_failed_device_remains_an_error(serving: Callable[..., Session]) -> None:
    session = serving("object")
    session.send(fake_pipelines.GPU_FAULT)
    session.send(200)
    (status,) = session.host.statuses()
    assert status.level is Level.ERROR
    assert "an illegal memory access was encountered" in status.text


def test_problems_of_parameters_are_reported_and_the_host_can_be_configured_again() -> None:
    host = LocalHost(build=fake_pipelines.build_wrong)
    with pytest.raises(ConfigureError) as caught:
        host.configure(settings("object"), lambda report: None)
    assert caught.value.expected
    assert caught.value.text.splitlines()[1] == "and another line"
    with pytest.raises(ConfigureError):
        host.configure(settings("object"), lambda report: None)
    host.close()


def test_cancel_ends_configuring() -> None:
    host = LocalHost(build=fake_pipelines.build_slowly)
    begun, ended = threading.Event(), threading.Event()

    def configure() -> None:
        with pytest.raises(Cancelled):
            host.configure(settings("object"), lambda report: begun.set())
        ended.set()

    thread = threading.Thread(target=configure)
    thread.start()
    assert begun.wait(WAIT_S)
    host.cancel()
    assert ended.wait(WAIT_S)
    thread.join()
    host.close()
    again = LocalHost(build=fake_pipelines.build)  # the thread that configures is free again
    again.configure(settings("object"), lambda report: None)
    again.close()


def test_the_module_does_not_import_pytorch() -> None:
    code = "import sys, multi_dnn_ros.serving.local_host; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
