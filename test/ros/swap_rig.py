"""A node with two DNNs in one engine process, whose models a test swaps by parameters."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import swap_pipelines
from node_bench import Bench, image
from rcl_interfaces.srv import GetParameters
from rclpy.time import Time
from vision_msgs.msg import Detection2DArray

OUT = "/multi_dnn/front/{}/detections"
DNNS = ("object", "pedestrian")


class Rig:
    """A node with two DNNs in one engine process, and a camera of 50 Hz while :meth:`until` waits."""

    def __init__(self, bench: Bench, **parameters: Any) -> None:
        self.bench = bench
        values = {"isolation": "process", "dnns": list(DNNS), **parameters}
        self.node = bench.node(values, build=swap_pipelines.build)
        assert bench.change("configure")
        self.received = {dnn: bench.listen(OUT.format(dnn), Detection2DArray) for dnn in DNNS}
        self.sent = 0
        self.camera: Any = None
        self._folder = tempfile.TemporaryDirectory()
        self._go = Path(self._folder.name) / "go"

    def activate(self) -> Rig:
        assert self.bench.change("activate")
        self.camera = self.bench.camera()
        self.wait_results()
        return self

    def send(self) -> None:
        self.sent += 1
        message = image()
        message.header.stamp = Time(nanoseconds=self.sent * 20_000_000).to_msg()
        self.camera.publish(message)
        end = time.monotonic() + 0.02
        while (left := end - time.monotonic()) > 0:
            self.bench.executor.spin_once(timeout_sec=left)

    def until(self, condition: Any, what: str) -> None:
        self.bench.until(lambda: (self.send(), condition())[1], what)

    def wait_results(self, count: int = 3) -> None:
        before = {dnn: len(messages) for dnn, messages in self.received.items()}
        self.until(lambda: all(len(self.received[dnn]) >= before[dnn] + count for dnn in DNNS), "results")

    def classes(self, dnn: str = "object") -> list[str]:
        """The class of the box of each result so far; empty: no box."""
        return [
            message.detections[0].results[0].hypothesis.class_id if message.detections else ""
            for message in self.received[dnn]
        ]

    def swap(self, model: str, dnn: str = "object") -> None:
        assert self.bench.set(f"dnn.{dnn}.model", model) == (True, "")

    def held(self, model: str) -> str:
        """A model like this one, but its configuring lasts until :meth:`release`."""
        return f"{model},{swap_pipelines.HELD}{self._go}"

    def release(self) -> None:
        """Let models from :meth:`held` be configured."""
        self._go.touch()

    def status(self) -> Any:
        return self.bench.status("model swap")

    def wait_status(self, text: str) -> Any:
        self.until(lambda: text in self.status().message, text)
        return self.status()

    def wait_class(self, name: str) -> None:
        self.until(lambda: self.classes()[-1] == name, f"results of class {name}")

    def pid(self) -> int:
        """Of the process that serves; 0: there is none."""
        self.bench.until(lambda: "pid" in self.bench.status("engine cpu").by_key, "the status of the engine process")
        pid = self.bench.status("engine cpu").by_key["pid"]
        return 0 if pid == "none" else int(pid)

    def value(self, name: str) -> Any:
        request = GetParameters.Request(names=[name])
        return self.bench.call(GetParameters, "/multi_dnn/get_parameters", request).values[0].string_value

    def check_accounts(self) -> None:
        """Offered = published + dropped; results are in the order of the images, and none is published twice."""
        for dnn in DNNS:
            name = f"{dnn} on front"
            self.bench.until(
                lambda name=name: (
                    self.bench.status(name).by_key.get("pending") == "0"
                    and int(self.bench.status(name).by_key["offered"]) == self.sent
                ),
                f"answers for all frames of {dnn}",
            )
            values = self.bench.status(name).by_key
            dropped = sum(int(value) for key, value in values.items() if key.startswith("dropped: "))
            assert int(values["offered"]) == int(values["published"]) + dropped
            self.bench.until(
                lambda dnn=dnn, values=values: len(self.received[dnn]) == int(values["published"]), "results"
            )
            stamps = [Time.from_msg(message.header.stamp).nanoseconds for message in self.received[dnn]]
            assert stamps == sorted(set(stamps))

    def drops(self, dnn: str) -> set[str]:
        values = self.bench.status(f"{dnn} on front").by_key
        return {
            key.removeprefix("dropped: ")
            for key, value in values.items()
            if key.startswith("dropped: ") and value != "0"
        }
