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

from multi_dnn_ros.serving.descriptions import Build, EngineStatus, Progress
from multi_dnn_ros.serving.groups import SupervisionTimes
from multi_dnn_ros.serving.host import Host
from multi_dnn_ros.settings.schema import NodeConfig

WAIT_S = 60.0


class HostRig:
    """The cameras deliver images at rate_hz, full of `values[camera]` (200 unless a test changes it)."""

    def __init__(
        self,
        config: NodeConfig,
        build: Build = fake_pipelines.build,
        rate_hz: float = 30.0,
        **arguments: Any,
    ) -> None:
        times = SupervisionTimes(
            restart_s=arguments.pop("restart_s", SupervisionTimes.restart_s),
            retry_s=arguments.pop("retry_s", SupervisionTimes.retry_s),
        )
        self.config = config
        self.host = Host(build, times=times, **arguments)
        self.progress: list[Progress] = []
        self.values: dict[str, int] = {}
        self.once: dict[str, int] = {}
        self.description = self.host.configure(config, self.progress.append)
        self.rates = dict.fromkeys(config.cameras, rate_hz)
        self.traffic = self._new_traffic()

    def _new_traffic(self) -> HostTraffic:
        return HostTraffic(self.host, self.description, self.rates, self._picture, self.config.stop_timeout_s)

    def start(self) -> HostRig:
        self.traffic.start()
        self.wait_results()
        return self

    def restart(self) -> HostRig:
        """Serve again after a stop."""
        self.traffic = self._new_traffic()
        return self.start()

    def _picture(self, camera: str, number: int) -> npt.NDArray[np.uint8]:
        value = self.once.pop(camera, self.values.get(camera, 200))
        return np.full((48, 64, 3), value, np.uint8)

    # -- waiting

    def until(self, condition: Callable[[], Any], what: str = "the condition", timeout_s: float = WAIT_S) -> Any:
        return until(condition, what, timeout_s, self.host.statuses)

    def wait_results(self, *dnns: str, count: int = 3) -> None:
        """Wait until each of these DNNs (by default all) has given `count` more results."""
        names = dnns or tuple(self.config.dnns)
        before = {name: self.traffic.results(name) for name in names}
        for name in names:
            self.until(lambda name=name: self.traffic.results(name) >= before[name] + count, f"results of {name}")

    # -- queries

    def status(self, dnn: str | None = None) -> EngineStatus | None:
        """The status of the common group, or of a DNN in a separate process."""
        name = f"engine {self.description.device}" + (f" {dnn}" if dnn else "")
        return next((one for one in self.host.statuses() if one.name == name), None)

    def pid(self, dnn: str | None = None) -> int:
        """Id of the process that serves."""

        def current_pid() -> int:
            status = self.status(dnn)
            return 0 if status is None or status.values["pid"] == "none" else int(str(status.values["pid"]))

        return int(self.until(current_pid, f"a process for {dnn or 'all'}"))

    def wait_standby(self, state: str) -> int:
        """Wait until the standby is in this state. Returns the pid of the only other process, or 0."""

        def has_state() -> bool:
            status = self.status()
            return status is not None and status.values["standby"] == state

        self.until(has_state, f"standby {state}")
        others = [pid for pid in engine_pids() if pid != self.pid()]
        return others[0] if len(others) == 1 else 0

    def close(self) -> None:
        self.traffic.stop()
        self.host.close()
        assert not engine_pids(), "engine processes are left"
        assert not self.traffic.discrepancies()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
