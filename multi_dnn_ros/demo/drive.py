"""One drive of the demo: starts the processes, records what they publish and reports it."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.executors import SingleThreadedExecutor
from rclpy.serialization import deserialize_message
from rclpy.signals import SignalHandlerOptions
from tqdm import tqdm

from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.common.processes import interrupts
from multi_dnn_ros.common.reporting import provenance, write_json
from multi_dnn_ros.demo.children import Child, loopback_environment, reserved_domain
from multi_dnn_ros.demo.recorded_frames import Stream, last_statuses
from multi_dnn_ros.demo.recorder import Recorder
from multi_dnn_ros.demo.report import DIAGNOSTICS, NODE, clear_output, score_and_draw
from multi_dnn_ros.models.builtin import GENERATED_ROAD_THRESHOLD, is_builtin
from multi_dnn_ros.replay.bag_writer import BagWriter
from multi_dnn_ros.ros.middleware import configure
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
    with ExitStack() as stack:
        domain = stack.enter_context(reserved_domain())
        environment = loopback_environment(domain)
        stack.enter_context(interrupts())
        writer = stack.enter_context(BagWriter(output / "bag"))
        os.environ.update(environment)
        configure()
        rclpy.init(args=[], domain_id=domain, signal_handler_options=SignalHandlerOptions.NO)
        stack.callback(rclpy.try_shutdown)
        listener = rclpy.create_node("multi_dnn_demo")
        stack.callback(listener.destroy_node)
        executor = SingleThreadedExecutor()
        stack.callback(executor.shutdown)
        executor.add_node(listener)
        recorder = Recorder(listener, writer, topics, image=image, watch=DIAGNOSTICS, latched=labels)
        node = stack.enter_context(Child("node", serve, output / "node.log", environment))
        source = stack.enter_context(Child("camera", publish, output / "camera.log", environment))
        _watch(executor, recorder, node, source, image)
        _finish(executor, recorder)
        ended_in_time = node.stop()
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


def _watch(executor: SingleThreadedExecutor, recorder: Recorder, node: Child, source: Child, image: str) -> None:
    """Spin until the camera has ended. Raises CommandError if a process fails or does not start."""
    begin = next_check = time.monotonic()
    with tqdm(unit="frame", desc="starting", disable=None) as bar:
        while source.exit_code() is None:
            executor.spin_once(timeout_sec=0.1)
            if (now := time.monotonic()) < next_check:
                continue
            next_check = now + 0.5
            node.sample()
            if node.exit_code() is not None:
                raise _failed(node, f"ended with exit code {node.exit_code()}")
            if problem := _configuration_problem(recorder.watched):
                raise _failed(node, problem)
            images = recorder.counts[image]
            if not images and now - begin > _START_LIMIT_S:
                raise CommandError(f"no image after {_START_LIMIT_S:g} s; see {node.log} and {source.log}")
            bar.set_description("driving" if images else "starting", refresh=False)
            bar.update(images - bar.n)
    if source.exit_code() != 0:
        raise _failed(source, f"ended with exit code {source.exit_code()}")


def _finish(executor: SingleThreadedExecutor, recorder: Recorder) -> None:
    """Receive messages until none has arrived for a second, and then the diagnostics that count them."""
    deadline = time.monotonic() + _FINISH_LIMIT_S
    while time.monotonic() < deadline and time.monotonic() - recorder.last_activity_s < 1.0:
        executor.spin_once(timeout_sec=0.1)
    counted = recorder.counts[DIAGNOSTICS]
    while time.monotonic() < deadline and recorder.counts[DIAGNOSTICS] < counted + 2:
        executor.spin_once(timeout_sec=0.1)


def _configuration_problem(diagnostics: bytes | None) -> str:
    """The configuration error that the node reports, if any."""
    if diagnostics is None:
        return ""
    status = last_statuses([deserialize_message(diagnostics, DiagnosticArray)], NODE).get("node")
    if status is None or status.level != DiagnosticStatus.ERROR:
        return ""
    return str(status.message) if KeyValue(key="state", value="unconfigured") in status.values else ""


def _failed(child: Child, what: str) -> CommandError:
    print(f"\nthe last lines of {child.log}:\n{child.last_lines(10)}", file=sys.stderr)
    return CommandError(f"the {child.name} process: {what} (log: {child.log})")
