"""A model swap on a GPU: no frame is lost, the gap is short, and the memory of the previous engine is freed."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from engine_faults import engine_pids
from host_traffic import HostTraffic

from multi_dnn_ros.serving.host import Host
from multi_dnn_ros.settings.schema import CameraConfig, DnnConfig, NodeConfig

DNNS = ("lane", "object", "pedestrian")
LIMIT_S = 120.0
ALLOCATED = "engine processes GPU allocated (bytes)"


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {LIMIT_S:g} s for {what}"
        time.sleep(0.005)


def test_a_swap_loses_no_frame_and_frees_the_former_engine() -> None:
    config = NodeConfig(
        cameras={"front": CameraConfig(max_pixels=640 * 480)},
        dnns={name: DnnConfig(role=name, model=f"builtin:{name}") for name in DNNS},
        device="cuda:0",
    )
    host = Host()
    description = host.configure(config, lambda progress: None)
    picture = np.full((480, 640, 3), 90, np.uint8)
    traffic = HostTraffic(host, description, {"front": 30.0}, lambda camera, number: picture)
    try:
        traffic.start()
        until(lambda: all(traffic.results(dnn) >= 30 for dnn in DNNS), "results")
        until(lambda: host.memory().get(ALLOCATED), "a report of the memory")
        before = host.memory()[ALLOCATED]
        for model in ("builtin:object_small", "builtin:object"):
            swap = host.swap({"object": {"model": model}}, lambda: None)
            until(lambda swap=swap: swap.is_prepared or swap.failure, "the preparation")
            assert swap.commit(), swap.failure
            counts = {dnn: traffic.results(dnn) for dnn in DNNS}
            until(lambda counts=counts: all(traffic.results(dnn) > counts[dnn] + 3 for dnn in DNNS), "results")
            print(model, {dnn: round(traffic.gap_ms(dnn)) for dnn in DNNS}, "ms")
            assert max(traffic.gap_ms(dnn) for dnn in DNNS) < 500
            until(lambda: len(engine_pids()) == 1, "the end of the previous process")
        until(lambda: host.memory()[ALLOCATED] <= 1.1 * before, "the memory of one engine")
        traffic.stop()
        for (dnn, _), figures in traffic.streams().items():
            lost = {reason.value for reason, count in figures.dropped.items() if count}
            assert lost <= {"overwritten"}, f"{dnn}: {lost}"
        assert not traffic.discrepancies()
    finally:
        host.close()
