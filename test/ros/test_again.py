"""The node after a failure or a stop: activated again, reconfigured, finalized."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from node_bench import POISON, Bench, build, image
from rclpy.parameter import Parameter
from rclpy.time import Time as RosTime
from vision_msgs.msg import Detection2DArray

from multi_dnn_ros.pipeline.pipeline import Pipeline
from multi_dnn_ros.ros.parameters import NodeParameters
from multi_dnn_ros.settings.schema import NodeConfig

OK, WARN, ERROR, STALE = 0, 1, 2, 3


def test_a_disabled_dnn_is_enabled_by_activating_again(bench: Bench) -> None:
    bench.node({"dnns": ["fragile"], "dnn.fragile.role": "object", "max_failures": 2})
    assert bench.change("configure")
    assert bench.change("activate")
    camera = bench.camera()
    for number in (1, 2, 3):
        camera.publish(image(POISON))
        bench.until(lambda number=number: _lost(bench) == number, "the count")
    assert bench.status("fragile on front").level == ERROR
    assert bench.change("deactivate")
    bench.until(lambda: camera.get_subscription_count() == 0, "the subscription to be gone")
    activated = bench.peer.get_clock().now()  # earlier reports may still be on their way
    assert bench.change("activate")
    heard = bench.listen("/multi_dnn/front/fragile/detections", Detection2DArray)
    bench.until(lambda: camera.get_subscription_count() == 1, "the subscription")
    camera.publish(image(stamp=7))
    bench.until(lambda: heard, "a detection")
    bench.until(lambda: bench.status("fragile on front").by_key.get("published") == "1", "the report")
    reports = [report for report in bench.reports if RosTime.from_msg(report.header.stamp) >= activated]
    levels = {status.level for report in reports for status in report.status}
    assert levels == {b"\x00"}  # what was lost before does not count


def _lost(bench: Bench) -> int:
    counts: dict[str, Any] = bench.status("fragile on front").by_key
    return sum(int(count) for key, count in counts.items() if key.startswith("dropped: "))


def test_an_invalid_topic_name_fails_configuring(bench: Bench) -> None:
    bench.node({"cameras": ["front", "rear"], "camera.rear.topic": "rear cam"})
    assert not bench.change("configure")
    bench.until(lambda: bench.status("node").level == ERROR, "the report")
    message = bench.status("node").message
    assert "parameter camera.rear.topic is 'rear cam'; allowed" in message
    assert "front" not in message


def test_failed_activation_leaves_nothing_behind(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    node = bench.node({"cameras": ["front", "rear"]})
    assert bench.change("configure")
    create = node.create_subscription

    def refuse(kind: type, topic: str, *rest: Any, **options: Any) -> Any:
        if topic.startswith("rear"):
            raise RuntimeError("no more readers")
        return create(kind, topic, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(node, "create_subscription", refuse)
        before = threading.active_count(), len(list(node.subscriptions))
        assert not bench.change("activate")
    assert (threading.active_count(), len(list(node.subscriptions))) == before
    bench.until(lambda: "no more readers" in bench.status("node").message, "the report")
    assert bench.change("activate")
    bench.until(lambda: bench.status("node").level == OK, "the report")


@pytest.mark.parametrize(("transition", "state"), [("cleanup", "unconfigured"), ("shutdown", "finalized")])
def test_a_failure_is_not_reported_after_a_later_transition(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, transition: str, state: str
) -> None:
    node = bench.node()
    assert bench.change("configure")

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no more readers")

    with monkeypatch.context() as patch:
        patch.setattr(node, "create_subscription", refuse)
        assert not bench.change("activate")
    bench.until(lambda: bench.status("node").message == "cannot activate: RuntimeError: no more readers", "the report")
    assert bench.change(transition)
    bench.until(lambda: bench.status("node").by_key.get("state") == state, "the report")
    assert (bench.status("node").level, bench.status("node").message) == (WARN, state)
    assert node.service_state().text == state


def test_threads_that_end_late_are_no_longer_reported_as_hanging(bench: Bench) -> None:
    go = threading.Event()

    def slow(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
        pipeline = build(config, progress)
        waits = (lambda carried: (go.wait() and carried) if float(carried[0]) == POISON else carried,)
        return replace(pipeline, tasks=tuple(replace(task, stages=waits + task.stages) for task in pipeline.tasks))

    node = bench.node({"stop_timeout_s": 2.0}, build=slow)
    assert bench.change("configure")
    assert bench.change("activate")
    bench.camera().publish(image(POISON))
    bench.until(lambda: bench.status("object on front").by_key.get("pending") == "1", "a frame under way")
    assert bench.change("deactivate")
    # On a busy machine, other threads may also need longer than the timeout to end.
    bench.until(lambda: "threads hang: dnn-object" in bench.status("node").message, "the report")
    assert bench.status("node").level == ERROR
    go.set()
    bench.until(lambda: bench.status("node").level == OK, "the report")
    assert node.hung == []


def test_a_finalized_node_reports_its_state(bench: Bench) -> None:
    bench.node().trigger_shutdown()
    bench.until(lambda: bench.status("node").by_key.get("state") == "finalized", "the report")
    assert bench.status("node").level == WARN


def test_a_dnn_of_any_name_can_be_added_and_corrected_afterwards(bench: Bench) -> None:
    bench.node({"dnn.walker.priority": "high"})  # for a DNN that is not in use: only a warning
    assert bench.set("dnns", ["object", "walker"]) == (True, "")
    assert not bench.change("configure")
    bench.until(lambda: bench.status("node").level == ERROR, "the report")
    for problem in ("dnn.walker.role is ''", "dnn.walker.priority is 'high'"):
        assert problem in bench.status("node").message
    assert bench.set("dnn.walker.role", "pedestrian") == (True, "")
    assert bench.set("dnn.walker.priority", 3) == (True, "")
    assert not bench.set("dnn.walker.priority", "high")[0]


class _AsInHumble:
    """A node without callbacks after setting parameters, as in Humble."""

    def __init__(self, node: Any) -> None:
        self._node = node

    def __getattr__(self, name: str) -> Any:
        if name == "add_post_set_parameters_callback":
            raise AttributeError(name)
        return getattr(self._node, name)


class _NoSwaps:
    """Swaps of a node that is never configured."""

    def refusal(self) -> str:
        return "not configured"

    def request(self, name: str, value: Any) -> None:
        raise AssertionError(f"{name} is set to {value} by a swap, but the node is not configured")


@pytest.mark.parametrize("kind", [_AsInHumble, lambda node: node])
def test_cameras_and_dnns_change_together(bench: Bench, kind: Callable[[Any], Any]) -> None:
    parameters = NodeParameters(kind(bench.peer), lambda name, value: None, _NoSwaps())
    lists = [Parameter("cameras", value=["left", "right"]), Parameter("dnns", value=["lane"])]
    assert bench.peer.set_parameters_atomically(lists).successful
    config = parameters.parse()
    assert (list(config.cameras), list(config.dnns)) == (["left", "right"], ["lane"])
    names = {name for name in bench.peer.list_parameters([], 0).names if name.endswith((".topic", ".role"))}
    assert names == {"camera.left.topic", "camera.right.topic", "dnn.lane.role"}
