"""Makes the tables, images and JSON files of a demo from its recordings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.serialization import deserialize_message
from tqdm import tqdm

from multi_dnn_ros.common.reporting import counts_text, provenance, rounded, table, with_change, write_json
from multi_dnn_ros.common.resources import config_file
from multi_dnn_ros.compression.macs import cost
from multi_dnn_ros.demo.output_folder import check_output
from multi_dnn_ros.demo.recorded_frames import (
    DnnFigures,
    RecordedFrame,
    Stream,
    frame_counts,
    last_statuses,
    recorded_frames,
)
from multi_dnn_ros.models.sources import load_network, weights_file
from multi_dnn_ros.replay.bag_reader import BagReader
from multi_dnn_ros.settings.params_file import read_params_file
from multi_dnn_ros.vision.drawing import draw
from multi_dnn_ros.vision.overlay_files import OverlayFiles, save_picture
from multi_dnn_ros.vision.result_kind import Layer

if TYPE_CHECKING:
    from multi_dnn_ros.demo.drive import Demo

NODE = "/multi_dnn"
DIAGNOSTICS = "/diagnostics"
#: The package's sets of DNNs -> their parameter files.
SETS = {"original": "multi_dnn.yaml", "decomposed": "multi_dnn_small.yaml"}
#: How long the last result of a DNN is drawn on frames without a result.
_LAST_RESULT_NS = 1_000_000_000
#: If a larger share of the images has no result, the machine is overloaded.
_MAX_MISSING = 0.05


@dataclass(frozen=True)
class RecordedDrive:
    """The recording of one drive.

    output: folder of the recording, to which the report is written. camera: the camera's name. image: topic of the raw
    images, which are recorded as JPEG. streams: the DNNs. settings: those of the drive, for the summary.
    """

    output: Path
    camera: str
    image: str
    streams: Sequence[Stream]
    settings: Mapping[str, Any]


def report(recorded: RecordedDrive, peak_memory_bytes: int, *, ended_in_time: bool) -> dict[str, Any]:
    """Score the recording, write overlay.mp4, overlay.png, diagnostics.json and summary.json, and print the table.

    Returns the content of summary.json; its `silent` lists the DNNs without a result.
    """
    figures = _score_and_draw(recorded)
    with BagReader(recorded.output / "bag") as bag:
        counts = {name: topic.count for name, topic in bag.topics.items()}
        messages = [deserialize_message(message.data, DiagnosticArray) for message in bag.messages([DIAGNOSTICS])]
    last = last_statuses(messages, NODE)
    listed = [
        {"stamp": {"sec": message.header.stamp.sec, "nanosec": message.header.stamp.nanosec}, "status": statuses}
        for message in messages
        if (statuses := last_statuses([message], NODE))
    ]
    write_json(recorded.output / "diagnostics.json", {"messages": listed, "last": last})
    dnns = {}
    for name, figure in figures.items():
        status = last.get(f"{name} on {recorded.camera}")
        dnns[name] = {**figure.summary(), "accounts": None if status is None else frame_counts(status)}
    summary = {
        **provenance(),
        "drive": dict(recorded.settings),
        "recorded_messages": counts,
        "dnns": dnns,
        "node_peak_memory_bytes": peak_memory_bytes,
        "node_ended_cleanly": ended_in_time,
        "silent": [name for name, figure in figures.items() if not figure.stamps_ns],
    }
    write_json(recorded.output / "summary.json", summary)
    print(_table(dnns))
    print(f"peak resident memory of the node and its engine processes: {peak_memory_bytes / 2**20:.0f} MiB")
    if not ended_in_time:
        print("warning: the node did not end within 10 s of SIGINT and was killed")
    print(f"written to {recorded.output}: overlay.mp4, overlay.png, summary.json, diagnostics.json, bag/")
    if summary["silent"]:
        print(f"FAILED: no result from {', '.join(summary['silent'])}; see {recorded.output / 'node.log'}")
    return summary


def run_both(demo: Demo, run: Callable[[Demo], dict[str, Any]]) -> int:
    """Run `demo` with the original DNNs, then with the decomposed ones, into its folder and the subfolder
    ``decomposed``; print a table of both. Returns the exit code: 1 if a DNN published nothing.

    The drives run one after another, so that each set has the machine to itself. run: runs a demo and returns its
    summary.
    """
    folders = {"original": demo.output, "decomposed": demo.output / "decomposed"}
    for folder in folders.values():
        check_output(folder)
    figures: dict[str, dict[str, dict[str, Any]]] = {}
    summaries = []
    for name, file in SETS.items():
        print(f"drive {len(figures) + 1} of {len(SETS)}: the {name} DNNs ({file})", flush=True)
        path = config_file(file)
        summary = run(replace(demo, output=folders[name], params_file=path))
        dnns = read_params_file(path).dnns
        figures[name] = {dnn: _compared(dnns[dnn].model, each) for dnn, each in summary["dnns"].items()}
        summaries.append(summary)
    write_json(demo.output / "comparison.json", {**provenance(), "drive": summaries[0]["drive"], **figures})
    print(
        f"\nboth sets of DNNs on the same road, {demo.seconds:g} s each; the change from the original is in brackets:"
    )
    print(comparison_table(figures["original"], figures["decomposed"]))
    overloaded = False
    for dnn in summaries[0]["dnns"]:
        results = [summary["dnns"][dnn]["frames"] for summary in summaries]
        if min(results) < (1.0 - _MAX_MISSING) * demo.images:
            counts = counts_text(dict(zip(SETS, results, strict=True)))
            print(f"warning: of {demo.images} images, DNN {dnn} has a result for {counts}")
            overloaded = True
    if overloaded:
        print("If this machine is overloaded, the latencies say little about the DNNs: repeat with a lower --rate.")
    print(f"written to {demo.output / 'comparison.json'}")
    return 1 if any(summary["silent"] for summary in summaries) else 0


def comparison_table(originals: Mapping[str, Mapping[str, Any]], others: Mapping[str, Mapping[str, Any]]) -> str:
    """Two rows per DNN; the second shows the change from the first."""
    rows = []
    for dnn, first in originals.items():
        rows.append([dnn, *_cells(first, {})])
        rows.append(["", *_cells(others[dnn], first)])
    return table(["DNN", "model", "vs ground truth", "million MACs", "p50 ms", "p95 ms", "file MB"], rows)


def _cells(figures: Mapping[str, Any], first: Mapping[str, Any]) -> list[str]:
    """Cells of a row of the comparison. first: figures of the first row of the DNN; empty for that row itself."""
    score, reference = _score(figures), _score(first)
    change = rounded(score[1] - reference[1], 3) if score and reference else None
    shown = f"{score[0]} {score[1]:.3f}" if score else "nothing to compare"
    cells = [figures["model"], shown + ("" if change is None else f" ({change:+.3f})")]
    for name, unit, digits in (("macs", 1e6, 1), ("p50_ms", 1, 1), ("p95_ms", 1, 1), ("file_bytes", 1e6, 2)):
        value, before = (each.get(name) and each[name] / unit for each in (figures, first))
        cells.append(with_change(value, before, digits))
    return cells


def _compared(model: str, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Static figures of a DNN and those of its drive."""
    source, file = load_network(model), weights_file(model)
    width, height = source.input_size(model, None, "an input size")
    latency = measured.get("latency_ms", {})
    return {
        "model": model,
        "macs": cost(source.network, (torch.zeros(1, 3, height, width),)).macs,
        "file_bytes": file.stat().st_size if file is not None else None,
        **{f"{name}_ms": latency.get(name) for name in ("p50", "p95")},
        **{name: measured[name] for name in ("lane_f1", "map50") if name in measured},
    }


def _score(figures: Mapping[str, Any]) -> tuple[str, float] | None:
    names = {"lane_f1": "lane F1", "map50": "mAP@0.5"}
    return next(((shown, figures[name]) for name, shown in names.items() if name in figures), None)


def _score_and_draw(recorded: RecordedDrive) -> dict[str, DnnFigures]:
    """Score and draw the frames one by one; only a few of them are in memory at once."""
    figures = {stream.dnn: DnnFigures(stream) for stream in recorded.streams}
    best: tuple[int, npt.NDArray[np.uint8]] | None = None
    last: dict[str, RecordedFrame] = {}  # the last frame with a result of each DNN
    with BagReader(recorded.output / "bag") as bag, OverlayFiles(recorded.output / "overlay.mp4") as video:
        frames = recorded_frames(bag, recorded.camera, f"{recorded.image}/compressed", recorded.streams)
        for frame in tqdm(frames, unit="frame", desc="scoring", leave=False, disable=None):
            layers = []
            for dnn, figure in figures.items():
                figure.add(frame)
                if dnn in frame.results:
                    last[dnn] = frame
                if dnn in last and frame.stamp_ns - last[dnn].stamp_ns <= _LAST_RESULT_NS:
                    output, latency_ms = last[dnn].results[dnn]
                    stale = last[dnn] is not frame
                    layers.append(Layer(dnn, figure.stream.kind, output, latency_ms, stale=stale))
            assert frame.image is not None
            picture = draw(frame.image, layers)
            video.write(picture, frame.stamp_ns)
            value = frame.count_results()
            if best is None or value > best[0]:
                best = value, picture
    if best is not None:
        save_picture(recorded.output / "overlay.png", best[1])
    return figures


def _table(dnns: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for dnn, figures in dnns.items():
        latency, counted = figures.get("latency_ms", {}), figures["accounts"] or {}
        score = _score(figures)
        rows.append([
            dnn,
            f"{figures.get('rate_hz', 0.0):.1f}",
            *(f"{latency[name]:.0f}" if latency else "-" for name in ("p50", "p95", "p99")),
            *(str(counted.get(name, "?")) for name in ("offered", "published")),
            counts_text(counted.get("dropped", {})),
            f"{score[0]} {score[1]:.3f}" if score else "nothing to compare",
        ])  # fmt: skip
    header = ["DNN", "Hz", "p50 ms", "p95 ms", "p99 ms", "offered", "published", "dropped", "vs ground truth"]
    return table(header, rows)
