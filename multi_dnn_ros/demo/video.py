"""The demo on a user's video: every frame goes through the DNNs, and what they find is drawn and counted."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from rclpy.serialization import serialize_message
from rclpy.time import Time
from std_msgs.msg import Header
from tqdm import tqdm

from multi_dnn_ros.camera.messages import image_message
from multi_dnn_ros.camera.publisher import DEFAULT_RATE_HZ
from multi_dnn_ros.camera.sources import open_source
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.common.reporting import distribution, provenance, write_json
from multi_dnn_ros.demo.recorded_frames import found_names
from multi_dnn_ros.demo.report import DrawnFrames, check_output, clear_output
from multi_dnn_ros.engine.task import Result
from multi_dnn_ros.replay.bag_writer import BagWriter, canonical
from multi_dnn_ros.replay.replay import FrameOutcome, Replay
from multi_dnn_ros.replay.storage_files import BagMessage
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.results import results_by_name

_MSGTYPE = "sensor_msgs/msg/CompressedImage"


class VideoMessages:
    """The frames of a video as recorded messages.

    path: a video, an image, or a folder of images. topic: topic of the messages, sensor_msgs/CompressedImage (JPEG).
    frame_id: frame_id of their headers. seconds: how much of the video is read, from its beginning; None: all of it.
    The stamps start at the modification time of the file and advance at the video's rate, or 10 Hz if it has none, so
    that they are the same in every run. frames: expected number, 0 if unknown. damage: problems of the file, known
    after reading. Raises SourceError.
    """

    def __init__(self, path: Path, topic: str, frame_id: str, seconds: float | None = None) -> None:
        self._source = open_source(str(path))
        self._topic, self._frame_id = topic, frame_id
        self._begin_ns = path.stat().st_mtime_ns
        self._rate_hz = self._source.rate_hz or DEFAULT_RATE_HZ
        self._max_frames = None if seconds is None else max(1, round(seconds * self._rate_hz))
        known = self._source.count
        self.frames = known if self._max_frames is None else min(known or self._max_frames, self._max_frames)

    @property
    def damage(self) -> list[str]:
        return self._source.notes

    def messages(self) -> Iterator[BagMessage]:
        """The frames in order."""
        for number, item in enumerate(islice(self._source.items(), self._max_frames)):
            stamp_ns = self._begin_ns + round(number * 1e9 / self._rate_hz)
            header = Header(stamp=Time(nanoseconds=stamp_ns).to_msg(), frame_id=self._frame_id)
            data = canonical(_MSGTYPE, serialize_message(image_message(item.image, header, "jpeg")))
            yield BagMessage(self._topic, _MSGTYPE, stamp_ns, data)


def run_video(config: NodeConfig, path: Path, output: Path, seconds: float | None, node: str) -> dict[str, Any]:
    """Run the DNNs on every frame of a video, and write the files of a demo. Returns the content of summary.json.

    config: with one camera. seconds: see VideoMessages. node: full name of the node in the recorded topics. Of each
    DNN, `by_class` counts its results, and `inference_ms` is the time from the start of an inference to its decoded
    result. Raises UsageError if --output cannot be replaced, SourceError, and what building the DNNs raises.
    """
    check_output(output)
    if path.resolve().is_relative_to(output.resolve()):
        raise UsageError(f"--video {path} is in the folder of --output, {output}; choose another --output")
    (camera,) = config.cameras
    topic = f"/{camera}/image_raw/compressed"
    video = VideoMessages(path, topic, camera, seconds)
    replay = Replay(config, {camera: topic}, node, lambda line: print(line, file=sys.stderr))
    clear_output(output)
    classes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    times_ms: defaultdict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        writer = stack.enter_context(BagWriter(output / "bag"))
        drawn = stack.enter_context(DrawnFrames(output))
        bar = stack.enter_context(tqdm(total=video.frames or None, unit="frame", desc="video", disable=None))

        def finish_frame(outcome: FrameOutcome) -> None:
            bar.update()
            ends = [end for end in outcome.in_order() if isinstance(end, Result)]
            found = 0
            for end in ends:
                times_ms[end.dnn].append((end.timing.finished_ns - end.timing.started_ns) / 1e6)
                for part in results_by_name(end.dnn, end.output).values():
                    names = found_names(part)
                    classes[end.dnn].update(names)
                    found += len(names)
            if ends:
                drawn.add(outcome.drawn(replay.kinds), outcome.frame.stamp_ns, found)

        counts = replay.run(video.messages(), writer, with_input=True, on_frame=finish_frame)
    dnns = {
        stream.dnn: {
            "model": config.dnns[stream.dnn].model,
            **{name: value for name, value in vars(stream).items() if name not in ("dnn", "camera")},
            "by_class": dict(classes[stream.dnn].most_common()),
            "inference_ms": distribution(times_ms[stream.dnn]) if times_ms[stream.dnn] else {},
        }
        for stream in counts
    }
    summary = {"video": str(path), "device": str(replay.device), "dnns": dnns, "input_damage": video.damage}
    write_json(output / "summary.json", {**provenance(), **summary})
    return summary
