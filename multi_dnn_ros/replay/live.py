"""Replays a recording through a running node: one frame at a time, results into another recording.

The node keeps only the newest frame per camera, so a player that keeps the recording's pace loses frames for every
slower DNN. This player is paced by results instead: the next frame is published once every DNN has published its
results for the last one, or the diagnostics report the drop. With one frame in progress no queue can overflow and no
frame can be replaced, however slow the CPU is. Each inference has one frame, so two replays of a recording give the
same results.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.serialization import deserialize_message, serialize_message
from rosgraph_msgs.msg import Clock

from multi_dnn_ros.bags import BagMessage, BagReader, BagWriter
from multi_dnn_ros.bags.definitions import canonical, message_class
from multi_dnn_ros.camera.pace import Pace, gap_ns
from multi_dnn_ros.replay.live_results import LiveReplayError, LiveResults
from multi_dnn_ros.replay.live_setup import LiveCamera, LivePlan
from multi_dnn_ros.replay.remote_node import RemoteNode, RemoteNodeError
from multi_dnn_ros.replay.stamps import nearest_time
from multi_dnn_ros.replay.summary import Summary
from multi_dnn_ros.ros.result_messages import LabelInfo

_RELIABLE = QoSProfile(depth=10)
_LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
#: A frame later than this relative to the recording shifts the schedule.
_SLACK_S = 0.05
#: Interval between checks of the connections.
_CONNECT_POLL_S = 0.02


class LiveReplay:
    """Publishes the frames of a recording to the node `remote` and collects its results.

    Create it before the node is configured: the node then knows its publishers and subscriptions when it creates its
    own, so that both sides are connected once :meth:`wait_connected` returns. An executor in another thread must spin
    `node`.

    rate: playback speed relative to the recording; slow DNNs reduce it.
    arrival_timeout_s: a frame is lost if the node has not received it within this time, or if its published results
    have not arrived; three consecutive losses of one camera end the replay. work_timeout_s: a DNN that takes longer for
    a frame ends the replay.
    """

    def __init__(
        self,
        node: Node,
        remote: RemoteNode,
        plan: LivePlan,
        *,
        rate: float = 1.0,
        arrival_timeout_s: float = 60.0,
        work_timeout_s: float = 600.0,
    ) -> None:
        self._node = node
        self._remote = remote
        self._plan = plan
        self._rate = rate
        self._results = results = LiveResults(remote, plan.topics, arrival_timeout_s, work_timeout_s)
        self._clock = node.create_publisher(Clock, "/clock", _RELIABLE)
        self._publishers = {
            camera.name: node.create_publisher(message_class(camera.msgtype), camera.topic, _RELIABLE)
            for camera in plan.cameras
        }
        self._subscriptions = [
            node.create_subscription(
                message_class(msgtype),
                f"{remote.name}/{camera.name}/{name}",
                partial(results.receive, (dnn, camera.name), name),
                _RELIABLE,
            )
            for camera in plan.cameras
            for dnn in camera.dnns
            for name, msgtype in plan.topics(dnn).items()
        ]
        self._labeled_results = [name for name, kind in plan.kinds.items() if kind.has_labels and LabelInfo is not None]
        self._subscriptions += [
            node.create_subscription(
                LabelInfo, f"{remote.name}/{name}/label_info", partial(results.receive_labels, name), _LATCHED
            )
            for name in self._labeled_results
        ]
        self._subscriptions.append(
            node.create_subscription(DiagnosticArray, "/diagnostics", results.receive_diagnostics, _RELIABLE)
        )
        self._other_subscribers: dict[str, int] = {}

    def before_activation(self) -> None:
        """Record the current subscribers of the cameras' topics, to distinguish them from the node."""
        counts = {name: publisher.get_subscription_count() for name, publisher in self._publishers.items()}
        self._other_subscribers = counts

    def wait_connected(self, timeout_s: float) -> None:
        """Wait until the active node is connected in both directions and has sent its class names.

        Raises LiveReplayError that names the unconnected topic.
        """
        deadline = time.monotonic() + timeout_s
        while topic := self._unconnected_topic():
            if time.monotonic() > deadline:
                raise LiveReplayError(f"not connected to {self._remote.name} on {topic} after {timeout_s:g} s")
            self._results.wait_change(_CONNECT_POLL_S)

    def run(
        self,
        bag: BagReader,
        writer: BagWriter,
        *,
        with_input: bool = False,
        progress: Callable[[int], object] = lambda frames: None,
    ) -> Summary:
        """Play `bag` and write the results into `writer`, which stays open, in the same order as Replay.run.

        The replay ends early if the node ends or stops responding, if frames do not reach it, or if a callback fails;
        :attr:`Summary.stopped` then says why.
        """
        summary = Summary()
        cameras = {camera.recorded: camera for camera in self._plan.cameras}
        self._declare(writer)
        pace = Pace(_SLACK_S)
        due_s, last_ns = 0.0, None
        for message in bag.messages(cameras):
            if last_ns is None:
                self._write_labels(message, cameras[message.topic], writer)
            summary.frames += 1
            if with_input:
                writer.add_topic(message.topic, message.msgtype)
                writer.write(message.topic, message.stamp_ns, message.data)
            if not summary.stopped:
                due_s += gap_ns(last_ns, message.stamp_ns) * 1e-9 / self._rate
                pace.wait(due_s)
            last_ns = message.stamp_ns
            try:
                complete = self._play(message, cameras[message.topic], writer, summary)
            except (LiveReplayError, RemoteNodeError) as error:
                summary.stopped = str(error)
                complete = False
            summary.complete += complete
            progress(1)
        summary.input_damage = list(bag.damage)
        return summary

    # -- one frame

    def _play(self, message: BagMessage, camera: LiveCamera, writer: BagWriter, summary: Summary) -> bool:
        """Play one frame. Returns whether every DNN published its results."""
        for dnn in camera.dnns:
            summary.offer(dnn, camera.name)
        if summary.stopped:
            self._drop(summary, camera, "not_played", "the replay had ended")
            return False
        try:
            image = deserialize_message(message.data, message_class(message.msgtype))
        except Exception as error:  # deserialization raises arbitrary errors for damaged bytes
            self._drop(summary, camera, "bad_image", f"not a {message.msgtype}: {error}")
            return False
        self._results.begin(image.header, camera)
        self._clock.publish(Clock(clock=nearest_time(message.stamp_ns)))
        self._publishers[camera.name].publish(image)
        try:
            results, lost = self._results.wait_finished()
        except (LiveReplayError, RemoteNodeError) as error:
            self._drop(summary, camera, "not_played", str(error))
            raise
        for dnn in camera.dnns:
            stream = dnn, camera.name
            for name, msgtype in self._plan.topics(dnn).items():
                if name in results[stream]:
                    topic = f"{self._remote.name}/{camera.name}/{name}"
                    data = canonical(msgtype, serialize_message(results[stream][name]))
                    writer.write(topic, message.stamp_ns, data)
            if stream in lost:
                summary.drop(dnn, camera.name, *lost[stream])
            else:
                summary.publish(dnn, camera.name)
        self._results.limit_losses(camera, [message for reason, message in lost.values() if reason == "lost"])
        return not lost

    def _drop(self, summary: Summary, camera: LiveCamera, reason: str, message: str) -> None:
        for dnn in camera.dnns:
            summary.drop(dnn, camera.name, reason, message)

    # -- the new recording

    def _declare(self, writer: BagWriter) -> None:
        for dnn in self._plan.dnns:
            for camera in self._plan.cameras:
                if dnn in camera.dnns:
                    for name, msgtype in self._plan.topics(dnn).items():
                        writer.add_topic(f"{self._remote.name}/{camera.name}/{name}", msgtype)

    def _write_labels(self, first: BagMessage, camera: LiveCamera, writer: BagWriter) -> None:
        """Write the labels with the time of the first frame, whatever the clock was when the node was activated."""
        try:
            stamp = deserialize_message(first.data, message_class(first.msgtype)).header.stamp
        except Exception:  # _play counts the damaged frame
            stamp = nearest_time(first.stamp_ns)
        labels = self._results.labels
        for name in self._labeled_results:
            topic, msgtype = f"{self._remote.name}/{name}/label_info", "vision_msgs/msg/LabelInfo"
            labels[name].header.stamp = stamp
            writer.add_topic(topic, msgtype, latched=True)
            writer.write(topic, first.stamp_ns, canonical(msgtype, serialize_message(labels[name])))

    # -- connections

    def _unconnected_topic(self) -> str:
        """The first topic that is not connected yet; empty if all are."""
        if not self._remote.is_up():
            raise LiveReplayError(f"the node {self._remote.name} has ended")
        for camera in self._plan.cameras:
            if self._publishers[camera.name].get_subscription_count() <= self._other_subscribers.get(camera.name, 0):
                return camera.topic
        for subscription in self._subscriptions:
            if not self._count_publishers(subscription):
                return str(subscription.topic_name)
        labels = self._results.labels
        silent = [name for name in self._labeled_results if name not in labels]
        return f"{self._remote.name}/{silent[0]}/label_info" if silent else ""

    def _count_publishers(self, subscription: Any) -> int:
        if hasattr(subscription, "get_publisher_count"):
            return int(subscription.get_publisher_count())
        # On Humble: publishers that the middleware has discovered, connected or not.
        return int(self._node.count_publishers(subscription.topic_name))
