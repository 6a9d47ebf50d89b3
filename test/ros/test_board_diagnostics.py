"""The sensors of the computer: what is read, and when it is a warning."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jetson_tree import JETSON, write_tree
from waiting import until

from multi_dnn_ros.ros.board import BoardMonitor
from multi_dnn_ros.ros.diagnostics import OK, WARN, Status


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Status]:
    """Returns the status of a computer with these files, and a GPU with these answers of NVML; None: no GPU."""

    def status(root: Path, gpu: dict[str, Any] | None = None) -> Status:
        monkeypatch.setitem(sys.modules, "pynvml", None if gpu is None else nvml(gpu))
        lines: list[str] = []
        monitor = BoardMonitor(lines.append, root, period_s=0.01)
        try:
            until(lambda: lines or list(monitor.statuses()), "a reading")
            assert not lines
            (found,) = monitor.statuses()
            return found
        finally:
            monitor.close(30)

    return status


def nvml(gpu: dict[str, Any]) -> Any:
    """The functions of pynvml that are used, for one GPU."""
    values = {"PowerUsage": 310_000, "Temperature": 60, "TemperatureThreshold": 90,
              "CurrentClocksThrottleReasons": 4, **gpu}  # fmt: skip
    functions = {f"nvmlDeviceGet{name}": lambda *_, value=value: value for name, value in values.items()}
    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        NVML_TEMPERATURE_GPU=0,
        NVML_TEMPERATURE_THRESHOLD_SLOWDOWN=1,
        **functions,
    )


def test_a_jetson(tmp_path: Path, read: Callable[..., Status]) -> None:
    write_tree(tmp_path, JETSON)
    found = read(tmp_path)
    assert (found.level, found.text) == (OK, "6.0 W; 48 C")
    assert found.values == {
        "power (W)": "6.00",  # the other rails are parts of it
        "VDD_IN power (W)": "6.00",
        "VDD_CPU_GPU_CV power (W)": "2.00", "VDD_SOC power (W)": "1.50",
        "cpu-thermal temperature (C)": "48.06", "cpu-thermal temperature limit (C)": "99.00",
        "gpu-thermal temperature (C)": "47.50", "tj-thermal temperature (C)": "48.50",
    }  # fmt: skip
    write_tree(
        tmp_path, {"class/thermal/thermal_zone0/temp": "94100", "class/thermal/thermal_zone8/temp": "2147483647"}
    )
    write_tree(tmp_path, {"class/thermal/thermal_zone1/temp": "hot", "class/hwmon/hwmon1/curr1_input": "-"})
    found = read(tmp_path)
    assert found.level == WARN
    assert found.text == "cpu-thermal has 94 degrees Celsius (limit 99)"


def test_a_gpu_at_its_power_cap_is_normal_and_a_hot_one_is_not(tmp_path: Path, read: Callable[..., Status]) -> None:
    assert read(tmp_path, {})[1:3] == (OK, "310.0 W; 60 C")
    hot = read(tmp_path, {"Temperature": 88, "CurrentClocksThrottleReasons": 0x44})
    assert hot[1:3] == (WARN, "GPU_0 is throttled: too hot (hardware); GPU_0 has 88 degrees Celsius (limit 90)")
    assert "power (W)" not in read(tmp_path, {"PowerUsage": "GPU is lost"}).values


def test_after_the_gpu_was_lost_there_is_no_status_instead_of_old_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, lines = nvml({}), list[str]()
    monkeypatch.setitem(sys.modules, "pynvml", gpu)
    monitor = BoardMonitor(lines.append, tmp_path, period_s=0.01)
    until(lambda: list(monitor.statuses()), "a reading")
    del gpu.nvmlDeviceGetHandleByIndex  # raises, as the driver does
    until(lambda: lines, "the warning")
    assert "no status `board`" in lines[0]
    assert not list(monitor.statuses())
    monitor.close(30)
