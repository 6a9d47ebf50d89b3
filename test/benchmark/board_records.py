"""Made-up results of `multi-dnn benchmark board` for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from multi_dnn_ros.benchmark.board.record import Board, BoardRecord, Idle, Latency, MixRecord, Settings, Trial


def trial(rate_hz: float, passed: bool = True, **changes: Any) -> Trial:
    values: dict[str, Any] = {
        "rate_hz": rate_hz,
        "seconds": 10.0,
        "frames": 10.0 * rate_hz,
        "results": int(30 * rate_hz),
        "results_hz": 3.0 * rate_hz,
        "dropped": {} if passed else {"overwritten": int(15 * rate_hz)},
        "drop_share": 0.0 if passed else 0.5,
        "passed": passed,
        "decided": True,
        "latency_ms": Latency(samples=300, min=5.0, p50=10.0, p95=20.0, p99=30.0, max=40.0),
        "cpu_cores": 1.5,
        "cpu_ms_per_result": 16.0,
        "memory_bytes": 700 << 20,
    }
    return Trial.model_validate({**values, **changes})


def mix(rate_hz: float | None = 30.0, **changes: Any) -> MixRecord:
    """Measured at this rate; None: without figures."""
    values: dict[str, Any] = {
        "text": "three DNNs",
        "dnns": {"lane": "builtin:lane", "object": "builtin:object"},
        "cameras": 1,
        "size": (640, 480),
        "encoding": "rgb8",
        "status": "measured" if rate_hz is not None else "does_not_fit",
        "reason": "" if rate_hz is not None else "needs a GPU",
        "device": "cpu",
        "start_s": 8.0,
    }
    if rate_hz is not None:
        values |= {
            "trials": [trial(2.0 * rate_hz, False), trial(rate_hz), trial(rate_hz)],
            "highest_hz": rate_hz,
            "failing_hz": 1.04 * rate_hz,
            "long": 2,
        }
    return MixRecord.model_validate({**values, **changes})


def record(mixes: dict[str, MixRecord] | None = None, **board: Any) -> BoardRecord:
    return BoardRecord(
        scenario="board",
        schema_version=1,
        command="multi-dnn benchmark board",
        machine={"cpu": "A CPU", "cores": 2},
        versions={"multi_dnn_ros": "0.1.0"},
        minutes=3.0,
        settings=Settings(
            mixes=["builtin"], cameras=1, size=(640, 480), encoding="rgb8", max_rate_hz=200.0, seed=0, device=None
        ),
        board=Board.model_validate({
            "cpu": "A CPU", "cores": 2, "memory_bytes": 8 << 30, "gpu": None, "gpu_memory_bytes": None,
            "kernel": "6.1", "system": "Linux", "runtime": "ROS 2 jazzy rmw_fastrtps_cpp", **board,
        }),
        idle=Idle(seconds=5.0, busy_share=0.01, power_w=None, temperature_c=None),
        mixes=mixes if mixes is not None else {"builtin": mix()},
    )  # fmt: skip


def write(path: Path, content: BoardRecord) -> Path:
    path.write_text(json.dumps(content.model_dump(mode="json")))
    return path
