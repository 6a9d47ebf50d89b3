"""Every image that arrives is answered once, or counted once as dropped with a reason, whatever happens meanwhile."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from harness import Account, Camera, Client, NodeProcess, Recording, stopped
from slow_network import write_slow_network
from vision_msgs.msg import Detection2DArray

IMAGE = np.random.default_rng(2).integers(0, 255, (120, 160, 3), np.uint8)
DNNS = ("object", "slow")


@dataclass
class Setup:
    """The node with a quick and a slow DNN, and the accounts at the begin of the test."""

    client: Client
    node: NodeProcess
    camera: Camera
    results: dict[str, Recording]
    before: dict[str, Account]
    answered: dict[str, int]
    sent: int

    @property
    def engine_pid(self) -> int:
        """The process that runs the DNNs; 0: none."""
        pid = self.client.status("engine cpu").values.get("pid", "")
        return int(pid) if pid.isdecimal() else 0

    def check(self, *reasons: str) -> dict[str, Account]:
        """The accounts of the test by DNN. All images arrived; only `reasons` and `overwritten` are dropped."""
        accounts = {}
        for dnn in DNNS:
            account = accounts[dnn] = self.client.settled(dnn).since(self.before[dnn])
            assert account.offered == len(self.camera.sent) - self.sent
            assert account.dropped.keys() <= {*reasons, "overwritten"}
            results = self.results[dnn]
            assert account.published == len(results.messages) - self.answered[dnn]
            results.check_unique()
            assert results.stamps == sorted(results.stamps)
            assert set(results.stamps) <= set(self.camera.sent)
        return accounts


@pytest.fixture(scope="module")
def shared(client: Client, start_node: Callable[..., NodeProcess], tmp_path_factory: pytest.TempPathFactory) -> Setup:
    slow = write_slow_network(tmp_path_factory.mktemp("model") / "slow.onnx")
    node = start_node(
        {
            "camera": {"front": {"depth": 100}},  # so that none is lost before the node, however busy the computer is
            "dnns": list(DNNS),
            "dnn": {"slow": {"role": "object", "model": str(slow), "decoder": "yolo", "labels": ["car"]}},
            # A process that was replaced a second ago is as good as any other.
            "fault_window_s": 1.0,
            "heartbeat_timeout_s": 1.0,
        }
    )
    client.wait_until_active()
    camera = client.camera("front/image_raw")
    results = {dnn: client.record(node.topic(f"front/{dnn}/detections"), Detection2DArray) for dnn in DNNS}
    return Setup(client, node, camera, results, {}, {}, 0)


@pytest.fixture
def setup(shared: Setup) -> Setup:
    """With an account for the images of this test only."""
    for results in shared.results.values():
        shared.client.connect(shared.camera, IMAGE, results)
    shared.before = {dnn: shared.client.settled(dnn) for dnn in DNNS}
    shared.answered = {dnn: len(results.messages) for dnn, results in shared.results.items()}
    shared.sent = len(shared.camera.sent)
    return shared


def test_a_burst_and_a_slow_dnn(setup: Setup) -> None:
    for _ in range(6):
        for _ in range(8):  # the queue of the subscription holds more
            setup.camera.send(IMAGE)
        last = setup.camera.sent[-1]
        setup.client.wait_for(lambda last=last: setup.results["slow"].at(last), "the answer to the newest image")
    accounts = setup.check()
    assert accounts["slow"].dropped["overwritten"] >= 6


def test_a_slow_dnn_drops_only_its_own_frames(setup: Setup) -> None:
    quick = setup.results["object"]
    setup.client.stream_until(setup.camera, IMAGE, lambda: len(quick.messages) - setup.answered["object"] >= 30, "30")
    accounts = setup.check()
    assert accounts["slow"].published < accounts["object"].published
    assert accounts["slow"].published > 0


@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_an_engine_process_is_replaced_when(setup: Setup, fault: str) -> None:
    client, lost = setup.client, setup.engine_pid
    assert lost != setup.node.process.pid

    def replaced() -> bool:
        return setup.engine_pid not in (0, lost) and any(
            stamp > at_fault for stamp in setup.results["slow"].stamps if stamp in setup.camera.sent[-5:]
        )

    for _ in range(3):
        setup.camera.send(IMAGE)
    at_fault = setup.camera.sent[-1]
    if fault == "killed":
        os.kill(lost, signal.SIGKILL)
        client.stream_until(setup.camera, IMAGE, replaced, "results of another engine process", 0.1)
    else:
        with stopped(lost):
            client.stream_until(setup.camera, IMAGE, replaced, "results of another engine process", 0.1)
    accounts = setup.check("engine_lost")
    assert all(account.dropped["engine_lost"] > 0 for account in accounts.values())


def test_a_model_swap_drops_no_frame(setup: Setup) -> None:
    client, old = setup.client, setup.engine_pid
    assert client.set_parameters({"dnn.object.model": "builtin:object_small"}) == {}

    def swapped() -> bool:
        after = [stamp for stamp in setup.results["object"].stamps if stamp in setup.camera.sent[-5:]]
        return setup.engine_pid not in (0, old) and bool(after)

    client.stream_until(setup.camera, IMAGE, swapped, "results of the new engine process", 0.1)
    setup.check()
    assert client.status("model swap").level == "OK"
    assert client.get_parameters("dnn.object.model") == ["builtin:object_small"]


def test_a_model_swap_that_fails_changes_nothing(setup: Setup, tmp_path: Path) -> None:
    client, pid = setup.client, setup.engine_pid
    model = client.get_parameters("dnn.object.model")
    rejected = client.set_parameters({"dnn.object.model": str(tmp_path / "missing.onnx")})
    assert "missing.onnx" in rejected["dnn.object.model"]
    (tmp_path / "damaged.onnx").write_bytes(b"no model" * 1000)
    if client.set_parameters({"dnn.object.model": str(tmp_path / "damaged.onnx")}) == {}:  # else rejected at once
        client.stream_until(
            setup.camera, IMAGE, lambda: client.status("model swap").level == "WARN", "a failed swap", 0.1
        )
        assert "damaged.onnx" in client.status("model swap").message
    client.wait_for(lambda: client.get_parameters("dnn.object.model") == model, "the previous model")
    client.answer(setup.camera, IMAGE, setup.results["slow"])
    setup.check()
    assert setup.engine_pid == pid


def test_deactivation_with_frames_in_progress(setup: Setup) -> None:
    """Counts begin at activation, and the log has the totals at the end."""
    client, node = setup.client, setup.node
    for _ in range(2):
        assert client.change_state("deactivate")
        assert client.change_state("activate")
        client.wait_until_active()
        client.wait_for(lambda: client.account("slow").offered == 0, "counts that begin again")
        for recording in setup.results.values():
            recording.messages.clear()
        first = len(setup.camera.sent)
        client.stream_until(setup.camera, IMAGE, lambda: setup.results["slow"].messages, "a result")
        for _ in range(5):
            setup.camera.send(IMAGE)
        offered = len(setup.camera.sent) - first
        client.wait_for(lambda n=offered: client.account("slow").offered == n, "all images")
        assert client.change_state("deactivate")
        client.spin(0.5)
        for dnn, recording in setup.results.items():
            published, total = re.findall(rf"{dnn} on front: (\d+) of (\d+) frames published", node.log)[-1]
            assert int(total) == offered
            assert int(published) == len(recording.messages)
            recording.check_unique()
        assert client.change_state("activate")
