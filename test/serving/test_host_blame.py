"""The DNN at fault is disabled and retried while the others are served; with real engine processes."""

from __future__ import annotations

import host_pipelines
import pytest
from fake_pipelines import BUSY, RAISE, SEGFAULT, settings
from host_rig import HostRig

from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving.host import Level

DNNS = ("faulty", "lane", "object")
WINDOW_S = 6.0


@pytest.mark.long  # test_host_supervision covers it with simulated processes
@pytest.mark.parametrize(("value", "standby"), [(SEGFAULT, "hot"), (BUSY, "none")])
def test_only_the_dnn_at_fault_is_disabled_and_retried_and_all_are_merged(value: int, standby: str) -> None:
    """While the images contain the fault, every process that serves `faulty` is lost."""
    config = settings(*DNNS, standby=standby, fault_window_s=30.0 if standby == "none" else WINDOW_S, job_timeout_s=0.5)
    rig = HostRig(config, host_pipelines.build, retry_s=(3.0, 4.0, 5.0))
    try:
        rig.start()
        if standby == "hot":
            rig.wait_standby("hot, ready")
        rig.values["front"] = value

        def is_disabled() -> bool:
            status = rig.status("faulty")
            return status is not None and status.level is Level.ERROR and "disabled" in status.text

        rig.until(is_disabled, "faulty to be disabled", 180)
        assert rig.traffic.seen.failures[-1].dnn == "faulty"
        assert {failure.dnn for failure in rig.traffic.seen.failures if failure.disabled} == {"faulty"}
        assert rig.traffic.accounts.statistics().disabled.keys() == {"faulty"}
        rig.wait_results("lane", "object", count=10)
        losses = len(rig.traffic.seen.failures)
        rig.until(lambda: len(rig.traffic.seen.failures) > losses, "the retry to fail", 120)
        dropped = rig.traffic.streams()["faulty", "front"].dropped
        assert dropped[DropReason.DISABLED] > 0
        lost = {dnn: _lost(rig, dnn) for dnn in ("lane", "object")}
        losses = len(rig.traffic.seen.failures)
        rig.until(lambda: len(rig.traffic.seen.failures) > losses, "one more retry", 120)
        assert {dnn: _lost(rig, dnn) for dnn in ("lane", "object")} == lost, "retries do not affect the other DNNs"
        rig.values["front"] = 200
        rig.wait_results("faulty")
        if standby == "hot":
            rig.until(lambda: len(rig.host.statuses()) == 1, "one process for all", 180)
            rig.wait_results()
            assert {dnn: _lost(rig, dnn) for dnn in ("lane", "object")} == lost, "merging loses no frame"
        assert not rig.traffic.accounts.statistics().disabled
    finally:
        rig.close()


def _lost(rig: HostRig, dnn: str) -> int:
    return rig.traffic.streams()[dnn, "front"].dropped.get(DropReason.ENGINE_LOST, 0)


def test_a_raising_layer_loses_its_frame_and_the_disabled_dnn_is_retried() -> None:
    """max_failures in a row disable the DNN; its process continues."""
    rig = HostRig(settings(*DNNS, max_failures=3), host_pipelines.build_that_retries_soon)
    try:
        rig.start()
        pid = rig.pid()
        rig.values["front"] = RAISE
        rig.until(lambda: rig.traffic.accounts.statistics().disabled, "faulty to be disabled")
        rig.wait_results("lane", "object", count=10)
        rig.values["front"] = 200
        rig.wait_results("faulty")
        assert not rig.traffic.accounts.statistics().disabled
        assert rig.pid() == pid
    finally:
        rig.close()
