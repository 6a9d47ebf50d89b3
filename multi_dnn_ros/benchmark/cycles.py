"""Activates and deactivates a node repeatedly and checks for leaks."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import rclpy
import torch
import yaml
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from tqdm import tqdm

from multi_dnn_ros.benchmark.node_config import flat_parameters
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.memory import release_memory
from multi_dnn_ros.common.processes import reserved_domain
from multi_dnn_ros.common.reporting import table
from multi_dnn_ros.pipeline.devices import devices_in_use, dnn_units, torch_device
from multi_dnn_ros.ros.node import MultiDnnNode
from multi_dnn_ros.settings.schema import NodeConfig

#: Cycles until one-time allocations are done; with many cores the allocators need this many.
WARM_UP = 25
_SERVE_LIMIT_S = 60.0


def measure_cycles(config: NodeConfig, repeats: int) -> dict[str, Any]:
    """Resources of the process after each deactivation: last third of the cycles compared with the first.

    In each cycle every camera sends a frame and every DNN that is switched on produces a result. The DNNs run in this
    process (`isolation: none`), where all leaks are visible.
    """
    with reserved_domain() as domain:
        return _measured(config.model_copy(update={"autostart": False, "isolation": "none"}), repeats, domain)


def _measured(config: NodeConfig, repeats: int, domain: int) -> dict[str, Any]:
    units = devices_in_use(dnn_units(config))
    devices = [torch_device(unit) for unit in units]
    with tempfile.TemporaryDirectory(prefix="multi_dnn_cycles_") as folder:
        parameters = Path(folder) / "parameters.yaml"
        parameters.write_text(yaml.safe_dump({"/**": {"ros__parameters": flat_parameters(config)}}), encoding="utf-8")
        arguments = ["--ros-args", "--params-file", str(parameters), "--log-level", "multi_dnn:=warn"]
        rclpy.init(args=arguments, domain_id=domain)
    executor = SingleThreadedExecutor()
    node, camera = MultiDnnNode(), rclpy.create_node("camera")
    try:
        executor.add_node(node)
        executor.add_node(camera)
        if node.trigger_configure() != TransitionCallbackReturn.SUCCESS:
            raise CommandError("the node could not be configured; its log says why")
        cameras = _Cameras(camera, config)
        samples = []
        for _ in tqdm(range(repeats + WARM_UP), desc="cycles", unit="cycle", disable=None):
            node.trigger_activate()
            _serve(executor, node, cameras, config)
            node.trigger_deactivate()
            executor.spin_once(timeout_sec=0.0)
            samples.append(_sample(node, devices))
    finally:
        node.close()
        executor.shutdown()
        node.destroy_node()
        camera.destroy_node()
        rclpy.try_shutdown()
    samples = samples[WARM_UP:]
    third = (len(samples) + 2) // 3
    first, last = _minimum_use(samples[:third]), _minimum_use(samples[len(samples) - third :])
    growth = {name: last[name] - first[name] for name in last}
    passed = all(count < (1 << 20 if name.endswith("bytes") else 1) for name, count in growth.items())
    device = ", ".join(unit.name for unit in units)
    return {"repeats": repeats, "device": device, "first": first, "last": last, "left": growth, "passed": passed}


def _minimum_use(samples: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Minimum of each resource over these cycles; anything above it was released again."""
    return {name: min(sample[name] for sample in samples) for name in samples[0]}


def cycles_table(figures: Mapping[str, Any]) -> str:
    """Text for the terminal."""
    rows = [
        [name.replace("_", " "), f"{figures['first'][name]:,}", f"{figures['last'][name]:,}", f"{growth:+,}"]
        for name, growth in figures["left"].items()
    ]
    header = ["when inactive", "minimum in the first third", "minimum in the last third", "growth"]
    text = f"{table(header, rows)}\n{figures['repeats']} cycles after {WARM_UP} to warm up"
    return text if figures["passed"] else f"{text}\nFAILED: resources grow"


class _Cameras:
    """Black images on every camera of the configuration."""

    def __init__(self, node: Any, config: NodeConfig) -> None:
        compressed = [name for name, camera in config.cameras.items() if camera.transport != "raw"]
        if compressed:
            raise CommandError(f"parameter camera.{compressed[0]}.transport: this scenario sends raw images only")
        self._publishers = [
            node.create_publisher(Image, camera.topic or f"{name}/image_raw", QoSProfile(depth=1))
            for name, camera in config.cameras.items()
        ]
        self._message = Image(height=480, width=640, encoding="rgb8", step=640 * 3, data=bytes(480 * 640 * 3))

    def publish(self) -> None:
        for publisher in self._publishers:
            publisher.publish(self._message)


def _serve(executor: SingleThreadedExecutor, node: MultiDnnNode, cameras: _Cameras, config: NodeConfig) -> None:
    """Send frames until every DNN that is switched on has produced a result for each of its cameras."""
    deadline, next_s = time.monotonic() + _SERVE_LIMIT_S, 0.0
    while not all(count for (dnn, _), count in node.published().items() if config.dnns[dnn].enable):
        now = time.monotonic()
        if now > deadline:
            raise CommandError(f"a DNN produced no result within {_SERVE_LIMIT_S:g} s: {node.published()}")
        if now >= next_s:
            cameras.publish()
            next_s = now + 0.1
        executor.spin_once(timeout_sec=0.02)


def _sample(node: MultiDnnNode, devices: Sequence[torch.device]) -> dict[str, int]:
    """Resources of the process at this moment. devices: those that the DNNs run on."""
    for device in devices:
        release_memory(device)
    process = psutil.Process()
    sample = {
        "threads": threading.active_count(),
        "open_files": process.num_fds(),
        "subscriptions": len(list(node.subscriptions)),
        "publishers": len(list(node.publishers)),
        "timers": len(list(node.timers)),
        "services": len(list(node.services)),
        "resident_bytes": process.memory_info().rss,
    }
    gpus = [device for device in devices if device.type == "cuda"]
    if gpus:
        sample["gpu_allocated_bytes"] = sum(torch.cuda.memory_allocated(device) for device in gpus)
        sample["gpu_reserved_bytes"] = sum(torch.cuda.memory_reserved(device) for device in gpus)
    return sample
