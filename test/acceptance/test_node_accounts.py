"""Every image that arrives is answered once, or counted once as dropped with a reason, whatever happens meanwhile."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from harness import Camera, DnnOnCamera, Node
from networks import write_slow_network


@dataclass
class Setup:
    """The node with a quick and a slow DNN on one camera."""

    node: Node
    camera: Camera
    quick: DnnOnCamera
    slow: DnnOnCamera

    def send_until_served_by_another(self, pid: int) -> None:
        """Send images until another process than `pid` has answered one of the last images for each DNN."""

        def served() -> bool:
            last = set(self.camera.sent[-10:])
            return self.node.engine_pid not in (0, pid) and all(
                last & set(dnn.results.stamps[-5:]) for dnn in (self.quick, self.slow)
            )

        self.camera.send_until(served, "results of another engine process", 0.1)


@pytest.fixture(scope="module")
def shared(start_node: Callable[..., Node], tmp_path_factory: pytest.TempPathFactory) -> Setup:
    slow = write_slow_network(tmp_path_factory.mktemp("model") / "slow.onnx")
    node = start_node(
        {
            "camera": {"front": {"depth": 100}},  # so that none is lost before the node, however busy the computer is
            "dnns": ["object", "slow"],
            "dnn": {"slow": {"role": "object", "model": str(slow), "decoder": "yolo", "labels": ["car"]}},
            "fault_window_s": 1.0,  # later losses are first ones again
        }
    )
    node.wait_until_active()
    quick = DnnOnCamera(node)
    return Setup(node, quick.camera, quick, DnnOnCamera(node, "slow", camera=quick.camera))


@pytest.fixture
def setup(shared: Setup) -> Setup:
    """With accounts of the images of this test only."""
    for dnn in (shared.quick.connect(), shared.slow.connect()):
        dnn.begin()
    return shared


def test_bursts_and_a_slow_dnn(setup: Setup) -> None:
    for _ in range(6):
        for _ in range(8):
            last = setup.camera.send()
        setup.node.client.wait_for(lambda stamp=last: setup.slow.results.at(stamp), "the answer to the newest image")
    assert setup.slow.check()["overwritten"] >= 6
    quick, slow = setup.quick.check()["published"], setup.slow.answers()
    setup.camera.send_until(lambda: setup.quick.answers() >= quick + 30, "30 results")
    assert 0 < setup.slow.check()["published"] - slow <= setup.quick.check()["published"] - quick


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_process_is_replaced_after(setup: Setup, fault: signal.Signals) -> None:
    lost = setup.node.engine_pid
    assert lost not in (0, setup.node.process.pid)
    os.kill(lost, fault)
    setup.send_until_served_by_another(lost)
    for dnn in (setup.quick, setup.slow):
        assert dnn.check("engine_lost")["engine_lost"] > 0


def test_a_model_swap_drops_no_frame(setup: Setup) -> None:
    old = setup.node.engine_pid
    setup.node.set({"dnn.object.model": "builtin:object_small"})
    setup.send_until_served_by_another(old)
    for dnn in (setup.quick, setup.slow):
        dnn.check()
        assert dnn.results.stamps == sorted(dnn.results.stamps)
    assert setup.node.status("model swap").level == "OK"
    assert setup.node.get_parameters("dnn.object.model") == ["builtin:object_small"]


def test_deactivation_with_frames_in_progress(setup: Setup) -> None:
    """Counts begin at activation, and the log has the totals at the end."""
    node, client = setup.node, setup.node.client
    dnns = {"object": setup.quick, "slow": setup.slow}
    for transition in ("deactivate", "activate"):
        assert node.change_state(transition)
    client.wait_for(lambda: node.status("slow on front").values.get("offered") == "0", "counts that begin again")
    for dnn in dnns.values():
        dnn.begin()
    first = len(setup.camera.sent)
    setup.camera.send_until(setup.slow.answers, "a result")
    for _ in range(5):
        setup.camera.send()
    offered = len(setup.camera.sent) - first
    client.wait_for(lambda: setup.slow.account()["offered"] == offered, "all images")
    assert node.change_state("deactivate")
    client.spin(0.5)
    for name, dnn in dnns.items():
        counts = re.findall(rf"{name} on front: (\d+) of (\d+) frames published", node.log)[-1]
        assert tuple(map(int, counts)) == (dnn.answers(), offered)
        dnn.results.check_unique()
    assert node.change_state("activate")
