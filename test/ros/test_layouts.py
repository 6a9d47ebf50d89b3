"""config/foxglove.json and config/multi_dnn.rviz show topics that a node with the default parameters publishes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from node_bench import Bench

from multi_dnn_ros.ros.result_messages import GROUND_FIELDS
from multi_dnn_ros.settings.forms import PRESETS
from multi_dnn_ros.settings.schema import NodeConfig

CONFIG = Path(__file__).resolve().parents[2] / "config"
FOXGLOVE: dict[str, Any] = json.loads((CONFIG / "foxglove.json").read_text(encoding="utf-8"))
RVIZ: dict[str, Any] = yaml.safe_load((CONFIG / "multi_dnn.rviz").read_text(encoding="utf-8"))
FRAME = NodeConfig.model_fields["vehicle_frame"].default
CLOUD, IMAGE, JPEG = "sensor_msgs/msg/PointCloud2", "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
DETECTIONS, DIAGNOSTICS = "vision_msgs/msg/Detection2DArray", "diagnostic_msgs/msg/DiagnosticArray"

Shown = Iterator[tuple[str, set[str]]]
#: Message types that each kind of panel or display can show; displays without a topic.
PANELS = {"Image": {IMAGE, JPEG}, "3D": {CLOUD}, "DiagnosticSummary": {DIAGNOSTICS}, "RawMessages": {DETECTIONS}}
DISPLAYS = {"PointCloud2": {CLOUD}, "Image": {IMAGE}}
WITHOUT_TOPIC = {"Grid", "Axes"}


def foxglove_topics() -> Shown:
    for name, panel in FOXGLOVE["configById"].items():
        kind = name.partition("!")[0]
        for topic in topics_in(panel):
            yield topic, PANELS[kind]


def rviz_topics() -> Shown:
    for display in RVIZ["Visualization Manager"]["Displays"]:
        kind = display["Class"].partition("/")[2]
        if kind not in WITHOUT_TOPIC:
            yield display["Topic"]["Value"], DISPLAYS[kind]


def topics_in(value: Any) -> set[str]:
    """Every string that looks like a topic of ours, at whatever depth."""
    if isinstance(value, dict):
        return set().union(*(topics_in(each) for pair in value.items() for each in pair))
    if isinstance(value, list):
        return set().union(*map(topics_in, value)) if value else set()
    return {value} if isinstance(value, str) and re.match(r"/(multi_dnn|diagnostics)", value) else set()


@pytest.mark.parametrize(
    ("layout", "shown"), [(FOXGLOVE, foxglove_topics), (RVIZ, rviz_topics)], ids=["foxglove", "rviz"]
)
def test_every_topic_is_published_with_a_type_that_is_shown(bench: Bench, layout: Any, shown: Any) -> None:
    bench.node({"dnns": list(PRESETS)})
    assert bench.change("configure")
    assert bench.change("activate")
    named = dict(shown())
    assert topics_in(layout) == set(named)
    bench.until(lambda: named.keys() <= dict(bench.peer.get_topic_names_and_types()).keys(), f"the topics {named}")
    types = dict(bench.peer.get_topic_names_and_types())
    for topic, allowed in named.items():
        assert set(types[topic]) <= allowed, topic
        assert bench.peer.count_publishers(topic) == 1, topic


def test_colours_and_frames_exist() -> None:
    (view,) = [panel for name, panel in FOXGLOVE["configById"].items() if name.startswith("3D!")]
    assert view["followTf"] == FRAME
    assert {topic["colorField"] for topic in view["topics"].values()} <= set(GROUND_FIELDS)
    assert {layer["frameId"] for layer in view["layers"].values()} == {FRAME}
    manager = RVIZ["Visualization Manager"]
    assert manager["Global Options"]["Fixed Frame"] == FRAME
    displays = {display["Class"].rpartition("/")[2]: display for display in manager["Displays"]}
    assert displays["PointCloud2"]["Channel Name"] in GROUND_FIELDS
    assert displays["Axes"]["Reference Frame"] == FRAME
