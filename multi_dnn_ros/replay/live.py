"""Replays a recording through a running node: one frame at a time, results into another recording.

The node keeps only the newest frame per camera, so a player that keeps the recording's pace loses frames for every
slower DNN. This player is paced by results instead: the next frame is published once every DNN has published its
results for the last one, or the diagnostics report the drop. With one frame in progress no queue can overflow and no
frame can be replaced, however slow the CPU is. Each inference has one frame, so two replays of a recording give the
same results.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
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
from multi_dnn_ros.camera.pace import Pace
from multi_dnn_ros.replay.live_setup import LiveCamera, LivePlan
from multi_dnn_ros.replay.node_accounts import StreamAccount, stream_accounts
from multi_dnn_ros.replay.remote_node import RemoteNode, RemoteNodeError
from multi_dnn_ros.replay.stamps import nearest_time
from multi_dnn_ros.replay.summary import Summary
from multi_dnn_ros.ros.result_messages import LabelInfo

Stream = tuple[str, str]

_RELIABLE = QoSProfile(depth=10)
_LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
#: Interval of checking that the node still exists.
_POLL_S = 0.5
#: A frame later than this relative to the recording shifts the schedule.
_SLACK_S = 0.05
_LONGEST_GAP_S = 3600.0
#: Consecutive lost frames of one camera that end the replay; each costs the arrival timeout.
_MOST_LOST = 3


class LiveReplayError(RuntimeError):
    """The replay cannot continue; the message says why."""


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
        self._arrival_timeout_s = arrival_timeout_s
        self._work_timeout_s = work_timeout_s
        self._changed = threading.Condition()
        self._header: Any = None  # of the frame in progress
        self._camera: LiveCamera | None = None
        self._results: dict[Stream, dict[str, Any]] = {}  # of the frame in progress, by name below the stream's topic
        self._labels: dict[str, Any] = {}
        self._accounts: dict[Stream, StreamAccount] = {}
        # Counts that the node's accounts must show once the last frame is finished.
        self._offered: Counter[Stream] = Counter()
        self._published: Counter[Stream] = Counter()
        self._dropped: dict[Stream, Counter[str]] = {}
        self._lost_frames: Counter[str] = Counter()  # consecutive, by camera
        self._clock = node.create_publisher(Clock, "/clock", _RELIABLE)
        self._frames = {
            camera.name: node.create_publisher(message_class(camera.msgtype), camera.topic, _RELIABLE)
            for camera in plan.cameras
        }
        self._subscriptions = [
            node.create_subscription(
                message_class(msgtype),
                f"{remote.name}/{camera.name}/{dnn}/{name}",
                partial(self._receive, (dnn, camera.name), name),
                _RELIABLE,
            )
            for camera in plan.cameras
            for dnn in camera.dnns
            for name, msgtype in plan.kinds[dnn].msgtypes.items()
        ]
        self._with_labels = [dnn for dnn, kind in plan.kinds.items() if kind.has_labels and LabelInfo is not None]
        self._subscriptions += [
            node.create_subscription(
                LabelInfo, f"{remote.name}/{dnn}/label_info", partial(self._receive_labels, dnn), _LATCHED
            )
            for dnn in self._with_labels
        ]
        self._subscriptions.append(node.create_subscription(DiagnosticArray, "/diagnostics", self._count, _RELIABLE))
        self._listeners: dict[str, int] = {}

    def before_activation(self) -> None:
        """Record the current subscribers of the cameras' topics, to distinguish them from the node."""
        self._listeners = {name: publisher.get_subscription_count() for name, publisher in self._frames.items()}

    def wait_connected(self, timeout_s: float) -> None:
        """Wait until the active node is connected in both directions and has sent its class names.

        Raises LiveReplayError that names the unconnected topic.
        """
        deadline = time.monotonic() + timeout_s
        while missing := self._not_connected():
            if time.monotonic() > deadline:
                raise LiveReplayError(f"not connected with {self._remote.name} on {missing} after {timeout_s:g} s")
            with self._changed:
                self._changed.wait(0.02)

    def run(
        self,
        bag: BagReader,
        writer: BagWriter,
        *,
        with_input: bool = False,
        progress: Callable[[int], object] = lambda frames: None,
    ) -> Summary:
        """Play `bag` and write the results into `writer`, which stays open; same order as Replay.run.

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
                due_s += _gap_s(last_ns, message.stamp_ns) / self._rate
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
        """Whether every DNN published its results."""
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
        with self._changed:
            self._header, self._camera = image.header, camera
            self._results = {(dnn, camera.name): {} for dnn in camera.dnns}
            for stream in self._results:
                self._offered[stream] += 1
        self._clock.publish(Clock(clock=nearest_time(message.stamp_ns)))
        self._frames[camera.name].publish(image)
        try:
            lost = self._await_results(camera)
        except (LiveReplayError, RemoteNodeError) as error:
            self._drop(summary, camera, "not_played", str(error))
            raise
        with self._changed:
            self._header, results = None, self._results
        for dnn in camera.dnns:
            stream = dnn, camera.name
            for name, msgtype in self._plan.kinds[dnn].msgtypes.items():
                if name in results[stream]:
                    topic = f"{self._remote.name}/{camera.name}/{dnn}/{name}"
                    data = canonical(msgtype, serialize_message(results[stream][name]))
                    writer.write(topic, message.stamp_ns, data)
            if stream in lost:
                summary.drop(dnn, camera.name, *lost[stream])
            else:
                summary.publish(dnn, camera.name)
        self._limit_losses(camera, [message for reason, message in lost.values() if reason == "lost"])
        return not lost

    def _limit_losses(self, camera: LiveCamera, losses: list[str]) -> None:
        """losses: how the last frame was lost between player and node, one entry per affected DNN."""
        self._lost_frames[camera.name] = self._lost_frames[camera.name] + 1 if losses else 0
        if self._lost_frames[camera.name] == _MOST_LOST:
            raise LiveReplayError(
                f"{_MOST_LOST} consecutive frames of camera {camera.name} on {camera.topic} were lost between player "
                f"and node {self._remote.name}; the last: {losses[0]}"
            )

    def _await_results(self, camera: LiveCamera) -> dict[Stream, tuple[str, str]]:
        """Wait until every DNN has finished the frame in progress; returns reason and message for each that lost it."""
        begin = time.monotonic()
        lost: dict[Stream, tuple[str, str]] = {}
        looked = begin
        with self._changed:
            while True:
                waited_s = time.monotonic() - begin
                for stream in self._results:
                    if stream not in lost and not self._is_complete(stream):
                        reason = self._lost(stream, waited_s)
                        if reason is not None:
                            lost[stream] = reason
                if all(stream in lost or self._is_complete(stream) for stream in self._results):
                    break
                if time.monotonic() - looked > _POLL_S:
                    looked = time.monotonic()
                    if not self._remote.is_up():
                        raise LiveReplayError(f"the node {self._remote.name} has ended")
                self._changed.wait(_POLL_S)
            for stream in self._results:
                self._published[stream] += stream not in lost
        return lost

    def _is_complete(self, stream: Stream) -> bool:
        return self._results[stream].keys() >= self._plan.kinds[stream[0]].msgtypes.keys()

    def _lost(self, stream: Stream, waited_s: float) -> tuple[str, str] | None:
        """Why the frame in progress will have no result from this DNN; None: it may still arrive. Holds the lock."""
        account = self._accounts.get(stream, StreamAccount())
        arrived = account.offered >= self._offered[stream]
        if arrived and account.pending == 0 and account.published == self._published[stream]:
            new = account.dropped - self._dropped.get(stream, Counter())
            self._dropped[stream] = account.dropped
            return next(iter(new), "dropped"), "the node dropped the frame; its log says why"
        if arrived and account.pending:
            if waited_s > self._work_timeout_s:
                raise LiveReplayError(f"DNN {stream[0]} has been busy with one frame for {self._work_timeout_s:g} s")
        elif waited_s > self._arrival_timeout_s:
            if arrived:
                text = f"the node published the results, but they did not arrive within {self._arrival_timeout_s:g} s"
            else:
                text = f"the frame did not reach the node within {self._arrival_timeout_s:g} s"
            # The node's accounts will not include this frame.
            self._offered[stream], self._published[stream] = account.offered, account.published
            return "lost", text
        return None

    def _drop(self, summary: Summary, camera: LiveCamera, reason: str, message: str) -> None:
        for dnn in camera.dnns:
            summary.drop(dnn, camera.name, reason, message)

    # -- the new recording

    def _declare(self, writer: BagWriter) -> None:
        for dnn, kind in self._plan.kinds.items():
            for camera in self._plan.cameras:
                if dnn in camera.dnns:
                    for name, msgtype in kind.msgtypes.items():
                        writer.add_topic(f"{self._remote.name}/{camera.name}/{dnn}/{name}", msgtype)

    def _write_labels(self, first: BagMessage, camera: LiveCamera, writer: BagWriter) -> None:
        """Write the labels with the time of the first frame, whatever the clock was when the node was activated."""
        try:
            stamp = deserialize_message(first.data, message_class(first.msgtype)).header.stamp
        except Exception:  # the frame itself is counted later
            stamp = nearest_time(first.stamp_ns)
        for dnn in self._with_labels:
            topic, msgtype = f"{self._remote.name}/{dnn}/label_info", "vision_msgs/msg/LabelInfo"
            self._labels[dnn].header.stamp = stamp
            writer.add_topic(topic, msgtype, latched=True)
            writer.write(topic, first.stamp_ns, canonical(msgtype, serialize_message(self._labels[dnn])))

    # -- connections; called in the executor's thread

    def _not_connected(self) -> str:
        """Connections that are still missing; empty if there are none."""
        if not self._remote.is_up():
            raise LiveReplayError(f"the node {self._remote.name} has ended")
        for camera in self._plan.cameras:
            if self._frames[camera.name].get_subscription_count() <= self._listeners.get(camera.name, 0):
                return camera.topic
        for subscription in self._subscriptions:
            if not self._count_publishers(subscription):
                return str(subscription.topic_name)
        with self._changed:
            silent = [dnn for dnn in self._with_labels if dnn not in self._labels]
        return f"{self._remote.name}/{silent[0]}/label_info" if silent else ""

    def _count_publishers(self, subscription: Any) -> int:
        if hasattr(subscription, "get_publisher_count"):
            return int(subscription.get_publisher_count())
        # On Humble: publishers that the middleware has discovered, connected or not.
        return int(self._node.count_publishers(subscription.topic_name))

    def _receive(self, stream: Stream, name: str, message: Any) -> None:
        with self._changed:
            if stream in self._results and message.header == self._header:
                self._results[stream][name] = message
                self._changed.notify_all()

    def _receive_labels(self, dnn: str, message: Any) -> None:
        with self._changed:
            self._labels[dnn] = message
            self._changed.notify_all()

    def _count(self, message: Any) -> None:
        with self._changed:
            self._accounts.update(stream_accounts(message, self._remote.name))
            self._changed.notify_all()


def _gap_s(last_ns: int | None, now_ns: int) -> float:
    """Seconds between two messages; 0 if damaged times, or concatenated recordings, make it longer than an hour."""
    gap_s = 0.0 if last_ns is None else (now_ns - last_ns) * 1e-9
    return gap_s if 0.0 < gap_s < _LONGEST_GAP_S else 0.0
