"""One drive of the demo: starts the processes, records what they publish and reports it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tqdm import tqdm

from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.common.reporting import provenance, write_json
from multi_dnn_ros.demo.recorded_frames import Stream
from multi_dnn_ros.demo.recorder import Recorder
from multi_dnn_ros.demo.report import clear_output, score_and_draw
from multi_dnn_ros.demo.session import DIAGNOSTICS, NODE, Session
from multi_dnn_ros.models.builtin import GENERATED_ROAD_THRESHOLD, is_builtin
from multi_dnn_ros.replay.bag_writer import BagWriter
from multi_dnn_ros.settings.forms import PRESETS
from multi_dnn_ros.settings.params_file import read_params_file
from multi_dnn_ros.settings.schema import DnnConfig
from multi_dnn_ros.training.scenes import LABELS
from multi_dnn_ros.vision.result_kind import RESULT_KINDS

_PEDESTRIANS = ("pedestrian",)
#: Time limit for loading the node and rendering the road, on a slow machine.
_START_LIMIT_S = 600.0
#: Time limit for the remaining results after the end of the camera.
_FINISH_LIMIT_S = 10.0
#: Time between two samples of the node's memory.
_SAMPLE_S = 0.5


def run_demo(
    output: Path, params_file: Path, seconds: float, rate_hz: float, size: tuple[int, int], seed: int
) -> dict[str, Any]:
    """Record one drive with one node, score the results and write the report; see ``multi-dnn demo --help``.

    params_file: the node's parameters. Returns the summary. Raises CommandError, which names the log, if a process
    fails; UsageError or ParameterError for bad arguments.
    """
    config = read_params_file(params_file)
    camera, settings = next(iter(config.cameras.items()))
    if settings.transport != "raw":
        raise UsageError(f"parameter camera.{camera}.transport is {settings.transport}; the demo needs raw")
    dnns = {name: dnn for name, dnn in config.dnns.items() if not dnn.cameras or camera in dnn.cameras}
    streams = [_stream(camera, name, dnn) for name, dnn in dnns.items()]
    clear_output(output)
    image = f"/{(settings.topic or f'{camera}/image_raw').lstrip('/')}"
    publish = [
        *("camera", "scenes", "--camera", camera, "--topic", image, "--truth", "--wait-for-subscribers", "2"),
        *("--count", str(max(1, round(seconds * rate_hz))), "--rate", str(rate_hz)),
        *("--size", f"{size[0]}x{size[1]}", "--seed", str(seed)),
    ]
    serve = ["run", "--params-file", str(params_file), "--ros-args"]
    for name, dnn in dnns.items():
        # Built-in DNNs without a configured threshold get the one for generated roads.
        if is_builtin(dnn.model) and not dnn.score_threshold:
            serve += ["-p", f"dnn.{name}.score_threshold:={GENERATED_ROAD_THRESHOLD}"]
    labels = [stream.label_info for stream in streams if stream.label_info]
    topics = {
        image: "sensor_msgs/msg/Image",
        f"/{camera}/truth/detections": "vision_msgs/msg/Detection2DArray",
        f"/{camera}/truth/lane_mask": "sensor_msgs/msg/Image",
        **{topic: each.kind.msgtypes[name] for each in streams for name, topic in each.topics.items()},
        **dict.fromkeys(labels, "vision_msgs/msg/LabelInfo"),
        DIAGNOSTICS: "diagnostic_msgs/msg/DiagnosticArray",
    }
    with Session(output) as session, BagWriter(output / "bag") as writer:
        recorder = Recorder(session.observer, writer, topics, image=image, latched=labels)
        node = session.start("node", serve)
        source = session.start("camera", publish, may_end=True)
        with tqdm(unit="frame", desc="starting", disable=None) as bar:

            def finished() -> bool:
                node.sample()
                bar.set_description("driving" if recorder.counts[image] else "starting", refresh=False)
                bar.update(recorder.counts[image] - bar.n)
                return source.exit_code() is not None

            if not session.until(lambda: finished() or recorder.counts[image], _START_LIMIT_S):
                raise CommandError(f"no image after {_START_LIMIT_S:g} s; see {node.log} and {source.log}")
            while not finished():
                session.spin(_SAMPLE_S)
        if source.exit_code() != 0:
            raise CommandError(f"the camera process ended with exit code {source.exit_code()}; see {source.log}")
        session.settle(_FINISH_LIMIT_S)
        ended_in_time = session.stop(node)
        recorder.flush()
    summary = {
        **provenance(),
        "drive": {"seconds": seconds, "rate_hz": rate_hz, "size": list(size), "seed": seed},
        "node_peak_memory_bytes": node.peak_memory_bytes,  # with its engine processes
        "node_ended_cleanly": ended_in_time,
        **score_and_draw(output, camera, image, streams),
    }
    write_json(output / "summary.json", summary)
    return summary


def _stream(camera: str, name: str, dnn: DnnConfig) -> Stream:
    if dnn.role not in PRESETS:
        raise UsageError(f"parameter dnn.{name}.role is {dnn.role}; the demo can score {', '.join(PRESETS)}")
    kind = RESULT_KINDS.get(PRESETS[dnn.role].result_kind)
    topics = {topic: f"{NODE}/{camera}/{name}/{topic}" for topic in kind.msgtypes}
    if not kind.has_labels:
        return Stream(name, kind, topics)
    pedestrians = dnn.role in _PEDESTRIANS
    labels = tuple(label for label in LABELS if (label in _PEDESTRIANS) == pedestrians)
    return Stream(name, kind, topics, labels, f"{NODE}/{name}/label_info")
