"""Which DNN runs first, which frames are too old or late, and several cameras in one inference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from harness import Client, DnnOnCamera, Node
from networks import write_slow_network

FRAMES = 8


@dataclass
class Setup:
    """The node with two equal DNNs `a` and `b` on camera front, and `both` on the two cameras in batches."""

    client: Client
    node: Node
    a: DnnOnCamera
    b: DnnOnCamera
    both: list[DnnOnCamera]

    def connect(self) -> None:
        """Both cameras are connected to the DNNs that get their images."""
        for dnn in (self.a, self.b, self.both[1]):
            dnn.connect()

    def use_policy(self, policy: str) -> None:
        """Configure the node anew."""
        for transition in ("deactivate", "cleanup"):
            assert self.node.change_state(transition)
        self.node.set({"policy": policy})
        for transition in ("configure", "activate"):
            assert self.node.change_state(transition)
        self.connect()

    def count_first(self, dnn: DnnOnCamera, other: DnnOnCamera) -> int:
        """Send FRAMES images, one after the other; how often the DNN published earlier than the other one."""
        first = 0
        for _ in range(FRAMES):
            stamp = dnn.camera.send()
            for results in (dnn.results, other.results):
                self.client.wait_for(lambda r=results: r.at(stamp), f"a result on {results.topic}")  # noqa: B023
            times = [r.published_at[r.stamps.index(stamp)] for r in (dnn.results, other.results)]
            first += times[0] < times[1]
        return first


@pytest.fixture(scope="module")
def setup(client: Client, start_node: Callable[..., Node], tmp_path_factory: pytest.TempPathFactory) -> Setup:
    model = str(write_slow_network(tmp_path_factory.mktemp("model") / "slow.onnx"))
    slow = {"role": "object", "model": model, "decoder": "yolo", "labels": ["car"], "cameras": ["front"]}
    batches = {"role": "object", "cameras": ["front", "rear"], "max_batch": 2, "batch_delay_ms": 1000.0}
    node = start_node(
        {
            "cameras": ["front", "rear"],
            "camera": {"front": {"depth": 100}},
            "dnns": ["a", "b", "both"],
            "dnn": {"a": slow, "b": slow, "both": batches},
            "workers": 1,
        }
    )
    node.wait_until_active()
    a = DnnOnCamera(node, "a")
    both = [DnnOnCamera(node, "both", camera=a.camera), DnnOnCamera(node, "both", "rear")]
    setup = Setup(client, node, a, DnnOnCamera(node, "b", camera=a.camera), both)
    setup.connect()
    return setup


def test_fifo_gives_equal_dnns_equal_shares(setup: Setup) -> None:
    setup.node.set({"dnn.a.priority": 100, "dnn.both.enable": False})
    for dnn in (setup.a, setup.b):
        dnn.begin()
    setup.a.camera.send_until(lambda: setup.a.answers() >= 10, "ten results", 0.02)
    assert 0.6 < setup.a.check()["published"] / setup.b.check()["published"] < 1.7
    setup.node.set({"dnn.a.priority": 0, "dnn.both.enable": True})


def test_one_inference_for_the_images_of_two_cameras(setup: Setup) -> None:
    for dnn in setup.both:
        dnn.begin()
    for _ in range(4):
        for dnn, stamp in [(dnn, dnn.camera.send()) for dnn in setup.both]:
            setup.client.wait_for(lambda r=dnn.results, s=stamp: r.at(s), "a result for each camera")
    for dnn in setup.both:
        assert dnn.check() == {"offered": 4, "published": 4}
    assert setup.node.status("both on front").number("frames per inference") > 1


def test_old_frames_are_dropped_and_late_results_counted(setup: Setup) -> None:
    for dnn in (setup.a, setup.b):
        dnn.begin()
    missed = setup.node.status("b on front").number("deadline misses")
    setup.node.set({"dnn.a.max_age_ms": 1.0, "dnn.b.deadline_ms": 1.0})
    setup.a.camera.send_until(lambda: setup.a.account()["too_old"], "a frame that is too old")
    setup.a.check("too_old")
    published = setup.b.check()["published"]
    assert setup.node.status("b on front").number("deadline misses") - missed == published > 0
    setup.node.set({"dnn.a.max_age_ms": 0.0, "dnn.b.deadline_ms": 0.0})


@pytest.mark.parametrize(
    ("policy", "parameter", "sooner", "later"),
    [("priority", "priority", 50, 0), ("edf", "deadline_ms", 100.0, 60_000.0)],
)
def test_a_policy_runs_the_dnn_first_that_is(
    policy: str, parameter: str, sooner: float, later: float, setup: Setup
) -> None:
    setup.use_policy(policy)
    setup.node.set({f"dnn.a.{parameter}": sooner, f"dnn.b.{parameter}": later})
    assert setup.count_first(setup.a, setup.b) >= FRAMES - 2
    setup.node.set({f"dnn.a.{parameter}": later, f"dnn.b.{parameter}": sooner})
    assert setup.count_first(setup.b, setup.a) >= FRAMES - 2
