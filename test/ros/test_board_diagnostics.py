"""The sensors of the computer: what is read, when it is a warning, and the status of a node."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jetson_tree import JETSON, write_tree
from node_bench import Bench, image
from test_diagnostics_page import documented, stands_for
from waiting import until

from multi_dnn_ros.ros.board.monitor import BoardMonitor, EnergyPerResult
from multi_dnn_ros.ros.board.sensors import Reading, Value, read_sensors

OK, WARN = 0, 1


def rounded(values: Any) -> dict[str, tuple[float, float | None]]:
    return {name: (round(v.value, 3), None if v.limit is None else round(v.limit, 3)) for name, v in values.items()}


def test_a_jetson(tmp_path: Path) -> None:
    reading = read_sensors(write_tree(tmp_path, JETSON), None)
    assert rounded(reading.power_w) == {"VDD_IN": (6.0, 38.92), "VDD_CPU_GPU_CV": (2.0, None), "VDD_SOC": (1.5, None)}
    assert reading.total_w == pytest.approx(6.0)  # the other rails are parts of it
    assert rounded(reading.temperatures_c) == {
        "cpu_thermal": (48.062, 99.0), "gpu_thermal": (47.5, None), "tj_thermal": (48.5, None),
    }  # fmt: skip
    assert reading.warnings() == []
    write_tree(tmp_path, {"class/thermal/thermal_zone0/temp": "94100", "class/hwmon/hwmon1/curr1_input": "7500"})
    assert read_sensors(tmp_path, None).warnings() == [
        "cpu_thermal has 94 degrees Celsius (limit 99)", "VDD_IN takes 37.5 W (limit 38.9)",
    ]  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(list(JETSON)), st.binary(max_size=20), max_size=30))
def test_no_content_of_the_files_raises(tmp_path_factory: pytest.TempPathFactory, contents: dict[str, bytes]) -> None:
    root = write_tree(tmp_path_factory.mktemp("sys"), JETSON)
    for name, content in contents.items():
        (root / name).write_bytes(content)
    reading = read_sensors(root, None)
    assert all(-60 <= value.value <= 200 for value in reading.temperatures_c.values())
    reading.warnings()


def test_a_computer_without_sensors(tmp_path: Path) -> None:
    assert read_sensors(tmp_path, None) == Reading()


def nvml(**changes: Any) -> Any:
    """The functions of pynvml that are used, for one GPU."""
    values = {"PowerUsage": 310_000, "EnforcedPowerLimit": 320_000, "Temperature": 60, "TemperatureThreshold": 90,
              "ClockInfo": 1700, "MaxClockInfo": 1980, "CurrentClocksThrottleReasons": 4, **changes}  # fmt: skip

    def answer(value: Any) -> Any:
        def call(*arguments: Any) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        return call

    functions = {f"nvmlDeviceGet{name}": answer(value) for name, value in values.items()}
    return SimpleNamespace(nvmlDeviceGetCount=lambda: 1, nvmlDeviceGetHandleByIndex=lambda n: n, **functions)


def test_a_gpu_at_its_power_cap_is_normal_and_a_hot_one_is_not(tmp_path: Path) -> None:
    reading = read_sensors(tmp_path, nvml())
    assert reading.total_w == pytest.approx(310.0)
    assert rounded(reading.clocks_mhz) == {"GPU_0": (1700, 1980)}
    assert reading.warnings() == []
    hot = read_sensors(tmp_path, nvml(Temperature=88, CurrentClocksThrottleReasons=0x44))
    assert hot.warnings() == ["GPU_0 is throttled: too hot (hardware)", "GPU_0 has 88 degrees Celsius (limit 90)"]
    assert read_sensors(tmp_path, nvml(PowerUsage=RuntimeError("GPU is lost"))).total_w is None


def test_energy_per_result() -> None:
    now = [0.0]
    energy = EnergyPerResult(lambda: now[0])
    seen = []
    for second in range(20):
        now[0] = float(second)
        seen.append(energy.update(6.0, 30 * second))
    assert seen[0] is None
    assert seen[1:] == [pytest.approx(0.2)] * 19
    assert energy.update(6.0, 0) is None  # activated again
    assert energy.update(None, 5) is None


def test_old_values_are_left_out_while_a_driver_blocks_and_a_failure_is_one_warning() -> None:
    now_s, lines = [0.0], list[str]()
    released, reads = threading.Event(), []

    def read() -> Reading:
        reads.append(now_s[0])
        if len(reads) == 2:
            released.wait(30)
        if len(reads) == 3:
            raise KeyError("surprise")
        return Reading(power_w={"x": Value(1.0)})

    monitor = BoardMonitor(lines.append, read=read, period_s=0.01, clock=lambda: now_s[0])
    until(lambda: len(reads) == 2, "the second reading")
    assert monitor.latest().total_w == 1.0
    now_s[0] = 10.5
    assert monitor.latest() == Reading()
    released.set()
    until(lambda: lines, "the warning")
    monitor.close(30)
    (line,) = lines
    assert "surprise" in line


def test_the_status_of_a_running_node_is_as_the_page_says(bench: Bench, tmp_path: Path) -> None:
    write_tree(tmp_path, JETSON)
    bench.node(
        board=lambda warn: BoardMonitor(warn, read=lambda: read_sensors(tmp_path, nvml(Temperature=40)), period_s=0.02)
    )
    bench.until(lambda: bench.status("board").level == OK, "the status")
    assert bench.status("board").message == "316.0 W; 48 degrees Celsius"
    assert bench.change("configure")
    assert bench.change("activate")
    camera = bench.camera()
    bench.until(
        lambda: camera.publish(image()) or bench.status("board").by_key.get("energy per result (J)") != "unknown",
        "energy per result",
    )
    assert float(bench.status("board").by_key["energy per result (J)"]) > 0
    write_tree(tmp_path, {"class/thermal/thermal_zone0/temp": "97000"})
    bench.until(lambda: bench.status("board").level == WARN, "the warning")
    assert bench.status("board").message == "cpu_thermal has 97 degrees Celsius (limit 99)"
    on_page = documented("board") - {"<sensor> throttled"}
    published = set(bench.status("board").by_key)
    assert {key for key in published if not any(stands_for(each, key) for each in on_page)} == set()
    assert {each for each in on_page if not any(stands_for(each, key) for key in published)} == set()
