"""Runs the frames of a recording through the DNNs, and writes the results in order into another recording."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header

from multi_dnn_ros.bags import BagMessage, BagWriter
from multi_dnn_ros.bags.definitions import canonical
from multi_dnn_ros.common.frame_error import FrameError
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import Drop, DropReason, Result
from multi_dnn_ros.replay.frame_order import FrameOrder, FrameOutcome
from multi_dnn_ros.replay.frame_runner import EngineRunner
from multi_dnn_ros.replay.stamps import nearest_time
from multi_dnn_ros.replay.summary import Summary

_CLASSES = {"sensor_msgs/msg/Image": Image, "sensor_msgs/msg/CompressedImage": CompressedImage}

#: (camera, image message) -> (H, W, 3) uint8 RGB; raises FrameError.
Decode = Callable[[str, Any], npt.NDArray[np.uint8]]
#: (result, header of its frame) -> topics below the camera's (`object/detections`) and their messages.
ToMessages = Callable[[Result, Header], Iterable[tuple[str, Any]]]
#: Header of the first frame -> latched topics below the node and their messages.
ToLatched = Callable[[Header], Iterable[tuple[str, Any]]]


class Messages(Protocol):
    """What is replayed: a :class:`multi_dnn_ros.bags.BagReader`, or anything with these two members.

    damage: problems of the recording, complete after reading.
    """

    @property
    def damage(self) -> list[str]: ...

    def messages(self, topics: Collection[str] | None = None) -> Iterator[BagMessage]: ...


class ReplayError(RuntimeError):
    """The replay cannot continue; the message says why."""


@dataclass(frozen=True)
class RecordedFrame:
    """Context of a frame: its message and header."""

    message: BagMessage
    header: Header


class Replay:
    """Replays recordings through one set of DNNs.

    runner: runs the DNNs. topics: recorded topic of each camera. decode, to_messages: convert from and to ROS messages.
    to_latched: messages written once, before the outputs of the first frame, on latched topics.
    node: fully qualified node name used in the written topics (`/multi_dnn/front/object/detections`).
    stall_timeout_s: a DNN that takes longer for a frame ends the replay.
    """

    def __init__(
        self,
        runner: EngineRunner,
        topics: Mapping[str, str],
        *,
        decode: Decode,
        to_messages: ToMessages,
        to_latched: ToLatched = lambda header: (),
        node: str = "/multi_dnn",
        stall_timeout_s: float = 600.0,
    ) -> None:
        self._runner = runner
        self._camera_of = {topic: camera for camera, topic in topics.items()}
        if len(self._camera_of) < len(topics):
            raise ValueError(f"two cameras read the same topic: {', '.join(f'{c}:={t}' for c, t in topics.items())}")
        self._decode = decode
        self._to_messages = to_messages
        self._to_latched = to_latched
        self._node = node.rstrip("/")
        self._stall_timeout_s = stall_timeout_s

    def run(
        self,
        bag: Messages,
        writer: BagWriter,
        *,
        with_input: bool = False,
        on_frame: Callable[[FrameOutcome], None] = lambda outcome: None,
        progress: Callable[[int], object] = lambda frames: None,
    ) -> Summary:
        """Replay `bag` into `writer`, which stays open.

        Output messages carry the header and recording time of their frame, and are ordered by frame, then by DNN in the
        runner's order. with_input: copy each camera message before its outputs.
        on_frame: called in order with every frame when it is written. progress: called with the number of finished
        frames.
        """
        order, summary = FrameOrder(), Summary()
        latched_written = False

        def write_complete(*, all_of_them: bool = False) -> None:
            nonlocal latched_written
            for outcome in order.take(all_of_them=all_of_them):
                if not latched_written:
                    self._write_latched(outcome, writer)
                    latched_written = True
                self._write(outcome, writer, summary, with_input)
                on_frame(outcome)
                progress(1)

        streams = self._runner.streams
        self._runner.start(order.settle)
        try:
            for message in bag.messages(self._camera_of):
                frame, problem = self._frame(message)
                dnns = [name for name, cameras in streams if frame.camera in cameras]
                order.expect(frame, dnns)
                for dnn in dnns:
                    summary.offer(dnn, frame.camera)
                if problem is not None:
                    for dnn in dnns:
                        order.settle(Drop(dnn, frame, DropReason.BAD_IMAGE, problem))
                elif not self._runner.submit(frame, self._stall_timeout_s):
                    raise ReplayError(f"a DNN has been busy with one frame for {self._stall_timeout_s:g} s")
                write_complete()
            if not order.wait_complete(self._stall_timeout_s):
                raise ReplayError(f"the last frames were not finished after {self._stall_timeout_s:g} s")
            write_complete(all_of_them=True)
        finally:
            self._runner.stop()
        summary.input_damage = list(bag.damage)
        return summary

    def _frame(self, message: BagMessage) -> tuple[Frame, str | None]:
        """The frame of a camera's message, and why it has no image (None if it has one)."""
        camera = self._camera_of[message.topic]
        try:
            image = deserialize_message(message.data, _CLASSES[message.msgtype])
        except Exception as error:  # deserialization raises arbitrary errors for damaged bytes
            header = Header(stamp=nearest_time(message.stamp_ns))
            frame = Frame(camera, message.stamp_ns, context=RecordedFrame(message, header))
            return frame, f"not a {message.msgtype}: {error}"
        stamp_ns = image.header.stamp.sec * 1_000_000_000 + image.header.stamp.nanosec
        recording = RecordedFrame(message, image.header)
        try:
            return Frame(camera, stamp_ns, self._decode(camera, image), recording), None
        except FrameError as error:
            return Frame(camera, stamp_ns, context=recording), str(error)

    def _write_latched(self, first: FrameOutcome, writer: BagWriter) -> None:
        recording = first.frame.context
        assert isinstance(recording, RecordedFrame)
        for name, message in self._to_latched(Header(stamp=recording.header.stamp)):
            topic, msgtype = f"{self._node}/{name}", msgtype_of(message)
            writer.add_topic(topic, msgtype, latched=True)
            writer.write(topic, recording.message.stamp_ns, canonical(msgtype, serialize_message(message)))

    def _write(self, outcome: FrameOutcome, writer: BagWriter, summary: Summary, with_input: bool) -> None:
        recording = outcome.frame.context
        assert isinstance(recording, RecordedFrame)
        source = recording.message
        if with_input:
            writer.add_topic(source.topic, source.msgtype)
            writer.write(source.topic, source.stamp_ns, source.data)
        for end in outcome.in_order():
            if isinstance(end, Result):
                for name, message in self._to_messages(end, recording.header):
                    topic, msgtype = f"{self._node}/{outcome.frame.camera}/{name}", msgtype_of(message)
                    writer.add_topic(topic, msgtype)
                    writer.write(topic, source.stamp_ns, canonical(msgtype, serialize_message(message)))
                summary.publish(end.dnn, end.frame.camera)
            else:
                summary.drop(end.dnn, end.frame.camera, end.reason.value, end.message)


def msgtype_of(message: Any) -> str:
    """The type name of a message object, such as `vision_msgs/msg/Detection2DArray`."""
    kind = type(message)
    return f"{kind.__module__.split('.')[0]}/msg/{kind.__name__}"
