"""The node from outside: topics, services, parameters, diagnostics."""

from __future__ import annotations

import gc
import threading
from typing import Any

import cv2
import numpy as np
import pytest
from node_bench import POISON, Bench, image
from rclpy.lifecycle import LifecyclePublisher
from rclpy.parameter import Parameter
from sensor_msgs.msg import CompressedImage, Image, PointCloud2
from vision_msgs.msg import Detection2DArray

from multi_dnn_ros.ros import served_dnns
from multi_dnn_ros.ros.overlay_publisher import OverlayPublisher

OUT = "/multi_dnn/front/object/detections"
OK, WARN, ERROR, STALE = 0, 1, 2, 3


def start(bench: Bench, values: dict | None = None) -> None:
    bench.node(values)
    assert bench.change("configure")
    assert bench.change("activate")


def serving_threads() -> list[str]:
    return sorted(t.name for t in threading.enumerate() if t.name.startswith(("worker-", "dnn-", "decode-", "overlay")))


@pytest.mark.usefixtures("unfrozen")
def test_the_whole_life_cycle_twice(bench: Bench) -> None:
    bench.node()
    for round_number in (1, 2):
        assert bench.state() == "unconfigured"
        assert bench.change("configure")
        assert bench.state() == "inactive"
        assert gc.get_freeze_count() > 0  # objects created before serving are excluded from garbage collection
        heard = bench.listen(OUT, Detection2DArray)
        assert bench.change("activate")
        assert bench.state() == "active"
        assert len(serving_threads()) >= 2  # one DNN, one camera
        camera = bench.camera()
        camera.publish(image(stamp=round_number))
        bench.until(lambda heard=heard: len(heard) == 1, "a detection")
        assert heard[0].header.stamp.sec == round_number
        assert bench.change("deactivate")
        assert serving_threads() == ["dnn-object"]  # the engine stays configured
        bench.until(lambda camera=camera: camera.get_subscription_count() == 0, "the subscription to be gone")
        camera.publish(image(stamp=9))
        assert bench.change("activate")
        camera.publish(image(stamp=8))  # may be too early for the new subscription
        bench.until(lambda: bench.camera() is not None)
        camera.publish(image(stamp=10))
        bench.until(lambda heard=heard: heard[-1].header.stamp.sec == 10, "the frame after activating again")
        assert 9 not in [message.header.stamp.sec for message in heard]
        assert bench.change("deactivate")
        assert bench.change("cleanup")
        assert gc.get_freeze_count() == 0
        bench.peer.destroy_publisher(camera)
        assert serving_threads() == []


def test_jpeg_images_are_decoded_and_damaged_ones_are_counted(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    start(bench, {"camera.front.transport": "compressed"})
    heard, overlays = bench.listen(OUT, Detection2DArray), bench.listen("/multi_dnn/front/overlay", Image)
    _, data = cv2.imencode(".jpg", np.full((146, 238, 3), 200, np.uint8))
    message = CompressedImage(header=image(stamp=3).header, format="jpeg", data=data.tobytes())
    camera = bench.camera("/front/image_raw/compressed", CompressedImage)

    def drawn() -> bool:  # once the node knows of the subscription to the overlay
        camera.publish(message)
        return bool(heard and overlays)

    bench.until(drawn, "a detection and an overlay")
    assert heard[0].detections[0].results[0].hypothesis.score == pytest.approx(200 / 255)
    assert heard[0].header.stamp.sec == 3
    assert (overlays[0].height, overlays[0].width) == (146, 238)
    assert overlays[0].data[3 * (100 * 238 + 200)] == 200
    camera.publish(CompressedImage(header=image(stamp=4).header, format="jpeg", data=data.tobytes()[:-50]))
    bench.until(lambda: bench.status("camera front").by_key.get("bad images") == "1", "the count of a truncated file")
    table = data.tobytes().index(b"\xff\xc4")  # impossible Huffman tables
    data[table + 5 : table + 21] = 255
    camera.publish(CompressedImage(header=image(stamp=5).header, format="jpeg", data=data.tobytes()))
    bench.until(lambda: bench.status("camera front").by_key.get("bad images") == "2", "the count of a damaged file")
    log = capfd.readouterr().err
    assert "camera front: data is a truncated JPEG" in log


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


def test_a_parameter_that_is_set_during_the_activation_takes_effect(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = bench.node()
    switch = threading.Thread(target=lambda: node.set_parameters([Parameter("dnn.object.enable", value=False)]))

    class Switching(OverlayPublisher):
        def __init__(self, *arguments: Any) -> None:
            switch.start()
            switch.join(0.5)  # it has been applied, or waits for the end of the activation
            super().__init__(*arguments)

    monkeypatch.setattr(served_dnns, "OverlayPublisher", Switching)
    assert bench.change("configure")
    assert bench.change("activate")
    bench.until(lambda: "switched off" in bench.status("object on front").message, "the DNN to be switched off", 5.0)
    switch.join()


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
