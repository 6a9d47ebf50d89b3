"""When `multi-dnn benchmark chaos` considers engine processes recovered; runs: test/serving/test_host_chaos.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from multi_dnn_ros.benchmark import chaos
from multi_dnn_ros.serving.host import EngineStatus, Level


def status(device: str, **values: object) -> EngineStatus:
    return EngineStatus(f"engine {device}", Level.OK, "serving", {"pid": 7, **values})


@pytest.mark.parametrize(
    ("statuses", "settled"),
    [
        ([status("cpu", standby="hot, ready")], True),
        ([status("cuda:0", standby="hot, ready"), status("cuda:1", standby="hot, ready")], True),
        ([status("cuda:0", standby="hot, ready"), status("cuda:1", standby="hot, preparing")], False),
        ([status("cuda:0", standby="hot, ready"), status("lane")], False),  # a process of its own
        ([], False),
    ],
)
def test_every_device_has_one_process_and_its_standby(
    statuses: list[EngineStatus], settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos, "_RECOVERY_S", 0.05)
    monkeypatch.setattr(chaos, "_SAMPLE_S", 0.01)
    count = 0

    def results(dnn: str) -> int:
        nonlocal count
        count += 1
        return count

    host: Any = SimpleNamespace(statuses=lambda: statuses)
    traffic: Any = SimpleNamespace(results=results, accounts=SimpleNamespace(cameras_by_dnn={"lane": ("front",)}))
    assert chaos._Watch(host, "hot").wait_settled(traffic) is settled
