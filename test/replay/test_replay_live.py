"""The same recording through the live graph: camera process, node process, and this process listening."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from live_session import DNNS, OUTPUTS, LiveSession
from replay_fakes import parsed, read_bag
from road_bag import CORRUPT, OBJECTS, PEOPLE, box_score, index_of, lane_score, scenes, write_road

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.training.scenes import Scene

# Each property tested here has a quicker test: a camera process and a node process in test/demo/test_demo_live, every
# frame through a node and equal results offline in test_replay_through_node, damaged frames in
# test/ros/test_bad_frames_live, scores in test_replay_road.
pytestmark = pytest.mark.long

FRAMES = 24


@pytest.fixture(scope="module")
def drive() -> list[Scene]:
    return scenes(FRAMES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="module")
def live(drive: list[Scene], folder: Path) -> LiveSession:
    """The recording at 5 Hz with its own stamps."""
    recording = write_road(folder / "drive", drive)
    camera = [str(recording), "--stamps", "source", "--rate", "5"]
    # Reliable with a deeper queue, so that every frame arrives and is counted even on a busy test machine.
    settings = ["device:=cpu", "camera.front.qos:=reliable", "camera.front.depth:=10"]
    return LiveSession().run(camera, ["--ros-args", *(word for value in settings for word in ("-p", value))], folder)


def test_detections_are_where_the_truth_is(live: LiveSession, drive: list[Scene]) -> None:
    assert box_score(live.outputs["object/detections"], live.labels["object"], drive, OBJECTS) >= 0.55
    assert box_score(live.outputs["pedestrian/detections"], live.labels["pedestrian"], drive, PEOPLE) >= 0.5
    masks = {index_of(message): message for message in live.outputs["lane/mask"]}
    points = {index_of(message): message for message in live.outputs["lane/points"]}
    both = sorted(masks.keys() & points.keys())
    assert len(both) >= len(points) - 1  # masks are sent with depth 1: a slow listener may miss one
    assert lane_score([masks[index] for index in both], [points[index] for index in both], drive) >= 0.7


@pytest.mark.parametrize("dnn", DNNS)
def test_every_offered_frame_is_published_or_counted_as_dropped(live: LiveSession, dnn: str) -> None:
    counted = live.accounts(dnn)
    assert counted["offered"] == counted["published"] + sum(counted["dropped"].values())
    assert counted["pending"] == 0
    assert counted["offered"] == FRAMES
    assert counted["dropped"].pop("bad_image", 0) <= 1
    assert counted["dropped"].keys() <= {"overwritten"}
    assert counted["published"] >= FRAMES // 3


@pytest.mark.parametrize("name", OUTPUTS)
def test_results_come_in_order_with_the_headers_of_their_frames(live: LiveSession, name: str) -> None:
    indices = [index_of(message) for message in live.outputs[name]]
    assert indices == sorted(set(indices))
    assert CORRUPT not in indices
    assert set(indices) <= set(range(FRAMES))
    assert indices[-1] == FRAMES - 1  # the newest frame wins, so the last one is always served
    assert {message.header.frame_id for message in live.outputs[name]} == {"windscreen"}


def test_a_corrupt_frame_is_reported_and_the_next_is_served(live: LiveSession) -> None:
    assert "data has 921599 bytes" in live.node_log
    assert any(index_of(message) > CORRUPT for message in live.outputs["object/detections"])


def test_live_and_offline_results_are_the_same(live: LiveSession, folder: Path) -> None:
    """Frame by frame: the graph changes which frames are served, not what is found in them."""
    assert main(["replay", str(folder / "drive"), str(folder / "results"), "--device", "cpu"]) == 0
    for name in ("object/detections", "pedestrian/detections"):
        offline = {
            index_of(parsed(message)): parsed(message)
            for message in read_bag(folder / "results")
            if message.topic.endswith(f"front/{name}")
        }
        assert live.outputs[name]
        for message in live.outputs[name]:
            other = offline[index_of(message)]
            assert len(message.detections) == len(other.detections)
            for one, two in zip(message.detections, other.detections, strict=True):
                assert one.results[0].hypothesis.class_id == two.results[0].hypothesis.class_id
                np.testing.assert_allclose(
                    (one.bbox.center.position.x, one.bbox.size_y, one.results[0].hypothesis.score),
                    (two.bbox.center.position.x, two.bbox.size_y, two.results[0].hypothesis.score),
                    atol=1e-3,
                )


def test_both_processes_end_cleanly(live: LiveSession) -> None:
    assert live.node_ended_cleanly
    assert f"published {FRAMES} frames" in live.camera_log
