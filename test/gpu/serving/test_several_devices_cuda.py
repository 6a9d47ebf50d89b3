"""A DNN on a GPU and the CPU at once, and the choice between the two; on a CPU: test_several_devices.py."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import numpy as np
from host_traffic import HostTraffic

from multi_dnn_ros.serving.process_host import ProcessHost
from multi_dnn_ros.settings.flat_parameters import to_config


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < deadline, f"waited 120 s for {what}"
        time.sleep(0.02)


def test_the_cpu_carries_on_when_the_process_of_the_gpu_is_killed() -> None:
    flat = {"dnns": ["object"], "cameras": ["front"], "dnn.object.device": ["cuda:0", "cpu:2"], "reorder_ms": 1000.0}
    config = to_config(flat)
    host = ProcessHost()
    try:
        description = host.configure(config, lambda step: None)
        assert description.device == "cuda:0, cpu:2"
        picture = np.zeros((480, 640, 3), np.uint8)
        traffic = HostTraffic(host, description, {"front": 30.0}, lambda camera, number: picture)
        traffic.start()
        until(lambda: traffic.results("object") > 20, "results")
        (status,) = [status for status in host.statuses() if status.name == "engine cuda:0"]
        os.kill(int(str(status.values["pid"])), signal.SIGKILL)
        before = traffic.results("object")
        until(lambda: traffic.results("object") > before + 20, "results of the CPU")
        until(
            lambda: any(it.name == "engine cuda:0" and it.values["restarts"] == 1 for it in host.statuses()),
            "the replacement",
        )
        traffic.stop()
        assert traffic.discrepancies() == []
    finally:
        host.close()
