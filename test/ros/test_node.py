"""The node from outside: topics, services, parameters, diagnostics."""

from __future__ import annotations

import gc
import threading
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from node_bench import POISON, Bench, image
from rclpy.lifecycle import LifecyclePublisher
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image, PointCloud2
from vision_msgs.msg import Detection2DArray

from multi_dnn_ros.backends import jpeg_decoding
from multi_dnn_ros.serving.camera_decoder import CameraDecoder
from multi_dnn_ros.serving.descriptions import EngineDescription
from multi_dnn_ros.serving.host import Host
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.jpeg_file import JpegFile

OUT = "/multi_dnn/front/object/detections"
OK, WARN, ERROR, STALE = 0, 1, 2, 3


def start(bench: Bench, parameters: dict | None = None) -> None:
    bench.node(parameters)
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


def test_a_destroyed_node_is_no_longer_seen(bench: Bench) -> None:
    node = bench.node()
    bench.until(lambda: "multi_dnn" in bench.peer.get_node_names(), "the node")
    bench.executor.remove_node(node)
    node.close()
    node.destroy_node()
    bench.nodes.clear()
    bench.until(lambda: "multi_dnn" not in bench.peer.get_node_names(), "the end of the node", limit_s=3.0)
    assert node is not None  # the object still exists


def test_autostart_activates_the_node(bench: Bench) -> None:
    bench.node({"autostart": True})
    bench.camera()
    bench.until(lambda: bench.state() == "active", "the active node")


def test_results_carry_the_header_of_their_image(bench: Bench) -> None:
    start(bench, {"dnns": ["lane", "object"]})
    heard = [
        bench.listen(OUT, Detection2DArray),
        bench.listen("/multi_dnn/front/lane/points", PointCloud2),
        bench.listen("/multi_dnn/front/lane/mask", Image),
    ]
    sent = image(stamp=77)
    bench.camera().publish(sent)
    bench.until(lambda: all(heard), "all results")
    assert [messages[0].header for messages in heard] == [sent.header] * 3
    assert (heard[2][0].width, heard[2][0].height, heard[2][0].encoding) == (8, 6, "mono8")
    assert heard[1][0].width == 2  # points
    (detection,) = heard[0][0].detections
    assert detection.results[0].hypothesis.class_id == "0"
    assert (detection.bbox.size_x, detection.bbox.size_y) == (8.0, 6.0)


def test_two_cameras_of_different_size_and_encoding(bench: Bench) -> None:
    start(bench, {"cameras": ["front", "rear"]})
    heard = {
        camera: bench.listen(f"/multi_dnn/{camera}/object/detections", Detection2DArray) for camera in ("front", "rear")
    }
    front, rear = bench.camera("/front/image_raw"), bench.camera("/rear/image_raw")
    front.publish(image(200, 1, (8, 6), "rgb8"))
    rear.publish(image(150, 2, (20, 10), "mono8"))
    bench.until(lambda: all(heard.values()), "both cameras' results")
    boxes = {camera: messages[0].detections[0].bbox for camera, messages in heard.items()}
    assert (boxes["front"].size_x, boxes["rear"].size_x) == (8.0, 20.0)
    assert heard["front"][0].header.frame_id == "frame1"
    assert heard["rear"][0].header.frame_id == "frame2"
    assert heard["rear"][0].detections[0].results[0].hypothesis.score == pytest.approx(150 / 255)


def test_a_dnn_serves_the_cameras_of_its_parameter(bench: Bench) -> None:
    start(bench, {"cameras": ["front", "rear"], "dnn.object.cameras": ["rear"]})
    bench.listen("/multi_dnn/rear/object/detections", Detection2DArray)
    assert bench.peer.count_publishers(OUT) == 0


def test_a_compressed_camera(bench: Bench) -> None:
    start(bench, {"camera.front.transport": "compressed"})
    heard = bench.listen(OUT, Detection2DArray)
    _, data = cv2.imencode(".png", np.full((6, 8, 3), 200, np.uint8))
    message = CompressedImage(header=image(stamp=3).header, format="png", data=data.tobytes())
    bench.camera("/front/image_raw/compressed", CompressedImage).publish(message)
    bench.until(lambda: heard, "a detection")
    assert heard[0].detections[0].results[0].hypothesis.score == pytest.approx(200 / 255)


def test_jpeg_images_are_decoded_by_the_engine_and_the_overlay_if_its_device_can(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    on_device = []

    def decode(file: JpegFile) -> jpeg_decoding.Decoded:
        on_device.append((file.height, file.width))
        return torch.from_numpy(file.decode()), None

    monkeypatch.setitem(jpeg_decoding.JPEG_DECODERS, "cpu", lambda device: decode)
    start(bench, {"camera.front.transport": "compressed", "camera.front.jpeg_decoder": "gpu"})
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
    assert set(on_device[1:]) == {(146, 238)}  # the first one is the trial
    assert (overlays[0].height, overlays[0].width) == (146, 238)
    assert overlays[0].data[3 * (100 * 238 + 200)] == 200
    camera.publish(CompressedImage(header=image(stamp=4).header, format="jpeg", data=data.tobytes()[:-50]))
    bench.until(lambda: bench.status("camera front").by_key.get("bad images") == "1", "the count of a truncated file")
    table = data.tobytes().index(b"\xff\xc4")  # impossible Huffman tables, which only the engine finds
    data[table + 5 : table + 21] = 255
    camera.publish(CompressedImage(header=image(stamp=5).header, format="jpeg", data=data.tobytes()))
    bench.until(lambda: bench.status("camera front").by_key.get("bad images") == "2", "the count of a damaged file")
    log = capfd.readouterr().err
    assert "camera front, topic /front/image_raw/compressed: data is a truncated JPEG" in log


def test_a_bad_frame_is_counted_and_the_next_one_served(bench: Bench) -> None:
    start(bench)
    heard, camera = bench.listen(OUT, Detection2DArray), bench.camera()
    bad = image(stamp=1)
    bad.step -= 1
    camera.publish(bad)
    bench.until(lambda: bench.status("object on front").by_key.get("dropped: bad_image") == "1", "the count")
    assert bench.status("camera front").by_key["bad images"] == "1"
    camera.publish(image(stamp=2))
    bench.until(lambda: heard, "a detection")
    assert [message.header.stamp.sec for message in heard] == [2]
    bench.until(lambda: bench.status("object on front").by_key.get("published") == "1", "the report")
    counts = bench.status("object on front").by_key
    assert (counts["offered"], counts["pending"]) == ("2", "0")


def test_a_dnn_that_fails_repeatedly_is_disabled_and_others_continue(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    start(bench, {"dnns": ["object", "fragile"], "dnn.fragile.role": "object", "dnn.fragile.model": "x.onnx",
                  "max_failures": 3})  # fmt: skip
    heard, camera = bench.listen(OUT, Detection2DArray), bench.camera()
    for number in range(1, 5):
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
    assert "disabled after 3 failures in a row" in status.message
    assert "poisoned" in status.message
    assert status.by_key["dropped: dnn_error"] == "3"
    assert status.by_key["dropped: disabled"] == "1"
    assert bench.status("object on front").level == OK
    lines = [line for line in capfd.readouterr().err.splitlines() if "is disabled" in line]
    assert len(lines) == 1
    assert "DNN fragile is disabled after 3 failures in a row, next retry in 10 s; last error: " in lines[0]
    assert "poisoned" in lines[0]


@pytest.mark.parametrize("size", [(64, 48), (1280, 720)], ids=["decoded on arrival", "decoded in its thread"])
def test_a_decoding_thread_that_ended_is_an_error(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, size: tuple[int, int]
) -> None:
    start(bench)
    heard, camera = bench.listen(OUT, Detection2DArray), bench.camera()
    monkeypatch.setattr(CameraDecoder, "_decode_newest", lambda decoder, **arguments: 1 / 0)
    camera.publish(image(size=size))
    bench.until(lambda: bench.status("node").level == ERROR, "the error in the diagnostics")
    assert bench.status("node").message == "threads ended with an error: decode-front"
    assert "ZeroDivisionError" in caplog.text
    assert heard == []
    monkeypatch.undo()
    assert bench.change("deactivate")
    assert bench.change("activate")
    bench.until(lambda: camera.get_subscription_count() == 1, "the subscription")
    camera.publish(image(stamp=2))
    bench.until(lambda: heard, "a detection")
    assert [message.header.stamp.sec for message in heard] == [2]


def test_every_step_of_a_frame_is_timed(bench: Bench) -> None:
    start(bench)
    heard, camera = bench.listen(OUT, Detection2DArray), bench.camera()
    camera.publish(image(size=(1280, 720)))
    bench.until(lambda: heard, "a detection")
    steps = ("decode", "mailbox", "pre", "queue", "compute", "post", "publish")
    bench.until(lambda: bench.status("object on front").by_key.get("decode max (ms)", "nan") != "nan", "the report")
    times = {step: float(bench.status("object on front").by_key[f"{step} max (ms)"]) for step in (*steps, "end_to_end")}
    assert times["decode"] > 0.0
    assert min(times.values()) >= 0.0
    assert sum(times[step] for step in steps) <= times["end_to_end"] + 1.0  # of one frame, rounded


def test_a_silent_camera_is_stale_until_it_sends_again(bench: Bench) -> None:
    start(bench, {"stale_after_s": 0.5})
    heard, camera, sent = bench.listen(OUT, Detection2DArray), bench.camera(), 0
    bench.until(lambda: bench.status("camera front").level == STALE, "STALE")
    assert "no image on /front/image_raw since subscribing " in bench.status("camera front").message

    def ok_while_sending() -> bool:
        nonlocal sent
        if len(heard) == sent:  # images faster than the DNN serves them would be a warning
            camera.publish(image())
            sent += 1
        return bench.status("camera front").level == OK and bench.status("object on front").level == OK

    bench.until(ok_while_sending, "OK")
    bench.until(lambda: bench.status("camera front").level == STALE, "STALE again")
    assert "no image on /front/image_raw for " in bench.status("camera front").message
    assert bench.status("object on front").level == STALE
    bench.until(ok_while_sending, "OK again")


def test_runtime_parameters(bench: Bench) -> None:
    start(bench)
    heard, camera = bench.listen(OUT, Detection2DArray), bench.camera()
    camera.publish(image(128, 1))
    bench.until(lambda: len(heard) == 1, "a detection")
    assert len(heard[0].detections) == 1
    assert bench.set("dnn.object.score_threshold", 0.9) == (True, "")
    camera.publish(image(128, 2))
    bench.until(lambda: len(heard) == 2, "an empty array")  # published too
    assert len(heard[1].detections) == 0
    for name, value in (("priority", 5), ("deadline_ms", 0.001), ("max_age_ms", 1000.0)):
        assert bench.set(f"dnn.object.{name}", value)[0]
    camera.publish(image(250, 3))
    bench.until(lambda: bench.status("object on front").by_key.get("deadline misses") == "1", "the missed deadline")
    assert bench.set("dnn.object.deadline_ms", 0.0)[0]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("dnn.object.score_threshold", 1.5, ()),  # refused by its range, in ROS's own words
        ("dnn.object.score_threshold", "high", ("dnn.object.score_threshold", "'high'", "0 to 1")),
        ("dnn.object.priority", 1000, ()),
        ("workers", 3, ("workers", "read-only", "cleanup")),
        ("camera.front.topic", "/other", ("camera.front.topic", "read-only")),
        ("dnn.object.jobs", 8, ("dnn.object.jobs", "read-only")),
    ],
)
def test_invalid_changes_of_parameters_are_rejected(
    bench: Bench, name: str, value: object, words: tuple[str, ...]
) -> None:
    start(bench)
    taken, reason = bench.set(name, value)
    assert not taken
    assert reason
    assert all(word in reason for word in words), reason
    heard, camera = bench.listen(OUT, Detection2DArray), bench.camera()
    camera.publish(image())
    bench.until(lambda: heard, "a detection")  # the node still runs


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dnn.object.score_treshold", "did you mean dnn.object.score_threshold?"),
        ("camera.front.topc", "did you mean camera.front.topic?"),
        ("nonsense", "nonsense: not a parameter of this node"),
        ("dnn.lane.score_threshold", "'lane' is not in dnns (object); set dnns first, or load the file once more"),
        ("camera.rear.rate_hz", "'rear' is not in cameras (front); set cameras first, or load the file once more"),
    ],
)
@pytest.mark.skipif(not hasattr(Node, "add_pre_set_parameters_callback"), reason="Humble has no such callback")
def test_setting_an_unknown_parameter_names_the_most_similar_one(bench: Bench, name: str, words: str) -> None:
    bench.node()
    taken, reason = bench.set(name, 0.5)
    assert not taken
    assert words in reason


def test_read_only_parameters_may_change_after_cleanup(bench: Bench) -> None:
    start(bench)
    assert bench.change("deactivate")
    assert not bench.set("camera.front.topic", "/other")[0]
    assert bench.change("cleanup")
    assert bench.set("camera.front.topic", "/other") == (True, "")
    assert bench.change("configure")
    assert bench.change("activate")
    bench.camera("/other")


def test_a_runtime_parameter_that_changes_just_after_all_were_read_takes_effect(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the thread of the transition continues."""
    configure = Host.configure

    def change_first(self: Host, config: NodeConfig, progress: Any) -> EngineDescription:
        (result,) = node.set_parameters([Parameter("dnn.object.score_threshold", value=0.9)])
        assert result.successful
        return configure(self, config, progress)

    monkeypatch.setattr(Host, "configure", change_first)
    node = bench.node()
    assert bench.change("configure")
    assert bench.change("activate")
    heard, camera = bench.listen(OUT, Detection2DArray), bench.camera()
    camera.publish(image(200))  # a box with score 200 / 255
    bench.until(lambda: heard, "a result")
    assert not heard[0].detections


def test_a_wrong_parameter_fails_configuring_until_it_is_corrected(bench: Bench) -> None:
    bench.node({"dnn.object.score_threshold": 7.0, "dnn.object.score_treshold": 0.5})
    assert not bench.change("configure")
    assert bench.state() == "unconfigured"
    bench.until(lambda: bench.status("node").level == ERROR, "the error in the diagnostics")
    message = bench.status("node").message
    for words in ("dnn.object.score_threshold is 7.0", "0 to 1", "score_treshold", "did you mean"):
        assert words in message
    assert bench.set("dnn.object.score_threshold", 0.5)[0]
    assert not bench.change("configure")  # the name with the typing error is still there
    request = bench.nodes[0].undeclare_parameter
    request("dnn.object.score_treshold")
    assert bench.change("configure")
    assert bench.change("activate")


def test_simulated_time(bench: Bench) -> None:
    bench.node({"use_sim_time": True})
    clock = bench.peer.create_publisher(Clock, "/clock", QoSProfile(depth=10))
    bench.until(lambda: clock.get_subscription_count() > 0, "the node's clock subscription")
    assert bench.change("configure")
    assert bench.change("activate")
    heard, camera = bench.listen(OUT, Detection2DArray), bench.camera()
    sent = image(stamp=1000)
    tick = Clock()
    tick.clock.sec = 1002

    def stamped() -> bool:
        clock.publish(tick)
        return bool(bench.reports) and bench.reports[-1].header.stamp.sec == 1002

    bench.until(stamped, "diagnostics on the simulated clock")  # published although that clock is paused
    camera.publish(sent)
    bench.until(lambda: heard, "a detection")
    assert heard[0].header == sent.header
    key = "header stamp to publish p50 (ms)"
    bench.until(lambda: bench.status("object on front").by_key.get(key, "nan") != "nan", "the age")
    assert float(bench.status("object on front").by_key[key]) == pytest.approx(2000.0, abs=0.001)
    assert float(bench.status("object on front").by_key["end_to_end p50 (ms)"]) < 1000.0  # real time


def test_stamps_of_another_clock_are_a_warning(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    start(bench)
    camera = bench.camera()
    printed: list[str] = []

    def warned() -> bool:
        camera.publish(image(stamp=1000))
        printed.append(capfd.readouterr().err)
        return "than the clock of the node" in "".join(printed)

    bench.until(warned, "the warning")
    assert "camera front, topic /front/image_raw: the stamps of the images are" in "".join(printed)


def test_the_overlay_is_drawn_while_it_has_a_subscription(bench: Bench) -> None:
    start(bench, {"dnns": ["lane", "object"]})
    camera = bench.camera()
    camera.publish(image(stamp=1))
    for dnn in ("lane", "object"):  # counted after everything is published, so later than it is received
        bench.until(lambda dnn=dnn: bench.status(f"{dnn} on front").by_key.get("published") == "1", "the count")
    pictures = bench.listen("/multi_dnn/front/overlay", Image)

    def drawn() -> bool:
        camera.publish(image(stamp=2, size=(64, 48)))
        return bool(pictures)

    bench.until(drawn, "an overlay")
    assert pictures[0].header.stamp.sec == 2  # the frame before the subscription was not drawn
    assert (pictures[0].width, pictures[0].height, pictures[0].encoding) == (64, 48, "rgb8")


def test_the_compressed_overlay_is_the_overlay_as_jpeg(bench: Bench) -> None:
    start(bench, {"dnns": ["object"]})
    camera = bench.camera()
    raw = bench.listen("/multi_dnn/front/overlay", Image)
    compressed = bench.listen("/multi_dnn/front/overlay/compressed", CompressedImage)
    stamps = iter(range(1, 100_000))

    def both() -> bool:
        camera.publish(image(stamp=next(stamps), size=(64, 48)))
        return bool({message.header.stamp.sec for message in raw} & {each.header.stamp.sec for each in compressed})

    bench.until(both, "an overlay on both topics")
    coded = {message.header.stamp.sec: message for message in compressed}
    plain = next(message for message in raw if message.header.stamp.sec in coded)
    message = coded[plain.header.stamp.sec]
    assert (message.format, message.header) == ("jpeg", plain.header)
    pixels = cv2.imdecode(np.frombuffer(bytes(message.data), np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    expected = np.frombuffer(bytes(plain.data), np.uint8).reshape(48, 64, 3)
    assert pixels.shape == expected.shape
    assert np.abs(pixels.astype(int) - expected).mean() < 12.0


def test_two_nodes_in_namespaces_are_independent(bench: Bench) -> None:
    for namespace in ("left_robot", "right_robot"):
        bench.node(namespace=namespace)
        for transition in ("configure", "activate"):
            assert bench.change(transition, f"/{namespace}/multi_dnn")
    heard = {
        name: bench.listen(f"/{name}/multi_dnn/front/object/detections", Detection2DArray)
        for name in ("left_robot", "right_robot")
    }
    left = bench.camera("/left_robot/front/image_raw")
    right = bench.camera("/right_robot/front/image_raw")
    for number in range(1, 4):
        left.publish(image(stamp=number))
        bench.until(lambda number=number: len(heard["left_robot"]) == number, "left's result")
    right.publish(image(stamp=50))
    bench.until(lambda: heard["right_robot"], "right's result")
    assert [message.header.stamp.sec for message in heard["right_robot"]] == [50]
    assert len(heard["left_robot"]) == 3


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
