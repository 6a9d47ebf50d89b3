"""A live replay whose connection to the node fails ends soon and says why."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import GetParameters, SetParametersAtomically
from rclpy.serialization import serialize_message
from rclpy.subscription import Subscription
from sensor_msgs.msg import Image
from waiting import until

from multi_dnn_ros.bags import BagError, BagReader, BagWriter
from multi_dnn_ros.bags.definitions import message_class
from multi_dnn_ros.replay import live_results
from multi_dnn_ros.replay.live import LiveReplay
from multi_dnn_ros.replay.live_results import LiveReplayError
from multi_dnn_ros.replay.live_setup import LiveCamera, LivePlan
from multi_dnn_ros.replay.recorded_cameras import recorded_topics
from multi_dnn_ros.replay.remote_node import RemoteNode, RemoteNodeError
from multi_dnn_ros.replay.spinning import SpinningNode, spinning
from multi_dnn_ros.replay.summary import Summary
from multi_dnn_ros.settings.schema import CameraConfig
from multi_dnn_ros.vision.result_kind import RESULT_KINDS

TOPIC, TYPE = "/front/image_raw", "sensor_msgs/msg/Image"
PLAN = LivePlan((LiveCamera("front", TOPIC, TOPIC, TYPE, ("lane",)),), {"lane": RESULT_KINDS.get("lanes")})
FRAMES = 5
SERVICES = {
    "get_state": GetState,
    "change_state": ChangeState,
    "get_parameters": GetParameters,
    "set_parameters_atomically": SetParametersAtomically,
}


@pytest.fixture
def spinner(domain: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[SpinningNode]:
    monkeypatch.setenv("ROS_DOMAIN_ID", str(domain))
    with spinning("player", []) as spinner:
        yield spinner


@pytest.fixture
def mute(spinner: SpinningNode) -> Iterator[Any]:
    """A node with the services that a replay needs; nothing spins it."""
    node = rclpy.create_node("multi_dnn")
    for name, kind in SERVICES.items():
        node.create_service(kind, f"/multi_dnn/{name}", lambda request, response: response)
    yield node
    node.destroy_node()


@pytest.fixture
def remote(spinner: SpinningNode, mute: Any) -> RemoteNode:
    return RemoteNode(spinner.node, "/multi_dnn", 30.0, failure=lambda: spinner.failure)


@pytest.fixture
def bag(tmp_path: Path) -> Iterator[BagReader]:
    with BagWriter(tmp_path / "drive") as writer:
        writer.add_topic(TOPIC, TYPE)
        for index in range(FRAMES):
            image = Image(width=2, height=1, step=6, encoding="rgb8", data=bytes(6))
            image.header.stamp.sec = index
            writer.write(TOPIC, index * 1_000_000, serialize_message(image))
    with BagReader(tmp_path / "drive") as reader:
        yield reader


def played(replay: LiveReplay, bag: BagReader, output: Path) -> Summary:
    with BagWriter(output) as writer:
        return replay.run(bag, writer)


def test_three_consecutive_frames_that_do_not_arrive_end_the_replay(
    spinner: SpinningNode, remote: RemoteNode, bag: BagReader, tmp_path: Path
) -> None:
    replay = LiveReplay(spinner.node, remote, PLAN, arrival_timeout_s=0.05)
    summary = played(replay, bag, tmp_path / "results")
    assert summary.stopped.startswith(
        f"3 consecutive frames of camera front on {TOPIC} were lost between player and node /multi_dnn; the last: "
    )
    assert (summary.frames, summary.complete) == (FRAMES, 0)
    stream = summary.streams["lane", "front"]
    assert stream.dropped == {"lost": 3, "not_played": FRAMES - 3}
    assert stream.offered == stream.published + stream.dropped.total()


def test_a_callback_that_fails_ends_the_replay_with_its_cause(
    spinner: SpinningNode,
    mute: Any,
    remote: RemoteNode,
    bag: BagReader,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("no such count")

    monkeypatch.setattr(live_results, "stream_accounts", broken)
    replay = LiveReplay(spinner.node, remote, PLAN)
    reports = mute.create_publisher(DiagnosticArray, "/diagnostics", 10)
    until(reports.get_subscription_count)
    reports.publish(DiagnosticArray())
    begin = time.monotonic()
    summary = played(replay, bag, tmp_path / "results")
    assert "a callback failed: ZeroDivisionError: no such count" in summary.stopped
    assert summary.streams["lane", "front"].dropped == {"not_played": FRAMES}
    with pytest.raises(RemoteNodeError, match="ZeroDivisionError: no such count"):
        remote.state()
    assert time.monotonic() - begin < 50.0  # less than the minute for which the replay waits for a frame


def test_it_connects_with_a_subscription_that_cannot_count_its_publishers(
    spinner: SpinningNode, mute: Any, remote: RemoteNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Humble."""
    monkeypatch.delattr(Subscription, "get_publisher_count")
    replay = LiveReplay(spinner.node, remote, PLAN)
    replay.before_activation()
    mute.create_subscription(Image, TOPIC, print, 10)
    for name, msgtype in RESULT_KINDS.get("lanes").msgtypes.items():
        mute.create_publisher(message_class(msgtype), f"/multi_dnn/front/lane/{name}", 10)
    until(lambda: replay._unconnected_topic() == "/diagnostics")
    with pytest.raises(LiveReplayError, match=r"not connected to /multi_dnn on /diagnostics after 0\.1 s"):
        replay.wait_connected(0.1)
    mute.create_publisher(DiagnosticArray, "/diagnostics", 10)
    replay.wait_connected(30.0)


def test_two_cameras_cannot_share_a_recorded_topic(bag: BagReader) -> None:
    cameras = {name: CameraConfig(topic="", transport="raw") for name in ("front", "rear")}
    with pytest.raises(
        BagError, match=f"cameras 'front' and 'rear' have the same topic {TOPIC} .*--topic CAMERA:=TOPIC"
    ):
        recorded_topics(bag, cameras, {"rear": TOPIC})
