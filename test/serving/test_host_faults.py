"""A DNN at fault is disabled and tried again while the others are served; engines in this process; several devices."""

from __future__ import annotations

import threading

import fake_pipelines
import host_pipelines
import pytest
from fake_pipelines import BUSY, GPU_FAULT, RAISE, SEGFAULT, settings
from host_rig import HostRig

from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving.descriptions import Cancelled, ConfigureError, Level
from multi_dnn_ros.serving.host import Host

DNNS = ("faulty", "lane", "object")


def _lost(rig: HostRig, dnn: str) -> int:
    return rig.traffic.streams()[dnn, "front"].dropped.get(DropReason.ENGINE_LOST, 0)


@pytest.mark.parametrize(("value", "standby"), [(SEGFAULT, "hot"), pytest.param(BUSY, "none", marks=pytest.mark.long)])
def test_only_the_dnn_at_fault_is_disabled_and_tried_again(value: int, standby: str) -> None:
    """While the images contain the fault, every process that serves `faulty` is lost."""
    config = settings(*DNNS, standby=standby, fault_window_s=60.0, job_timeout_s=0.5)
    rig = HostRig(config, host_pipelines.build, retry_s=(2.0, 3.0), restart_s=(0.0,))
    try:
        rig.start()
        rig.values["front"] = value
        rig.until(lambda: rig.traffic.ledger.statistics().disabled, "faulty to be disabled", 180)
        assert {failure.dnn for failure in rig.traffic.seen.failures if failure.disabled} == {"faulty"}
        rig.wait_results("lane", "object", count=10)
        lost = {dnn: _lost(rig, dnn) for dnn in ("lane", "object")}
        losses = len(rig.traffic.seen.failures)
        rig.until(lambda: len(rig.traffic.seen.failures) > losses, "the retry to fail", 120)
        assert rig.traffic.streams()["faulty", "front"].dropped[DropReason.DISABLED] > 0
        assert {dnn: _lost(rig, dnn) for dnn in ("lane", "object")} == lost, "retries do not affect the other DNNs"
        rig.values["front"] = 200
        rig.wait_results("faulty")
        assert not rig.traffic.ledger.statistics().disabled
        assert len(rig.host.statuses()) == 3, "each keeps its process"
    finally:
        rig.close()


def test_a_raising_layer_loses_its_frame_and_the_disabled_dnn_is_retried() -> None:
    """max_failures in a row disable the DNN; its process continues."""
    rig = HostRig(settings(*DNNS, max_failures=3), host_pipelines.build_that_retries_soon)
    try:
        rig.start()
        pid = rig.pid()
        rig.values["front"] = RAISE
        rig.until(lambda: rig.traffic.ledger.statistics().disabled, "faulty to be disabled")
        rig.wait_results("lane", "object", count=10)
        rig.values["front"] = 200
        rig.wait_results("faulty")
        assert not rig.traffic.ledger.statistics().disabled
        assert rig.pid() == pid
    finally:
        rig.close()


def test_dnns_on_several_devices_are_lost_separately() -> None:
    config = settings("lane", "object", cameras=("front", "rear"))
    config.dnns["lane"].device, config.dnns["object"].device = "cpu:1", "cpu:2"
    rig = HostRig(config)
    try:
        assert rig.description.device == "cpu:1, cpu:2"
        assert {step.total for step in rig.progress if step.total} == {2}
        rig.start()
        assert {status.name for status in rig.host.statuses()} == {"engine cpu:1", "engine cpu:2"}
        lost = _lost(rig, "lane")
        rig.once["front"] = SEGFAULT
        rig.until(lambda: any(status.level is Level.WARN for status in rig.host.statuses()), "a loss")
        rig.wait_results()
        assert _lost(rig, "lane") >= lost
    finally:
        rig.close()


def test_an_engine_in_this_process_serves_updates_and_reports_a_failed_device() -> None:
    rig = HostRig(settings("object", "mask", isolation="none"))
    try:
        rig.start()
        rig.host.update("object", "max_age_ms", 0.001)
        rig.until(lambda: rig.traffic.streams()["object", "front"].dropped.get(DropReason.TOO_OLD), "an old frame")
        rig.host.update("object", "max_age_ms", 0.0)
        assert rig.traffic.stop() == []
        rig.restart()
        (status,) = rig.host.statuses()
        assert (status.level, status.text) == (Level.OK, "serving")
        rig.once["front"] = GPU_FAULT
        rig.until(lambda: "illegal memory access" in str(rig.host.statuses()[0].values.get("last loss")), "the fault")
    finally:
        rig.close()


def test_problems_and_a_cancellation_of_an_engine_in_this_process() -> None:
    config = settings("object", isolation="none")
    host = Host(fake_pipelines.build_wrong)
    for _ in range(2):
        with pytest.raises(ConfigureError) as caught:
            host.configure(config, lambda report: None)
        assert caught.value.text.splitlines()[1] == "and another line"
    host.close()
    host = Host(fake_pipelines.build_slowly)
    begun = threading.Event()
    timer = threading.Thread(target=lambda: (begun.wait(), host.cancel()))
    timer.start()
    with pytest.raises(Cancelled):
        host.configure(config, lambda report: begun.set())
    timer.join()
    host.close()
    again = Host(fake_pipelines.build)  # the thread that configures is free again
    again.configure(config, lambda report: None)
    again.close()
