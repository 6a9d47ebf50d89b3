"""DNNs on several devices, each with its own engine processes: two shares of the CPU stand for two devices."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import device_pipelines
import pytest
from device_pipelines import SLOW
from engine_faults import engine_pids
from fake_pipelines import settings
from host_rig import HostRig
from host_traffic import HostTraffic

from multi_dnn_ros.engine.task import DropReason, Result
from multi_dnn_ros.serving.host import ConfigureError, Level
from multi_dnn_ros.serving.process_host import ProcessHost
from multi_dnn_ros.settings.schema import NodeConfig

FRONT = "object", "front"


class _Traffic(HostTraffic):
    """published: (number of the image, process id of the engine) in the order of publication, by stream."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.published: dict[tuple[str, str], list[tuple[int, int]]] = {}

    def _on_result(self, result: Result) -> None:
        pid = round(float(result.output.scores[0]) * 1e8)
        entries = self.published.setdefault((result.dnn, result.frame.camera), [])
        entries.append((result.frame.context, pid))
        super()._on_result(result)


class _Rig(HostRig):
    traffic: _Traffic

    def _new_traffic(self) -> _Traffic:
        return _Traffic(self.host, self.description, self.rates, self._picture, self.config.stop_timeout_s)

    def pid_of(self, device: str) -> int:
        """Id of the process that serves on a device; 0: there is none."""
        (status,) = [status for status in self.host.statuses() if status.name == f"engine {device}"]
        return 0 if status.values["pid"] == "none" else int(str(status.values["pid"]))

    def numbers(self, dnn: str = "object", camera: str = "front") -> list[int]:
        return [number for number, _ in self.traffic.published.get((dnn, camera), [])]

    def by_pid(self, begin: int = 0, stream: tuple[str, str] = FRONT) -> Counter[int]:
        return Counter(pid for _, pid in self.traffic.published[stream][begin:])


def on_devices(devices: dict[str, list[str]], **arguments: Any) -> NodeConfig:
    config = settings(*devices, **{"fault_window_s": 1.0, **arguments})
    for dnn, names in devices.items():
        config.dnns[dnn].device = names
    return config


@pytest.fixture
def make() -> Iterator[Callable[..., _Rig]]:
    rigs: list[_Rig] = []

    def make_rig(devices: dict[str, list[str]], rate_hz: float = 30.0, **arguments: Any) -> _Rig:
        config = on_devices(devices, **arguments)
        rigs.append(_Rig(config, device_pipelines.build_by_device, rate_hz, restart_s=(0.0,)))
        return rigs[-1]

    yield make_rig
    for rig in rigs:
        rig.close()


def test_each_device_has_its_own_process_whose_loss_affects_only_its_dnns(make: Callable[..., _Rig]) -> None:
    rig = make({"object": ["cpu:1"], "pedestrian": ["cpu:2"]}, fault_window_s=60.0)
    assert rig.description.device == "cpu:1, cpu:2"
    assert list(rig.description.dnns) == ["object", "pedestrian"]
    assert {status.name: status.values["DNNs"] for status in rig.host.statuses()} == {
        "engine cpu:1": "object",
        "engine cpu:2": "pedestrian",
    }
    rig.start()
    assert rig.by_pid().keys() == {rig.pid_of("cpu:1")}
    assert rig.by_pid(stream=("pedestrian", "front")).keys() == {rig.pid_of("cpu:2")}
    lost = rig.pid_of("cpu:2")
    os.kill(lost, signal.SIGKILL)
    rig.until(lambda: rig.pid_of("cpu:2") not in (0, lost), "the new process")
    rig.wait_results("pedestrian", "object")
    rig.traffic.stop()
    streams = rig.traffic.streams()
    assert not streams[FRONT].dropped.get(DropReason.ENGINE_LOST)
    assert streams["pedestrian", "front"].dropped[DropReason.ENGINE_LOST]
    assert rig.by_pid().keys() == {rig.pid_of("cpu:1")}


def test_a_frame_is_decoded_once_into_a_slot_that_all_devices_release(make: Callable[..., _Rig]) -> None:
    rig = make({"object": ["cpu:1", "cpu:2"], "pedestrian": ["cpu:2"]})
    decoded: list[int] = []
    picture = rig._picture
    rig._picture = lambda camera, number: (decoded.append(number), picture(camera, number))[1]  # type: ignore[method-assign]
    rig.traffic = rig._new_traffic()
    rig.start()
    rig.wait_results(count=20)
    rig.traffic.stop()
    assert len(decoded) == len(set(decoded))
    assert set(rig.numbers("pedestrian")) & set(rig.numbers("object"))
    slots = [rig.host.buffer("front", 0.0) for _ in range(10)]  # 2 of each DNN on each device, 2 waiting, 2 decoded
    assert None not in slots
    assert rig.host.buffer("front", 0.0) is None
    for slot in slots:
        assert slot is not None
        slot.release()


def test_a_dnn_uses_its_devices_in_proportion_to_their_speeds_and_keeps_the_order(make: Callable[..., _Rig]) -> None:
    # On a busy machine a process may be without a core for longer than the default of reorder_ms.
    rig = make({"object": ["cpu:2", "cpu:1"]}, rate_hz=200.0, reorder_ms=10_000.0).start()
    rig.wait_results(count=150)
    fast, slow = rig.pid_of("cpu:1"), rig.pid_of("cpu:2")

    def in_proportion() -> bool:  # 20 and 40 ms per frame; a busy machine changes that for a while
        used = rig.by_pid()
        return 1.3 < used[fast] / max(used[slow], 1) < 3.0

    rig.until(in_proportion, "frames in proportion")
    rig.traffic.stop()
    numbers = rig.numbers()
    assert numbers == sorted(numbers)
    assert not rig.traffic.streams()[FRONT].dropped.get(DropReason.OUT_OF_ORDER)


def test_frames_that_one_device_can_serve_go_to_the_faster_one(make: Callable[..., _Rig]) -> None:
    rig = make({"object": ["cpu:2", "cpu:1"]}, rate_hz=10.0).start()
    rig.wait_results(count=10)
    fast, slow = rig.pid_of("cpu:1"), rig.pid_of("cpu:2")
    # On a busy machine this takes a while.
    rig.until(lambda: rig.by_pid()[fast] > 3 * rig.by_pid()[slow], "more frames for the faster one")


@pytest.mark.parametrize("device", ["cpu:1", pytest.param("cpu:2", marks=pytest.mark.long)])
def test_the_other_device_continues_when_a_process_is_killed(make: Callable[..., _Rig], device: str) -> None:
    rig = make({"object": ["cpu:1", "cpu:2"]}, rate_hz=100.0, fault_window_s=60.0).start()
    rig.wait_results(count=20)
    lost, other = rig.pid_of(device), rig.pid_of({"cpu:1": "cpu:2", "cpu:2": "cpu:1"}[device])
    begin = len(rig.numbers())
    os.kill(lost, signal.SIGKILL)
    rig.until(lambda: rig.pid_of(device) != lost, "the loss")
    before = len(rig.numbers())
    rig.until(lambda: len(rig.numbers()) >= before + 10, "results of the other device")
    assert not rig.host.statuses()[0].level or not rig.host.statuses()[1].level  # one serves
    assert other in rig.by_pid(before)
    assert lost not in rig.by_pid(before)
    rig.until(lambda: rig.pid_of(device) not in (0, lost), "the new process")
    new = rig.pid_of(device)
    rig.until(lambda: rig.by_pid(begin)[new] >= 5, "results of the new process")
    rig.traffic.stop()
    assert rig.traffic.discrepancies() == []
    assert rig.numbers() == sorted(rig.numbers())


def test_a_late_frame_is_dropped_after_the_bound_and_the_others_are_published(make: Callable[..., _Rig]) -> None:
    rig = make({"object": ["cpu:1", "cpu:2"]}, rate_hz=100.0, reorder_ms=100.0).start()
    for _ in range(2):
        rig.values["front"] = SLOW
        rig.wait_results(count=6)  # at least one of these frames is late
        rig.values["front"] = 200
        rig.wait_results(count=60)
    rig.traffic.stop()
    assert rig.traffic.streams()[FRONT].dropped[DropReason.OUT_OF_ORDER] >= 1
    assert rig.traffic.discrepancies() == []
    assert rig.numbers() == sorted(rig.numbers())


def test_stop_finishes_the_frames_of_all_devices_and_they_serve_again(make: Callable[..., _Rig]) -> None:
    rig = make({"object": ["cpu:1", "cpu:2"]}, rate_hz=100.0).start()
    pids = set(engine_pids())
    for _ in range(2):
        assert rig.traffic.stop() == []
        assert rig.traffic.discrepancies() == []
        assert not rig.traffic.streams()[FRONT].dropped.get(DropReason.ENGINE_LOST)
        assert [status.text for status in rig.host.statuses()] == ["ready", "ready"]
        rig.restart()
        rig.until(lambda: rig.by_pid().keys() == pids, "results of both processes")
    assert all(status.level is Level.OK for status in rig.host.statuses())


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ({"object": ["cpu:1"], "pedestrian": ["cuda:7"]}, "parameter dnn.pedestrian.device is 'cuda:7', but PyTorch"),
        ({"object": ["cpu:1", "cuda:7"]}, "parameter dnn.object.device is 'cuda:7', but PyTorch"),
    ],
)
def test_a_device_that_does_not_exist_is_refused_and_nothing_is_left(devices: dict, words: str) -> None:
    host = ProcessHost(device_pipelines.build_by_device)
    with pytest.raises(ConfigureError) as caught:
        host.configure(on_devices(devices), lambda progress: None)
    assert words in caught.value.text
    assert "allowed: auto, cpu" in caught.value.text
    assert caught.value.expected
    assert not engine_pids()
    host.close()
