"""Node and camera as two processes, with the settings of the middleware that both have by default."""

from __future__ import annotations

import measure_cameras
import pytest
from measure_cameras import Case
from rclpy.utilities import get_rmw_implementation_identifier

from multi_dnn_ros.common.processes import loopback_environment
from multi_dnn_ros.settings.schema import BEST_EFFORT_DEPTH, RELIABLE_DEPTH


@pytest.mark.parametrize("reliability", ["reliable", "best_effort"])
def test_every_image_of_a_plain_camera_arrives(reliability: str, domain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that fit the receive buffers of every kernel; tools/measure_cameras.py measures larger ones."""
    for name, value in loopback_environment(domain).items():
        monkeypatch.setenv(name, value)
    case = Case(get_rmw_implementation_identifier(), reliability, "320x240", 10.0)
    row = measure_cameras.run(case, 6.0, direct=True)
    depth = RELIABLE_DEPTH if reliability == "reliable" else BEST_EFFORT_DEPTH
    assert row["qos"] == f"{reliability.replace('_', ' ')}, depth {depth}"
    assert row["received"] == row["sent"] == 60
    assert row["stated_lost"] in ("0", "unknown")
    assert row["warned_after_s"] is None
