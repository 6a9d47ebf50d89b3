"""Which DNN is to blame, what becomes of it, and what the others notice; with real engine processes."""

from __future__ import annotations

import host_pipelines
import pytest
from fake_pipelines import BUSY, RAISE, SEGFAULT, settings
from host_rig import HostRig

from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving.host import Level

DNNS = ("guilty", "lane", "object")
WINDOW_S = 6.0


@pytest.mark.long  # in test_host_supervision with processes that are played
@pytest.mark.parametrize(("value", "standby"), [(SEGFAULT, "hot"), (BUSY, "none")])
def test_the_guilty_dnn_alone_ends_disabled_is_tried_again_and_all_come_back(value: int, standby: str) -> None:
    """As long as the images are poisoned every process that serves `guilty` is lost."""
    config = settings(*DNNS, standby=standby, fault_window_s=30.0 if standby == "none" else WINDOW_S, job_timeout_s=0.5)
    rig = HostRig(config, host_pipelines.build, retry_s=(3.0, 4.0, 5.0))
    try:
        rig.start()
        if standby == "hot":
            rig.wait_standby("hot, ready")
        rig.values["front"] = value

        def is_disabled() -> bool:
            condition = rig.condition("guilty")
            return condition is not None and condition.level is Level.ERROR and "disabled" in condition.text

        rig.until(is_disabled, "guilty to be disabled", 180)
        assert rig.traffic.seen.failures[-1].dnn == "guilty"
        assert {failure.dnn for failure in rig.traffic.seen.failures if failure.disabled} == {"guilty"}
        assert rig.traffic.accounts.statistics().disabled.keys() == {"guilty"}
        rig.wait_results("lane", "object", count=10)
        losses = len(rig.traffic.seen.failures)
        rig.until(lambda: len(rig.traffic.seen.failures) > losses, "the next try to fail", 120)
        dropped = rig.traffic.streams()["guilty", "front"].dropped
        assert dropped[DropReason.DISABLED] > 0
        lost = {dnn: _lost(rig, dnn) for dnn in ("lane", "object")}
        losses = len(rig.traffic.seen.failures)
        rig.until(lambda: len(rig.traffic.seen.failures) > losses, "one more try", 120)
        assert {dnn: _lost(rig, dnn) for dnn in ("lane", "object")} == lost, "tries are no concern of the others"
        rig.values["front"] = 200
        rig.wait_results("guilty")
        if standby == "hot":
            rig.until(lambda: len(rig.host.conditions()) == 1, "one process for all", 180)
            rig.wait_results()
            assert {dnn: _lost(rig, dnn) for dnn in ("lane", "object")} == lost, "merging loses no frame"
        assert not rig.traffic.accounts.statistics().disabled
    finally:
        rig.close()


def _lost(rig: HostRig, dnn: str) -> int:
    return rig.traffic.streams()[dnn, "front"].dropped.get(DropReason.ENGINE_LOST, 0)


def test_a_layer_that_raises_costs_the_frame_and_the_dnn_is_tried_again() -> None:
    """max_failures in a row disable the DNN in its process, which goes on."""
    rig = HostRig(settings(*DNNS, max_failures=3), host_pipelines.build_that_retries_soon)
    try:
        rig.start()
        pid = rig.pid()
        rig.values["front"] = RAISE
        rig.until(lambda: rig.traffic.accounts.statistics().disabled, "guilty to be disabled")
        rig.wait_results("lane", "object", count=10)
        rig.values["front"] = 200
        rig.wait_results("guilty")
        assert not rig.traffic.accounts.statistics().disabled
        assert rig.pid() == pid
    finally:
        rig.close()
