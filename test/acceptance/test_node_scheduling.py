"""Which DNN runs first, which frames are too old or late, and several cameras in one inference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from harness import Camera, Client, NodeProcess, Recording
from slow_network import write_slow_network
from vision_msgs.msg import Detection2DArray

IMAGE = np.random.default_rng(4).integers(0, 255, (120, 160, 3), np.uint8)
FRAMES = 8


@dataclass
class Setup:
    """The node with two equal DNNs `a` and `b` on camera front, and `both` on the two cameras in batches."""

    client: Client
    node: NodeProcess
    cameras: dict[str, Camera]
    results: dict[str, Recording]

    def connect(self) -> None:
        """Both cameras are connected to the DNNs that get their images."""
        for dnn, camera in (("a", "front"), ("b", "front"), ("both", "rear")):
            self.client.connect(self.cameras[camera], IMAGE, self.results[f"{camera}/{dnn}"])

    def configure(self, **parameters: Any) -> None:
        """Set parameters that need `cleanup`."""
        for transition in ("deactivate", "cleanup"):
            assert self.client.change_state(transition)
        assert self.client.set_parameters(parameters) == {}
        for transition in ("configure", "activate"):
            assert self.client.change_state(transition)
        self.connect()

    def count_first(self, dnn: str) -> int:
        """Send FRAMES images, one after the other; how often the DNN was quicker than the other one."""
        first = 0
        recordings = {name: self.results[f"front/{name}"] for name in ("a", "b")}
        for _ in range(FRAMES):
            stamp = self.cameras["front"].send(IMAGE)
            for recording in recordings.values():
                self.client.wait_for(lambda r=recording, s=stamp: r.at(s), "both results")
            times = {name: r.published_at[r.stamps.index(stamp)] for name, r in recordings.items()}
            first += min(times, key=times.__getitem__) == dnn
        return first


@pytest.fixture(scope="module")
def setup(client: Client, start_node: Callable[..., NodeProcess], tmp_path_factory: pytest.TempPathFactory) -> Setup:
    model = str(write_slow_network(tmp_path_factory.mktemp("model") / "slow.onnx"))
    slow = {"role": "object", "model": model, "decoder": "yolo", "labels": ["car"], "cameras": ["front"]}
    node = start_node(
        {
            "cameras": ["front", "rear"],
            "camera": {"front": {"depth": 100}},
            "dnns": ["a", "b", "both"],
            "dnn": {
                "a": slow,
                "b": slow,
                "both": {"role": "object", "cameras": ["front", "rear"], "max_batch": 2, "batch_delay_ms": 1000.0},
            },
            "workers": 1,
            "aging_ms": 10_000.0,
        }
    )
    client.wait_until_active()
    cameras = {name: client.camera(f"{name}/image_raw") for name in ("front", "rear")}
    names = ("front/a", "front/b", "front/both", "rear/both")
    results = {name: client.record(node.topic(f"{name}/detections"), Detection2DArray) for name in names}
    setup = Setup(client, node, cameras, results)
    setup.connect()
    return setup


def test_fifo_gives_equal_dnns_equal_shares(setup: Setup) -> None:
    client = setup.client
    assert client.set_parameters({"dnn.a.priority": 100, "dnn.both.enable": False}) == {}
    before = {dnn: client.settled(dnn) for dnn in ("a", "b")}
    counts = [len(setup.results[f"front/{dnn}"].messages) for dnn in ("a", "b")]
    client.stream_until(
        setup.cameras["front"], IMAGE,
        lambda: len(setup.results["front/a"].messages) - counts[0] >= 10, "ten results", 0.02,
    )  # fmt: skip
    a, b = (client.settled(dnn).since(before[dnn]) for dnn in ("a", "b"))
    assert a.offered == b.offered
    assert 0.6 < a.published / b.published < 1.7
    assert client.set_parameters({"dnn.a.priority": 0, "dnn.both.enable": True}) == {}


def test_one_inference_for_the_images_of_two_cameras(setup: Setup) -> None:
    client = setup.client
    before = {camera: client.settled("both", camera) for camera in ("front", "rear")}
    for _ in range(4):
        stamps = {name: camera.send(IMAGE) for name, camera in setup.cameras.items()}
        for name, stamp in stamps.items():
            client.wait_for(lambda n=name, s=stamp: setup.results[f"{n}/both"].at(s), f"the result for {name}")
    for camera in ("front", "rear"):
        account = client.settled("both", camera).since(before[camera])
        assert (account.offered, account.published, account.dropped) == (4, 4, {})
        assert client.status(f"both on {camera}").number("frames per inference") > 1
        setup.results[f"{camera}/both"].check_unique()


def test_old_frames_are_dropped_and_late_results_counted(setup: Setup) -> None:
    client, camera = setup.client, setup.cameras["front"]
    before = {dnn: client.settled(dnn) for dnn in ("a", "b")}
    missed = client.status("b on front").number("deadline misses")
    assert client.set_parameters({"dnn.a.max_age_ms": 1.0, "dnn.b.deadline_ms": 1.0}) == {}
    client.stream_until(camera, IMAGE, lambda: client.account("a").since(before["a"]).dropped.get("too_old"), "too old")
    accounts = {dnn: client.settled(dnn).since(before[dnn]) for dnn in ("a", "b")}
    assert accounts["a"].dropped.keys() <= {"too_old", "overwritten"}
    assert accounts["b"].dropped.keys() <= {"overwritten"}
    assert client.status("b on front").number("deadline misses") - missed == accounts["b"].published > 0
    assert client.set_parameters({"dnn.a.max_age_ms": 0.0, "dnn.b.deadline_ms": 0.0}) == {}


def test_priority_runs_the_important_dnn_first(setup: Setup) -> None:
    setup.configure(policy="priority")
    for important, other in (("a", "b"), ("b", "a")):
        values = {f"dnn.{important}.priority": 50, f"dnn.{other}.priority": 0}
        assert setup.client.set_parameters(values) == {}
        assert setup.count_first(important) >= FRAMES - 2, f"{important} has the higher priority"


def test_edf_runs_the_dnn_with_the_earlier_deadline_first(setup: Setup) -> None:
    setup.configure(policy="edf")
    for urgent, other in (("a", "b"), ("b", "a")):
        values = {f"dnn.{urgent}.deadline_ms": 100.0, f"dnn.{other}.deadline_ms": 60_000.0}
        assert setup.client.set_parameters(values) == {}
        assert setup.count_first(urgent) >= FRAMES - 2, f"{urgent} has the earlier deadline"
