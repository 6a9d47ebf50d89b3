"""Runs the frames of a recording through the DNNs, and writes the results in order into another recording."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from typing import Any

import numpy as np
import numpy.typing as npt
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header

from multi_dnn_ros.common.errors import CommandError, FrameError
from multi_dnn_ros.engine.engine import Engine
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import Drop, DropReason, Result
from multi_dnn_ros.replay.bag_writer import BagWriter, canonical
from multi_dnn_ros.replay.storage_files import BagMessage
from multi_dnn_ros.ros.result_messages import label_info_message
from multi_dnn_ros.serving.build import build
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.drawing import draw
from multi_dnn_ros.vision.image_decoding import ImageSettings, decode_compressed, decode_image
from multi_dnn_ros.vision.result_kind import RESULT_KINDS, Layer, ResultKind
from multi_dnn_ros.vision.results import result_name, results_by_name

#: A frame that takes longer ends the replay.
_STALL_S = 600.0
_CLASSES = {"sensor_msgs/msg/Image": Image, "sensor_msgs/msg/CompressedImage": CompressedImage}


class FrameOutcome:
    """One recorded frame and what became of it.

    source: its message. header: the header of its image. problem: why it has no image; empty if it has one. ends: its
    results and drops by DNN, complete when `done` is set.
    """

    def __init__(self, camera: str, source: BagMessage, dnns: Sequence[str]) -> None:
        self.source, self.dnns = source, tuple(dnns)
        self.header, self.problem = Header(), ""
        self.frame = Frame(camera, source.stamp_ns, context=self)
        self.ends: dict[str, Result | Drop] = {}
        self.done = threading.Event()

    def settle(self, end: Result | Drop) -> None:
        """Store the result or drop of one DNN; called from any thread."""
        self.ends[end.dnn] = end
        if len(self.ends) == len(self.dnns):
            self.done.set()

    def in_order(self) -> list[Result | Drop]:
        """The results and drops, in the order of the DNNs."""
        return [self.ends[dnn] for dnn in self.dnns]

    def results(self) -> dict[str, Any]:
        """The value of each result by its name."""
        found = [results_by_name(end.dnn, end.output) for end in self.in_order() if isinstance(end, Result)]
        return {name: output for each in found for name, output in each.items()}

    def drawn(self, kinds: Mapping[str, ResultKind]) -> npt.NDArray[np.uint8]:
        """The image with the results on it, (H, W, 3) uint8 RGB. kinds: the kind of each result, by name."""
        return draw(self.frame.image, [Layer(name, kinds[name], output) for name, output in self.results().items()])


@dataclass
class StreamCount:
    """The frames of one camera for one DNN: offered == published + sum(dropped).

    dropped: by reason, as in the node's diagnostics. first_drops: message of the first drop, by reason.
    """

    dnn: str
    camera: str
    offered: int = 0
    published: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    first_drops: dict[str, str] = field(default_factory=dict)


class Replay:
    """Replays recorded frames through one set of DNNs: while a frame is computed, the next one is decoded.

    kinds: the kind of each result, by name. device: where the DNNs run.
    """

    def __init__(self, config: NodeConfig, topics: Mapping[str, str], node: str, log: Callable[[str], None]) -> None:
        """topics: recorded topic of each camera. node: fully qualified name, for the topics of the results. log: called
        with lines about the DNNs.

        Age limits have no effect: a replay waits for the DNNs, so that no frame is too old. Raises what building the
        DNNs raises.
        """
        no_limits = {"max_age_ms": 0.0, "deadline_ms": 0.0}
        dnns = {name: dnn.model_copy(update=no_limits) for name, dnn in config.dnns.items()}
        pipeline = build(config.model_copy(update={"dnns": dnns}), log)
        self.device, self._tasks, self._topics, self._node = pipeline.device, pipeline.tasks, topics, node.rstrip("/")
        outputs = {
            result_name(name, key): output for name, dnn in pipeline.dnns.items() for key, output in dnn.outputs.items()
        }
        self.kinds = {name: RESULT_KINDS.get(output.result_kind) for name, output in outputs.items()}
        self._labels = {
            name: (output.labels, output.decoder.score_threshold)
            for name, output in outputs.items()
            if self.kinds[name].has_labels
        }
        self._images = {
            name: ImageSettings(name, camera.max_pixels, camera.bits, lambda text: log(f"warning: {text}"))
            for name, camera in config.cameras.items()
        }
        self._engine = Engine(
            pipeline.tasks, on_result=_settle, on_drop=_settle, workers=pipeline.workers, device=pipeline.device
        )  # fmt: skip

    def run(
        self, messages: Iterable[BagMessage], writer: BagWriter, *, with_input: bool = False,
        on_frame: Callable[[FrameOutcome], object] = lambda outcome: None,
    ) -> list[StreamCount]:  # fmt: skip
        """Replay messages of the recorded topics into `writer`, which stays open.

        Output messages carry the header and recording time of their frame, and are ordered by frame, then by DNN.
        with_input: copy each camera message before its outputs. on_frame: called with every frame when it is written.
        Returns the accounts; equal for equal replays. Raises CommandError if a DNN takes ten minutes for a frame.
        """
        for task in self._tasks:  # all topics, so that those without messages are listed too
            for camera, (name, kind) in product(task.cameras, self.kinds.items()):
                for topic in kind.topics if name.split("/")[0] == task.name else ():
                    writer.add_topic(f"{self._node}/{camera}/{name}/{topic.name}", topic.msgtype)
        counts: dict[tuple[str, str], StreamCount] = {}
        self._engine.start()
        running: FrameOutcome | None = None
        cameras = {topic: camera for camera, topic in self._topics.items()}
        try:
            for message in chain(messages, (None,)):
                following = None if message is None else self._decoded(message, cameras[message.topic])
                if running is not None:
                    if not running.done.wait(_STALL_S):
                        raise CommandError(f"a DNN has been busy with one frame for {_STALL_S:g} s")
                    self._write(running, writer, with_input, is_first=not counts)
                    for end in running.in_order():
                        dnn, camera = end.dnn, running.frame.camera
                        count = counts.setdefault((dnn, camera), StreamCount(dnn, camera))
                        count.offered += 1
                        if isinstance(end, Result):
                            count.published += 1
                        else:
                            count.dropped[end.reason.value] += 1
                            count.first_drops.setdefault(end.reason.value, end.message)
                    on_frame(running)
                if following is not None:
                    self._start(following)
                running = following
        finally:
            self._engine.stop(timeout_s=5.0)
        return list(counts.values())

    def _decoded(self, message: BagMessage, camera: str) -> FrameOutcome:
        outcome = FrameOutcome(camera, message, [task.name for task in self._tasks if camera in task.cameras])
        try:
            image: Any = deserialize_message(message.data, _CLASSES[message.msgtype])
        except Exception as error:  # deserialization raises arbitrary errors for damaged bytes
            outcome.problem = f"not a {message.msgtype}: {error}"
            return outcome
        outcome.header = image.header
        outcome.frame.stamp_ns = image.header.stamp.sec * 1_000_000_000 + image.header.stamp.nanosec
        decode = decode_compressed if isinstance(image, CompressedImage) else decode_image
        try:
            outcome.frame.image = decode(image, self._images[camera])
        except FrameError as error:
            outcome.problem = str(error)
        return outcome

    def _start(self, outcome: FrameOutcome) -> None:
        if not outcome.dnns:
            outcome.done.set()
        elif outcome.problem:
            for dnn in outcome.dnns:
                outcome.settle(Drop(dnn, outcome.frame, DropReason.BAD_IMAGE, outcome.problem))
        else:
            self._engine.submit(outcome.frame, _STALL_S)

    def _write(self, outcome: FrameOutcome, writer: BagWriter, with_input: bool, *, is_first: bool) -> None:
        source = outcome.source

        def write(topic: str, message: Any, *, latched: bool = False) -> None:
            msgtype = msgtype_of(message)
            writer.add_topic(f"{self._node}/{topic}", msgtype, latched=latched)
            writer.write(f"{self._node}/{topic}", source.stamp_ns, canonical(msgtype, serialize_message(message)))

        for name, (names, threshold) in self._labels.items() if is_first else ():
            labels = label_info_message(names, threshold, Header(stamp=outcome.header.stamp))
            write(f"{name}/label_info", labels, latched=True)
        if with_input:
            writer.add_topic(source.topic, source.msgtype)
            writer.write(source.topic, source.stamp_ns, source.data)
        for name, output in outcome.results().items():
            self.kinds[name].check(name, output)
            for topic in self.kinds[name].topics:
                write(f"{outcome.frame.camera}/{name}/{topic.name}", topic.message(output, outcome.header))


def _settle(end: Result | Drop) -> None:
    outcome = end.frame.context
    assert isinstance(outcome, FrameOutcome)
    outcome.settle(end)


def msgtype_of(message: Any) -> str:
    """The type name of a message object, such as `vision_msgs/msg/Detection2DArray`."""
    kind = type(message)
    return f"{kind.__module__.split('.')[0]}/msg/{kind.__name__}"
