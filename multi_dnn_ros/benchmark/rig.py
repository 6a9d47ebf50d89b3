"""A node and cameras as processes on loopback DDS, with an observer in this process: the set-up of long runs."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
import psutil
import yaml
from rclpy.qos import QoSProfile

from multi_dnn_ros.benchmark.observation import NodeSample, ProcessTree, Receipts
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.reporting import write_text
from multi_dnn_ros.demo.children import Child
from multi_dnn_ros.demo.session import NODE, Session, frame_counts
from multi_dnn_ros.ros.board import BoardMonitor
from multi_dnn_ros.ros.result_messages import message_class
from multi_dnn_ros.settings.schema import CameraConfig, NodeConfig
from multi_dnn_ros.training.scenes import SceneGenerator
from multi_dnn_ros.vision.result_kind import RESULT_KINDS, ResultKind

_START_LIMIT_S = 300.0
#: DDS matches both sides independently: a publisher may discover its readers some milliseconds later.
_SETTLE_S = 1.0
#: Number of different images of a camera.
_IMAGES = 20
#: Results per stream that are queued while the rig does something else; stopping eight cameras takes some seconds.
_QUEUE_DEPTH = 1000
#: CDR encapsulation and the header's stamp, the first field of every message we publish.
_STAMP = struct.Struct("<4xiI")
#: An entry of the value `results` in the node's status: `<dnn> (<kind>)` or `<dnn>/<output> (<kind>)`.
_RESULT = re.compile(r"(\w+)(/\w+)? \(([^)]+)\)")

Stream = tuple[str, str]  # DNN, camera


@dataclass(frozen=True)
class CameraPlan:
    """One camera. size: (width, height). encoding: that of its raw images, or jpeg."""

    name: str
    size: tuple[int, int]
    encoding: str
    rate_hz: float


class Rig(Session):
    """Session that starts a node serving `cameras` with the DNNs of `config`. Cameras are started individually,
    as `multi-dnn camera` with a folder of images of a generated road.

    folder: for logs and the parameter file. Everything runs in a reserved ROS domain on loopback. Every DNN is switched
    on and serves every camera. If a DNN has several results, the first is observed. `receipts` and `samples` (one per
    `sample_s`) are filled while the observer is served. problems: sensors that fail.
    """

    def __init__(self, folder: Path, config: NodeConfig, cameras: Sequence[CameraPlan], seed: int = 0) -> None:
        super().__init__(folder)
        self.plans = {plan.name: plan for plan in cameras}
        served = {"cameras": list(self.plans), "enable": True}
        dnns = {name: dnn.model_copy(update=served) for name, dnn in config.dnns.items()}
        transports = {plan.name: "compressed" if plan.encoding == "jpeg" else "raw" for plan in cameras}
        plans = {name: CameraConfig.model_validate({"transport": text}) for name, text in transports.items()}
        self.config = config.model_copy(update={"cameras": plans, "dnns": dnns})
        self.streams = [(dnn, camera) for dnn in dnns for camera in self.plans]
        self.receipts: dict[Stream, Receipts] = {}
        self.samples: list[NodeSample] = []
        self.cameras: dict[str, Child] = {}
        self.sample_s = 1.0
        self.node: Child
        self.problems: list[str] = []
        self._seed = seed
        self._results: Mapping[str, tuple[str, ResultKind]] = {}  # by DNN, once the node is active
        self._started = 0
        self._sampling: Future[None] | None = None
        self._next_sample_s = 0.0

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        super()._open()
        self._images = Path(self.enter_context(TemporaryDirectory(prefix="multi_dnn_images_")))
        parameters = self.folder / "parameters.yaml"
        write_text(parameters, yaml.safe_dump({"/**": {"ros__parameters": parameters_of(self.config)}}))
        self.node = self.start("node", ["run", "--params-file", str(parameters)])
        self.processes = ProcessTree(self.node.pid)
        self._monitor = BoardMonitor(self.problems.append, period_s=1.0)
        self.callback(self._monitor.close)
        # In a thread: the kernel needs over 10 ms to add up the memory of an engine process of 650 MB.
        self._sampler = self.enter_context(ThreadPoolExecutor(1, "samples"))
        for plan in self.plans.values():  # the node is being configured meanwhile
            _write_images(self._images / plan.name, plan, self._seed)
        if not self.until(lambda: self.value("node", "state") == "active", _START_LIMIT_S):
            raise CommandError(f"the node was not active after {_START_LIMIT_S:g} s; see {self.node.log}")
        # Only now: the kind of a result, and with it the topic, may be determined by the model.
        self._results = reported_results(self.value("node", "results") or "")
        topics = [self._listen(*stream) for stream in self.streams]
        if not self.until(lambda: all(self.observer.count_publishers(topic) for topic in topics), 30.0):
            raise CommandError(f"not every result topic of the node is on the graph after 30 s; see {self.node.log}")
        self.spin(_SETTLE_S)

    def start_camera(self, name: str, rate_hz: float | None = None) -> None:
        """Start or restart the process of a camera; a running one is stopped first."""
        self.stop_cameras(name)
        plan = self.plans[name]
        self._started += 1
        options = {"camera": name, "encoding": plan.encoding, "rate": f"{rate_hz or plan.rate_hz:g}"}
        images = str(self._images / name)
        arguments = ["camera", images, "--loop", *(f"--{option}={value}" for option, value in options.items())]
        self.cameras[name] = self.start(f"camera {name}", arguments, f"camera_{name}_{self._started}")

    def start_cameras(self) -> None:
        """Start all cameras, and wait until every DNN has produced a result for each."""
        for name in self.plans:
            self.start_camera(name)

        def silent() -> list[str]:
            return [f"{dnn} on {camera}" for (dnn, camera), found in self.receipts.items() if not len(found)]

        if not self.until(lambda: not silent(), 60.0):
            raise CommandError(f"no results of {', '.join(silent())} after 60 s; see {self.folder}")

    def stop_cameras(self, *names: str) -> None:
        """Stop the processes of these cameras, by default of all that are running."""
        for name in names or list(self.cameras):
            if name in self.cameras:
                self.stop(self.cameras.pop(name))

    def settle(self, limit_s: float = 20.0) -> bool:
        """As in a Session, and observe until the results that the node has published have arrived here."""
        settled = super().settle(limit_s)
        self.until(lambda: all(each["published"] == each["observed"] for each in self.accounts().values()), 5.0)
        return settled

    def accounts(self) -> dict[Stream, dict[str, Any]]:
        """The counts of every stream in the latest report: offered, published, pending and dropped (by reason, without
        zeros). received: images that the camera's subscription received. observed: results that arrived here.
        """
        accounts = {}
        for dnn, camera in self.streams:
            values = self.statuses.get(f"{dnn} on {camera}", {})
            received = int(self.value(f"camera {camera}", "received") or 0)
            observed = len(self.receipts.get((dnn, camera), ()))
            accounts[dnn, camera] = {**frame_counts(values), "received": received, "observed": observed}
        return accounts

    def result_topic(self, dnn: str, camera: str) -> tuple[str, str]:
        """Name and message type of the topic with the results of a stream, once the node is active; of several results,
        the first one's.
        """
        name, kind = self._results[dnn]
        topic = next((topic for topic in kind.topics if not topic.picture), kind.topics[0])
        return f"{NODE}/{camera}/{name}/{topic.name}", topic.msgtype

    # -- internal

    def _sample(self) -> None:
        gpu_bytes = int(self.value("node", "engine processes GPU reserved (bytes)") or 0)
        with suppress(psutil.NoSuchProcess):  # the node has just ended
            self.samples.append(self.processes.sample(gpu_bytes, self._monitor.latest))

    def spin_once(self, timeout_s: float = 0.1) -> None:
        """As in a Session, and sample the node's processes."""
        super().spin_once(timeout_s)
        if time.monotonic() >= self._next_sample_s and (self._sampling is None or self._sampling.done()):
            if self._sampling is not None:
                self._sampling.result()
            self._next_sample_s = time.monotonic() + self.sample_s
            self._sampling = self._sampler.submit(self._sample)

    def _listen(self, dnn: str, camera: str) -> str:
        """Subscribe to the results of a stream; returns the topic."""
        receipts = self.receipts.setdefault((dnn, camera), Receipts())
        name, kind = self.result_topic(dnn, camera)

        def receive(data: bytes) -> None:
            seconds, nanoseconds = _STAMP.unpack_from(data)
            age_ns = self.observer.get_clock().now().nanoseconds - (seconds * 1_000_000_000 + nanoseconds)
            receipts.add(time.monotonic(), age_ns / 1e6)

        depth = QoSProfile(depth=_QUEUE_DEPTH)
        self.observer.create_subscription(message_class(kind), name, receive, depth, raw=True)
        return name


def _write_images(folder: Path, plan: CameraPlan, seed: int) -> None:
    """Write the images of a drive on a generated road. Bitmaps are read in a fraction of a millisecond."""
    folder.mkdir()
    drive = SceneGenerator(*plan.size, seed).drive(_IMAGES, 5.0)
    for number in range(_IMAGES):
        cv2.imwrite(str(folder / f"{number}.bmp"), np.ascontiguousarray(drive.frame(number).image[..., ::-1]))


def reported_results(text: str) -> dict[str, tuple[str, ResultKind]]:
    """Name and kind of each DNN's result, or of the first of several. text: value `results` of the node's status."""
    found: dict[str, tuple[str, ResultKind]] = {}
    for dnn, output, kind in _RESULT.findall(text):
        found.setdefault(dnn, (dnn + output, RESULT_KINDS.get(kind)))
    return found


def parameters_of(config: NodeConfig) -> dict[str, Any]:
    """Parameters as in a parameter file, without defaults: YAML parameter files cannot contain empty lists, and rcl
    prefixes the names that follow an empty mapping with the mapping's name.
    """
    values = config.model_dump(exclude_defaults=True)
    cameras, dnns = values.pop("cameras", {}), values.pop("dnns", {})
    for dnn in dnns.values():
        if outputs := dnn.pop("outputs", {}):
            dnn |= {"outputs": list(outputs), "output": outputs}
    nested = {"camera": cameras, "dnn": dnns}
    values |= {kind: filled for kind, of in nested.items() if (filled := {name: it for name, it in of.items() if it})}
    return {**values, "cameras": list(config.cameras), "dnns": list(config.dnns)}
