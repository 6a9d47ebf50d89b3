"""The node from outside: topics, services, parameters, diagnostics."""

from __future__ import annotations

import threading

import pytest
from node_bench import POISON, Bench, image
from rclpy.lifecycle import LifecyclePublisher
from sensor_msgs.msg import PointCloud2
from vision_msgs.msg import Detection2DArray

from multi_dnn_ros.ros.overlay_publisher import OverlayPublisher
from multi_dnn_ros.serving.host import Host

OUT = "/multi_dnn/front/object/detections"
OK, WARN, ERROR, STALE = 0, 1, 2, 3


def start(bench: Bench, values: dict | None = None) -> None:
    bench.node(values)
    assert bench.change("configure")
    assert bench.change("activate")


def serving_threads() -> list[str]:
    return sorted(t.name for t in threading.enumerate() if t.name.startswith(("worker-", "dnn-", "decode-", "overlay")))


def test_a_dnn_that_fails_repeatedly_is_disabled_and_others_continue(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    start(bench, {"dnns": ["object", "fragile"], "dnn.fragile.role": "object", "dnn.fragile.model": "x.onnx"})
    heard, camera = bench.listen(OUT, Detection2DArray), bench.camera()
    for number in range(1, 7):
        camera.publish(image(POISON, number))
        bench.until(lambda number=number: len(heard) == number, "the healthy DNN's result")
        bench.until(
            lambda number=number: (
                bench.status("fragile on front").by_key.get("offered") == str(number)
                and bench.status("fragile on front").by_key["pending"] == "0"
            ),
            "the count",
        )
    status = bench.status("fragile on front")
    assert status.level == ERROR
    assert "disabled after 5 failures in a row" in status.message
    assert "poisoned" in status.message
    assert status.by_key["dropped: dnn_error"] == "5"
    assert status.by_key["dropped: disabled"] == "1"
    assert bench.status("object on front").level == OK
    lines = [line for line in capfd.readouterr().err.splitlines() if "is disabled" in line]
    assert len(lines) == 1
    assert "DNN fragile is disabled after 5 failures in a row, next retry in 10 s; last error: " in lines[0]
    assert "poisoned" in lines[0]


def test_an_unexpected_error_of_a_transition_is_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    start(bench)
    stop = OverlayPublisher.stop
    with monkeypatch.context() as patch:
        patch.setattr(OverlayPublisher, "stop", lambda overlay, timeout_s: (stop(overlay, timeout_s), 1 // 0))
        assert not bench.change("deactivate")
    assert bench.state() == "unconfigured"
    bench.until(lambda: bench.status("node").level == ERROR, "the status")
    assert "cannot deactivate: ZeroDivisionError" in bench.status("node").message
    assert "Traceback" in capfd.readouterr().err
    assert bench.change("configure")


def test_nothing_is_sent_on_topics_without_a_subscription(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: set[str] = set()
    publish = LifecyclePublisher.publish

    def recorded(publisher: LifecyclePublisher, message: object) -> None:
        sent.add(publisher.topic_name)
        publish(publisher, message)

    monkeypatch.setattr(LifecyclePublisher, "publish", recorded)
    start(bench, {"dnns": ["lane", "object", "pedestrian"]})
    heard = bench.listen(OUT, Detection2DArray)
    camera = bench.camera()
    camera.publish(image(stamp=1))
    bench.until(lambda: heard, "a detection")
    bench.until(lambda: bench.status("lane on front").by_key.get("published") == "1", "the lane result")
    assert OUT in sent
    assert {topic for topic in sent if "/front/" in topic} == {OUT}
    points = bench.listen("/multi_dnn/front/lane/points", PointCloud2)
    camera.publish(image(stamp=2))
    bench.until(lambda: [message.header.stamp.sec for message in points] == [2], "the points of the second image")


def test_all_wrong_values_names_and_topics_are_reported_together_before_the_engine_is_loaded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Host, "configure", lambda *arguments: pytest.fail("the engine was loaded"))
    bench.node({"workers": 99, "polciy": "edf", "camera.front.topic": "two words", "dnn.object.jobs": 0})
    assert not bench.change("configure")
    bench.until(lambda: bench.status("node").level == ERROR, "the error in the diagnostics")
    lines = bench.status("node").message.splitlines()
    told = ("workers is 99", "polciy: no such parameter", "front.topic is 'two words'", "object.jobs is 0")
    assert [sum(words in line for line in lines) for words in told] == [1, 1, 1, 1]
    assert len(lines) == 4
    assert bench.state() == "unconfigured"
