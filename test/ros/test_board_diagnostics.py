"""Power, temperatures, clocks and throttling: from files like those of sysfs, from NVML, and in the diagnostics."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jetson_tree import JETSON, PC, write_tree
from node_bench import Bench, image
from test_diagnostics_page import documented, stands_for

from multi_dnn_ros.ros.board.monitor import BoardMonitor, EnergyPerResult
from multi_dnn_ros.ros.board.nvml import NvmlGpus
from multi_dnn_ros.ros.board.sensors import Faults, Reading, Value, merged
from multi_dnn_ros.ros.board.sysfs import sysfs_sources

OK, WARN = 0, 1


class Board:
    """Sensors below a folder, with a clock that the test advances."""

    def __init__(self, root: Path, files: dict[str, str]) -> None:
        self.root, self.now_s, self.lines = write_tree(root, files), 0.0, list[str]()
        self.sources = sysfs_sources(root, Faults(self.lines.append), lambda: self.now_s)

    def read(self) -> Reading:
        self.now_s += 2.0
        return merged([source.read() for source in self.sources])

    def write(self, name: str, text: str) -> None:
        write_tree(self.root, {name: text})


def rounded(values: Any) -> dict[str, tuple[float, float | None]]:
    return {name: (round(v.value, 3), None if v.limit is None else round(v.limit, 3)) for name, v in values.items()}


def test_a_jetson(tmp_path: Path) -> None:
    board = Board(tmp_path, JETSON)
    reading = board.read()
    assert rounded(reading.power_w) == {"VDD_IN": (6.0, 38.92), "VDD_CPU_GPU_CV": (2.0, None), "VDD_SOC": (1.5, None)}
    assert reading.total_w == pytest.approx(6.0)  # the other rails are parts of it
    assert rounded(reading.temperatures_c) == {
        "cpu_thermal": (48.062, 99.0), "gpu_thermal": (47.5, None), "tj_thermal": (48.5, None),
    }  # fmt: skip
    assert rounded(reading.clocks_mhz) == {"CPU": (1510.4, 1510.4), "gpu": (306.0, 624.75)}
    assert (reading.throttled, reading.warnings(), board.lines) == ({}, [], [])


def test_warnings_near_limits(tmp_path: Path) -> None:
    board = Board(tmp_path, JETSON)
    board.read()
    board.write("class/thermal/thermal_zone0/temp", "94100")
    board.write("class/hwmon/hwmon1/curr1_input", "7500")
    board.write("class/hwmon/hwmon2/oc3_event_cnt", "6")
    assert board.read().warnings() == [
        "board is throttled: over-current (2 events)",
        "cpu_thermal has 94 degrees Celsius (limit 99)",
        "VDD_IN takes 37.5 W (limit 38.9)",
    ]
    assert "board is throttled" not in "".join(board.read().warnings())  # only since the last reading


def test_a_pc_with_rapl(tmp_path: Path) -> None:
    board = Board(tmp_path, PC)
    assert board.read().power_w == {}  # a counter needs two readings
    board.write("class/powercap/intel-rapl:0/energy_uj", "31000000")
    board.write("devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "9")
    reading = board.read()
    assert rounded(reading.power_w) == {"CPU_package_0": (15.0, 15.0)}
    assert reading.warnings() == ["CPU is throttled: too hot (2 events)"]  # at its power limit, which is normal
    assert rounded(reading.temperatures_c) == {"x86_pkg_temp": (61.0, None)}


def test_a_counter_that_starts_again_is_no_negative_power(tmp_path: Path) -> None:
    board = Board(tmp_path, {**PC, "class/powercap/intel-rapl:0/energy_uj": str(262143328850 - 10_000_000)})
    board.read()
    board.write("class/powercap/intel-rapl:0/energy_uj", "10000000")
    assert board.read().total_w == pytest.approx(10.0)


def test_a_sensor_that_vanishes_or_holds_garbage_is_one_log_line(tmp_path: Path) -> None:
    board = Board(tmp_path, JETSON)
    board.read()
    (tmp_path / "class/thermal/thermal_zone1/temp").unlink()
    board.write("class/thermal/thermal_zone8/temp", "garbage")
    board.write("class/hwmon/hwmon1/curr2_input", "99999999999")
    for _ in range(5):
        reading = board.read()
    assert list(reading.temperatures_c) == ["cpu_thermal"]
    assert list(reading.power_w) == ["VDD_IN", "VDD_SOC"]
    assert len(board.lines) == 3
    assert all("left out of the diagnostics" in line for line in board.lines)
    board.write("class/thermal/thermal_zone8/temp", "50000")  # it works again
    assert board.read().temperatures_c["tj_thermal"] == Value(50.0)
    assert len(board.lines) == 3


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from([*JETSON, *PC]), st.binary(max_size=20), max_size=30))
def test_no_content_of_the_files_raises(tmp_path_factory: pytest.TempPathFactory, contents: dict[str, bytes]) -> None:
    board = Board(tmp_path_factory.mktemp("sys"), {**JETSON, **PC})
    for name, data in contents.items():
        (board.root / name).write_bytes(data)
    again = sysfs_sources(board.root, Faults(board.lines.append))
    for source in (*board.sources, *again):
        source.read()
        source.read().warnings()


def test_a_computer_without_sensors(tmp_path: Path) -> None:
    assert Board(tmp_path, {}).read() == Reading()


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


def test_a_gpu_at_its_power_cap_is_normal_and_a_hot_one_is_not() -> None:
    lines: list[str] = []
    reading = NvmlGpus(nvml(), Faults(lines.append)).read()
    assert reading.total_w == pytest.approx(310.0)
    assert reading.warnings() == []
    hot = NvmlGpus(nvml(Temperature=88, CurrentClocksThrottleReasons=0x44), Faults(lines.append)).read()
    assert hot.warnings() == ["GPU_0 is throttled: too hot (hardware)", "GPU_0 has 88 degrees Celsius (limit 90)"]
    gone = NvmlGpus(nvml(PowerUsage=RuntimeError("GPU is lost")), Faults(lines.append))
    for _ in range(3):
        assert gone.read().total_w is None
    (line,) = lines
    assert "sensor GPU_0 power" in line
    assert "GPU is lost" in line


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


def test_a_driver_that_raises_or_blocks_does_not_stop_the_others() -> None:
    lines: list[str] = []
    done, released = threading.Event(), threading.Event()

    class Broken:
        def read(self) -> Reading:
            raise KeyError("surprise")

    class Slow:
        def read(self) -> Reading:
            done.set()
            released.wait(30)
            return Reading(power_w={"x": Value(1.0)})

    monitor = BoardMonitor(lines.append, sources=lambda faults: [Broken(), Slow()], period_s=0.01)
    assert done.wait(30)
    assert monitor.latest() == Reading()
    released.set()
    while monitor.latest().total_w is None:
        pass
    monitor.close(30)
    assert lines == ["sensor Broken is left out of the diagnostics while it cannot be read: 'surprise'"]


def test_old_values_are_left_out_while_a_driver_blocks() -> None:
    now_s, lines = [0.0], list[str]()
    blocked, released = threading.Event(), threading.Event()

    class Blocking:
        reads = 0

        def read(self) -> Reading:
            self.reads += 1
            if self.reads == 2:
                blocked.set()
                released.wait(30)
            return Reading(power_w={"x": Value(1.0)})

    monitor = BoardMonitor(lines.append, sources=lambda faults: [Blocking()], period_s=0.01, clock=lambda: now_s[0])
    assert blocked.wait(30)
    assert monitor.latest().total_w == 1.0
    now_s[0] = 10.5
    assert [monitor.latest() for _ in range(3)] == [Reading()] * 3
    (line,) = lines
    assert "sensor Blocking is left out of the diagnostics" in line
    assert "no answer for 10 s" in line
    released.set()
    while monitor.latest().total_w is None:
        pass
    monitor.close(30)
    assert len(lines) == 1


def test_the_status_of_a_running_node_is_as_the_page_says(bench: Bench, tmp_path: Path) -> None:
    write_tree(tmp_path, JETSON)
    bench.node(board=lambda warn: BoardMonitor(warn, tmp_path, lambda f: sysfs_sources(tmp_path, f), period_s=0.02))
    bench.until(lambda: bench.status("board").level == OK, "the status")
    assert bench.status("board").message == "6.0 W; 48 degrees Celsius"
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
