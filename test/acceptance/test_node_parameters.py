"""Parameters at the start and at run time, right and wrong; switching DNNs off and limiting their rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness import LATCHED, Client, DnnOnCamera, Node
from std_srvs.srv import SetBool
from vision_msgs.msg import LabelInfo

THRESHOLD = "dnn.object.score_threshold"


#: Parameter: a wrong value, a part of what is allowed, and a right value.
MODEL = "dnn.object.model"
VALUES = {
    "policy": ("prio", "edf", "fifo"),
    "workers": (99, "16", 1),
    "device": ("tpu", "cpu", "cpu"),
    "camera.front.transport": ("jpg", "compressed", "raw"),
    "dnn.object.jobs": (0, "256", 2),
    "dnn.object.decoder": ("yollo", "yolo", "auto"),
}


def wait_for_error(client: Client, node: Node, *words: str) -> None:
    """Wait for an error with these words in the log, which may be written after the node has answered."""
    client.wait_for(
        lambda: any("[ERROR]" in line and all(word in line for word in words) for line in node.log.splitlines()),
        f"an error with {', '.join(words)}",
    )


@pytest.fixture(scope="module")
def node(client: Client, start_node: Callable[..., Node]) -> Node:
    """Started with wrong parameters, which are all named, and then corrected."""
    wrong = [f"{name}:={value}" for name, (value, *_) in VALUES.items()] + [f"{MODEL}:=builtin:objekt"]
    node = start_node({"dnns": ["object"]}, ros_arguments=[word for value in wrong for word in ("-p", value)])
    client.wait_for(lambda: node.status("node").level == "ERROR", "a failure of configuring")
    assert node.state() == "unconfigured"
    assert any(f"{name} is" in node.status("node").message for name in VALUES)
    for name, (value, allowed, _) in VALUES.items():
        wait_for_error(client, node, f"{name} is", str(value), allowed)
    assert not node.change_state("configure")
    node.set({name: right for name, (_, _, right) in VALUES.items()})
    assert not node.change_state("configure")  # models are looked up when all values are right
    wait_for_error(client, node, MODEL, "builtin:objekt", "builtin:object_small")
    node.set({MODEL: "builtin:object"})
    assert node.change_state("configure")
    assert node.change_state("activate")
    return node


def test_misspelt_names_are_errors_and_foreign_ones_warnings(client: Client, start_node: Callable[..., Node]) -> None:
    wrong = {"polcy": "edf", "wheel_diameter": 0.3, "dnn": {"object": {"job": 2}}}
    node = start_node(wrong, name="/misspelt/multi_dnn")
    client.wait_for(lambda: node.status("node").level == "ERROR", "a failure of configuring")
    for name, right in (("polcy", "policy"), ("dnn.object.job", "dnn.object.jobs")):
        wait_for_error(client, node, name, f"did you mean {right}?")
    assert any("[WARN]" in line and "wheel_diameter" in line for line in node.log.splitlines())


@pytest.fixture(scope="module")
def dnn(node: Node) -> DnnOnCamera:
    node.wait_until_active()
    return DnnOnCamera(node).connect()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (THRESHOLD, 1.5, ["1.5", "0", "1"]),
        (THRESHOLD, "high", ["high", "float"]),
        ("dnn.object.priority", 1000, ["1000", "-100", "100"]),
        ("workers", 2, ["cleanup"]),
        ("dnn.object.score_treshold", 0.5, [THRESHOLD]),
        ("dnn.object.model", "/missing/model.onnx", ["/missing/model.onnx"]),
    ],
)
def test_a_wrong_value_at_run_time(node: Node, dnn: DnnOnCamera, name: str, value: Any, words: list[str]) -> None:
    before = node.get_parameters(name)
    reason = node.try_to_set(name, value)
    assert all(word in reason for word in (name, *words)), reason
    assert node.get_parameters(name) == before
    dnn.answer()


def test_thresholds_take_effect_with_the_next_image(client: Client, node: Node, dnn: DnnOnCamera) -> None:
    labels = client.record(node.topic("object/label_info"), LabelInfo, LATCHED)
    node.set({THRESHOLD: 0.02})
    scores = [found.results[0].hypothesis.score for found in dnn.answer().detections]
    assert len(scores) > 3
    assert min(scores) >= 0.02
    client.wait_for(lambda: [m for m in labels.messages if m.threshold == pytest.approx(0.02)], "the threshold")
    node.set({"dnn.object.max_detections": 2})
    best = [found.results[0].hypothesis.score for found in dnn.answer().detections]
    assert sorted(best) == pytest.approx(sorted(scores)[-2:])
    node.set({THRESHOLD: 1.0})
    assert not dnn.answer().detections


def test_a_dnn_can_be_switched_off_and_on(client: Client, node: Node, dnn: DnnOnCamera) -> None:
    dnn.begin()
    assert client.call(node.topic("object/enable"), SetBool, data=False).success
    assert node.get_parameters("dnn.object.enable") == [False]
    for _ in range(3):
        dnn.camera.send()
    assert dnn.check("switched_off") == {"offered": 3, "switched_off": 3}
    assert node.status("object on front").level == "OK"
    node.set({"dnn.object.enable": True})
    dnn.answer()
    assert dnn.check("switched_off")["published"] == 1


def test_a_limited_rate(node: Node, dnn: DnnOnCamera) -> None:
    dnn.begin()
    node.set({"dnn.object.max_rate_hz": 2.0})
    dnn.camera.send_until(lambda: dnn.answers() >= 4, "four results", 0.05)
    account = dnn.check("rate_limited")
    assert account["rate_limited"] > account["published"]
    node.set({"dnn.object.max_rate_hz": 0.0})
    for _ in range(3):
        dnn.answer()
