"""A Host with real engine processes and cameras, and the operations of a test on them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import fake_pipelines
import numpy as np
import numpy.typing as npt
from engine_faults import engine_pids
from host_traffic import HostTraffic
from waiting import until

from multi_dnn_ros.engine.task import Drop, Result
from multi_dnn_ros.serving.descriptions import Build, EngineStatus
from multi_dnn_ros.serving.host import Host
from multi_dnn_ros.serving.supervisor import PAUSES_S
from multi_dnn_ros.settings.schema import NodeConfig


class Traffic(HostTraffic):
    """published: number of the image and output in the order of publication, by stream."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.published: dict[tuple[str, str], list[tuple[Any, Any]]] = {}
        self.drops: list[Drop] = []

    def _on_result(self, result: Result) -> None:
        stream = self.published.setdefault((result.dnn, result.frame.camera), [])
        stream.append((result.frame.context, result.output))
        super()._on_result(result)

    def _on_drop(self, drop: Drop) -> None:
        self.drops.append(drop)
        super()._on_drop(drop)


class HostRig:
    """The cameras deliver images at 30 Hz, full of `values[camera]` (200 unless a test changes it)."""

    def __init__(
        self,
        config: NodeConfig,
        build: Build = fake_pipelines.build,
        pauses_s: tuple[float, ...] = PAUSES_S,
    ) -> None:
        self.config = config
        self.host = Host(build, pauses_s)
        self.progress: list[str] = []
        self.values: dict[str, int] = {}
        self.once: dict[str, int] = {}
        self.description = self.host.configure(config, self.progress.append)
        self.traffic = self._new_traffic()
        self._started = False

    def _new_traffic(self) -> Any:
        rates = dict.fromkeys(self.config.cameras, 30.0)
        return Traffic(self.host, self.description, rates, self._picture, self.config.stop_timeout_s)

    def start(self) -> Any:
        self._started = True
        self.traffic.start()
        self.wait_results()
        return self

    def restart(self) -> None:
        """Serve again after a stop."""
        self.traffic = self._new_traffic()
        self.start()

    def _picture(self, camera: str, number: int) -> npt.NDArray[np.uint8]:
        value = self.once.pop(camera, self.values.get(camera, 200))
        return np.full((48, 64, 3), value, np.uint8)

    def until(self, condition: Callable[[], Any], what: str = "the condition", timeout_s: float = 60.0) -> Any:
        return until(condition, what, timeout_s, self.host.statuses)

    def wait_results(self, *dnns: str, count: int = 3) -> None:
        """Wait until each of these DNNs (by default all) has given `count` more results."""
        names = dnns or tuple(self.config.dnns)
        before = {name: self.traffic.results(name) for name in names}
        for name in names:
            self.until(lambda name=name: self.traffic.results(name) >= before[name] + count, f"results of {name}")

    def status(self) -> EngineStatus:
        """The status of the first group."""
        return self.host.statuses()[0]

    def pid(self) -> int:
        """Id of the process that serves the first group; 0: there is none."""
        pid = self.status().values["pid"]
        return 0 if pid == "none" else int(str(pid))

    def close(self) -> None:
        if self._started:
            self.traffic.stop()
        self.host.close()
        assert not engine_pids(), "engine processes are left"
        assert not self.traffic.discrepancies()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
