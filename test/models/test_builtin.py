"""What the log and the documentation state about the networks that come with the package."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from multi_dnn_ros.models.builtin import SCORE_THRESHOLDS, builtin_notice
from multi_dnn_ros.settings.schema import DnnConfig

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results" / "builtin_real_roads.json"
#: On real roads, except for lane lines on photos, see docs/models.md.
MIN_PRECISION = 0.9
EXCEPTIONS = {("lane", "photos"), ("lane_small", "photos")}


def test_only_builtin_networks_are_named() -> None:
    dnns = {
        "lane": DnnConfig(role="lane", model="builtin:lane"),
        "mine": DnnConfig(role="object", model="mine.onnx"),
        "people": DnnConfig(role="pedestrian", model="builtin:pedestrian_small"),
    }
    notice = builtin_notice(dnns)
    assert "(lane, people)" in notice
    assert "\n" not in notice
    assert builtin_notice({"mine": dnns["mine"]}) == ""


def test_every_network_of_the_package_has_a_threshold() -> None:
    files = {path.stem for path in (ROOT / "multi_dnn_ros" / "weights").glob("*.safetensors")}
    assert SCORE_THRESHOLDS.keys() == files, "SCORE_THRESHOLDS of models/builtin.py lists the files of weights/"


@pytest.mark.parametrize("name", sorted(SCORE_THRESHOLDS))
def test_thresholds_documentation_and_measurement_agree(name: str) -> None:
    """The figures of docs/models.md are those measured at the threshold that the network comes with."""
    measured = json.loads(RESULTS.read_text())["networks"][name]
    rows = [line for line in (ROOT / "docs" / "models.md").read_text().splitlines() if f"`builtin:{name}` |" in line]
    for data, points in measured["operating_points"].items():
        (point,) = [point for point in points if point["threshold"] == SCORE_THRESHOLDS[name]]
        if point["recall"] is not None and (name, data) not in EXCEPTIONS:
            assert point["precision"] >= MIN_PRECISION, data
        (row,) = [row for row in rows if f"| {data} |" in row]
        shown = [float(cell) for cell in re.findall(r"\| ([\d.]+) (?=\|)", row)]
        quoted = [point["threshold"], point["precision"], point["recall"], point["false_per_image"]]
        assert shown == [pytest.approx(value, abs=0.0051) for value in quoted if value is not None], (row, point)
