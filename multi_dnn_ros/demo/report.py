"""Makes the table, images and JSON files of a demo from its recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.serialization import deserialize_message
from tqdm import tqdm

from multi_dnn_ros.common.reporting import provenance, table, write_json
from multi_dnn_ros.demo.evaluation import DnnFigures, frame_counts, last_statuses, result_count
from multi_dnn_ros.demo.recorded_frames import CameraTopics, RecordedFrame, RecordedResult, Stream, recorded_frames
from multi_dnn_ros.replay.bag_reader import BagReader
from multi_dnn_ros.vision.drawing import draw
from multi_dnn_ros.vision.overlay_files import OverlayFiles, save_picture
from multi_dnn_ros.vision.result_kind import Layer, ResultKind

#: How long the last result of a DNN is drawn on frames without a result.
_LAST_RESULT_NS = 1_000_000_000


@dataclass(frozen=True)
class RecordedDrive:
    """The recording of one drive.

    output: folder of the recording, to which the report is written. node: the node's name. camera: the camera's name.
    topics: those of images and ground truth. streams: the DNNs. diagnostics: topic. settings: those of the drive, for
    the summary.
    """

    output: Path
    node: str
    camera: str
    topics: CameraTopics
    streams: Sequence[Stream]
    diagnostics: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """summary: content of summary.json. silent: DNNs that published nothing."""

    summary: Mapping[str, Any]
    silent: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        return 1 if self.silent else 0


def report(recorded: RecordedDrive, peak_memory_bytes: int, *, ended_in_time: bool) -> Outcome:
    """Score the recording, write overlay.mp4, overlay.png, diagnostics.json and summary.json, and print the table.

    Returns the summary and the DNNs without a result.
    """
    figures = _score_and_draw(recorded)
    messages, last, counts = _diagnostics(recorded)
    streams = {}
    for stream in recorded.streams:
        status = last.get(f"{stream.dnn} on {recorded.camera}")
        streams[stream.dnn] = {
            **figures[stream.dnn].summary(),
            "accounts": frame_counts(status) if status is not None else None,
        }
    write_json(recorded.output / "diagnostics.json", {"messages": messages, "last": last})
    summary = {
        **provenance(),
        "drive": dict(recorded.settings),
        "recorded_messages": counts,
        "dnns": streams,
        "node_peak_memory_bytes": peak_memory_bytes,
        "node_ended_cleanly": ended_in_time,
    }
    write_json(recorded.output / "summary.json", summary)
    print(_table(streams))
    print(f"peak resident memory of the node and its engine processes: {peak_memory_bytes / 2**20:.0f} MiB")
    if not ended_in_time:
        print("warning: the node did not end within 10 s of SIGINT and was killed")
    print(f"written to {recorded.output}: overlay.mp4, overlay.png, summary.json, diagnostics.json, bag/")
    silent = tuple(stream.dnn for stream in recorded.streams if not figures[stream.dnn].stamps_ns)
    if silent:
        print(f"FAILED: no result from {', '.join(silent)}; see {recorded.output / 'node.log'}")
    return Outcome(summary, silent)


def _score_and_draw(recorded: RecordedDrive) -> dict[str, DnnFigures]:
    """Score and draw the frames one by one; only a few of them are in memory at once."""
    figures = {stream.dnn: DnnFigures(stream.kind, stream.labels) for stream in recorded.streams}
    kinds = {stream.dnn: stream.kind for stream in recorded.streams}
    best: tuple[int, npt.NDArray[np.uint8]] | None = None
    last: dict[str, tuple[int, RecordedResult]] = {}
    with BagReader(recorded.output / "bag") as bag, OverlayFiles(recorded.output / "overlay.mp4") as video:
        frames = recorded_frames(bag, recorded.topics, recorded.streams)
        for frame in tqdm(frames, unit="frame", desc="scoring", leave=False, disable=None):
            for dnn, figure in figures.items():
                figure.add(dnn, frame)
            picture = _drawn(frame, last, kinds)
            video.write(picture, frame.stamp_ns)
            value = result_count(frame)
            if best is None or value > best[0]:
                best = value, picture
    if best is not None:
        save_picture(recorded.output / "overlay.png", best[1])
    return figures


def _drawn(
    frame: RecordedFrame, last: dict[str, tuple[int, RecordedResult]], kinds: Mapping[str, ResultKind]
) -> npt.NDArray[np.uint8]:
    """The image with its results. last: time in ns and last result of each DNN; updated."""
    assert frame.image is not None
    layers = []
    for dnn, result in frame.results.items():
        layers.append(Layer(dnn, kinds[dnn], result.output, result.latency_ms))
        last[dnn] = frame.stamp_ns, result
    for dnn, (stamp_ns, result) in last.items():
        if dnn not in frame.results and frame.stamp_ns - stamp_ns <= _LAST_RESULT_NS:
            layers.append(Layer(dnn, kinds[dnn], result.output, result.latency_ms, stale=True))
    return draw(frame.image, layers)


def _diagnostics(
    recorded: RecordedDrive,
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]], dict[str, int]]:
    """The node's diagnostics messages and the last status of each name; and the number of messages by topic."""
    with BagReader(recorded.output / "bag") as bag:
        counts = {name: topic.count for name, topic in bag.topics.items()}
        messages = [deserialize_message(m.data, DiagnosticArray) for m in bag.messages([recorded.diagnostics])]
    listed = []
    for message in messages:
        statuses = last_statuses([message], recorded.node)
        if statuses:
            stamp = message.header.stamp
            listed.append({"stamp": {"sec": stamp.sec, "nanosec": stamp.nanosec}, "status": statuses})
    return listed, last_statuses(messages, recorded.node), counts


def _table(streams: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for dnn, figures in streams.items():
        latency = figures.get("latency_ms", {})
        counted = figures["accounts"] or {}
        drops = ", ".join(f"{reason} {count}" for reason, count in counted.get("dropped", {}).items())
        rows.append(
            [
                dnn,
                f"{figures.get('rate_hz', 0.0):.1f}",
                *(f"{latency[name]:.0f}" if latency else "-" for name in ("p50", "p95", "p99")),
                f"{counted.get('offered', '?')}",
                f"{counted.get('published', '?')}",
                drops or "none",
                _score(figures),
            ]
        )
    header = ["DNN", "Hz", "p50 ms", "p95 ms", "p99 ms", "offered", "published", "dropped", "vs ground truth"]
    return table(header, rows)


def _score(figures: Mapping[str, Any]) -> str:
    if "lane_f1" in figures:
        return f"lane F1 {figures['lane_f1']:.3f}"
    if "map50" in figures:
        return f"mAP@0.5 {figures['map50']:.3f} ({figures['true_boxes']} boxes)"
    return "nothing to compare"
