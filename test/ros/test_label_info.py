"""Detections and LabelInfo have the same class ids, for every model source."""

from __future__ import annotations

from typing import Any

from node_bench import Bench
from vision_msgs.msg import LabelInfo

from multi_dnn_ros.ros.result_messages import LATCHED


def label_infos(bench: Bench, dnn: str = "object") -> list[Any]:
    """The message that a new subscriber receives on the DNN's label_info."""
    heard: list[Any] = []
    bench.peer.create_subscription(LabelInfo, f"/multi_dnn/{dnn}/label_info", heard.append, LATCHED)
    return heard


def start(bench: Bench, parameters: dict | None = None, **arguments: Any) -> None:
    bench.node(parameters, **arguments)
    assert bench.change("configure")
    assert bench.change("activate")


def test_the_threshold_of_the_label_info_follows_the_parameter(bench: Bench) -> None:
    start(bench, {"dnn.object.score_threshold": 0.25})
    heard = label_infos(bench)
    bench.until(lambda: len(heard) == 1, "label_info")
    assert heard[0].threshold == 0.25
    assert bench.set("dnn.object.iou_threshold", 0.75)[0]  # which is not part of label_info
    assert bench.set("dnn.object.score_threshold", 0.5)[0]
    bench.until(lambda: len(heard) == 2, "label_info again")
    assert heard[1].threshold == 0.5
    assert heard[1].class_map == heard[0].class_map
    late = label_infos(bench)
    bench.until(lambda: late, "what is kept for late subscribers")
    assert [message.threshold for message in late] == [0.5]


def test_a_threshold_changed_while_inactive_is_published_on_activation(bench: Bench) -> None:
    start(bench)
    heard = label_infos(bench)
    bench.until(lambda: heard, "label_info")
    assert bench.change("deactivate")
    assert bench.set("dnn.object.score_threshold", 0.75)[0]
    assert bench.change("activate")
    bench.until(lambda: heard[-1].threshold == 0.75, "the new threshold")
