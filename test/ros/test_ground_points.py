"""Lane points in metres, through topics: calibration, pose, what cannot be projected, no work unasked."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from node_bench import Bench, image
from rclpy.qos import QoSProfile
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo, PointCloud2

from multi_dnn_ros.ros import served_dnns

PIXELS, METRES = "/multi_dnn/front/lane/points", "/multi_dnn/front/lane/ground_points"
INFO = "/front/camera_info"
OK, WARN = 0, 1
#: For images of 8 x 6 pixels. The only line of the DNN has the points (0, 5) and (0, 0).
K = (8.0, 0.0, 3.5, 0.0, 8.0, 2.5, 0.0, 0.0, 1.0)
HEIGHT = 1.5
#: Where pixel (0, 5) is on the ground: x forward, y left.
X, Y = HEIGHT * 8.0 / 2.5, HEIGHT * 3.5 / 2.5


@pytest.fixture(autouse=True)
def _frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_dnns, "_CHECK_PERIOD_S", 0.05)


def info(**values: Any) -> CameraInfo:
    message = CameraInfo(width=8, height=6, distortion_model="plumb_bob", k=K, d=[0.0] * 5)
    for name, value in values.items():
        target, _, field = name.rpartition("__")
        setattr(message.roi if target else message, field, value)
    return message


class Rig:
    """A node with a lane DNN, a camera with its CameraInfo, and subscriptions to both point clouds."""

    def __init__(self, bench: Bench, node_values: dict[str, Any] | None = None, **camera_values: Any) -> None:
        self.bench = bench
        values = {f"camera.front.{name}": value for name, value in camera_values.items()}
        bench.node({"dnns": ["lane"], **values, **(node_values or {})})
        assert bench.change("configure")
        assert bench.change("activate")
        self.images = bench.camera()
        self.infos = bench.peer.create_publisher(CameraInfo, INFO, QoSProfile(depth=10))
        self.pixels = bench.listen(PIXELS, PointCloud2)
        self.stamp = 0

    def listen(self) -> None:
        self.metres = self.bench.listen(METRES, PointCloud2)
        self.bench.until(lambda: self.infos.get_subscription_count() > 0, "a subscription to CameraInfo")

    def frame(self, size: tuple[int, int] = (8, 6)) -> None:
        """Publish an image, and wait for its points in pixels, which are published in any case."""
        count = len(self.pixels)
        self.stamp += 1
        self.images.publish(image(stamp=self.stamp, size=size))
        self.bench.until(lambda: len(self.pixels) > count, "the points in pixels")

    def points(self, message: CameraInfo, size: tuple[int, int] = (8, 6)) -> np.ndarray:
        """The points (N, 5) of the first result with points after this CameraInfo."""
        self.infos.publish(message)
        count = len(self.metres)
        self.frames(lambda: len(self.metres) > count, size)
        return rows(self.metres[-1])

    def warning(self, message: CameraInfo | None, size: tuple[int, int] = (8, 6)) -> str:
        """The status after this CameraInfo, once it is WARN. Points in pixels arrive all the time."""
        if message is not None:
            self.infos.publish(message)

        def warned() -> bool:
            status = self.status()
            early = message is not None and status.message.startswith("no CameraInfo")  # it has not arrived yet
            return status.level == WARN and not early

        self.frames(warned, size)
        return str(self.status().message)

    def status(self) -> Any:
        return self.bench.status("ground front")

    def frames(self, condition: Callable[[], bool], size: tuple[int, int]) -> None:
        """Publish images until the condition is true."""
        for _ in range(200):
            self.frame(size)
            for _ in range(4):
                self.bench.executor.spin_once(timeout_sec=0.02)
            if condition():
                return
        raise AssertionError(self.status())


def rows(message: PointCloud2) -> np.ndarray:
    return np.frombuffer(bytes(message.data), "<f4").reshape(-1, len(message.fields))


@pytest.fixture
def rig(bench: Bench) -> Rig:
    rig = Rig(bench, height_m=HEIGHT)
    rig.listen()
    return rig


def test_points_are_published_in_metres_and_in_pixels(rig: Rig) -> None:
    assert rig.points(info()) == pytest.approx(np.array([[X, Y, 0.0, 1.0, 200 / 255]]), abs=1e-5)
    cloud = rig.metres[-1]
    assert [field.name for field in cloud.fields] == ["x", "y", "z", "lane", "score"]
    assert (cloud.width, cloud.height, cloud.point_step, cloud.is_dense) == (1, 1, 20, True)
    assert cloud.header.frame_id == "base_link"
    (pixels,) = [it for it in rig.pixels if it.header.stamp == cloud.header.stamp]
    assert pixels.header.frame_id == f"frame{pixels.header.stamp.sec}"
    assert len(rows(pixels)) == 2
    rig.bench.until(lambda: rig.status().message == "points in base_link", "the status")
    assert rig.status().level == OK
    assert rig.status().by_key["CameraInfo"] == INFO


def test_nothing_is_computed_unless_somebody_listens(bench: Bench) -> None:
    rig = Rig(bench, height_m=HEIGHT)
    rig.frame()
    bench.until(lambda: rig.status().message == "no subscription", "the status")
    assert (rig.status().level, bench.peer.count_subscribers(INFO)) == (OK, 0)
    rig.listen()
    assert len(rig.points(info()))
    (subscription,) = [it for it in bench.peer.subscriptions if it.topic_name == METRES]
    bench.peer.destroy_subscription(subscription)
    bench.until(lambda: bench.peer.count_subscribers(INFO) == 0, "the end of the subscription")
    bench.until(lambda: rig.status().message == "no subscription", "the status")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"k": (0.0,) * 9}, "the focal length is 0 x 0 pixels: the camera is not calibrated"),
        ({"k": (math.nan, *K[1:])}, "contains NaN or infinity"),
        ({"d": [math.nan, 0.0, 0.0, 0.0, 0.0]}, "contains NaN or infinity"),
        ({"width": 0}, "for 0 x 6 pixels: the camera is not calibrated"),
        ({"width": 16}, "the image has 8 x 6 pixels, but the CameraInfo is for 16 x 6"),
        ({"roi__width": 8, "roi__height": 6, "roi__x_offset": 1}, "region of interest of the CameraInfo"),
        ({"d": [0.1] * 5, "distortion_model": "fov"}, "distortion model 'fov' is not known"),
        ({"d": [0.1] * 7}, "plumb_bob has 7 coefficients"),
    ],
)
def test_what_cannot_be_projected_is_a_warning_and_pixels_go_on(rig: Rig, wrong: dict[str, Any], text: str) -> None:
    assert text in rig.warning(info(**wrong))
    assert not rig.metres
    rig.frames(lambda: int(rig.status().by_key["results without points"]) > 0, (8, 6))
    assert len(rig.points(info())) == 1  # a valid CameraInfo is used from then on
    rig.bench.until(lambda: rig.status().level == OK, "the status")


def test_without_camera_info(bench: Bench) -> None:
    rig = Rig(bench, height_m=HEIGHT)
    rig.listen()
    text = rig.warning(None)
    assert "no CameraInfo" in text
    assert INFO in text


def test_another_image_size(rig: Rig) -> None:
    assert "the image has 8 x 12 pixels" in rig.warning(info(), (8, 12))
    # A resized image: pixel (0, 11) of 16 x 12 is (-0.25, 5.25) of 8 x 6.
    resized = rig.points(info(), (16, 12))[0]
    assert resized[:2] == pytest.approx([HEIGHT * 8 / 2.75, HEIGHT * 3.75 / 2.75], rel=1e-5)


def test_region_of_interest_and_binning(rig: Rig) -> None:
    whole = {"width": 32, "height": 24, "k": (8.0, 0.0, 3.5, 0.0, 8.0, 2.5, 0.0, 0.0, 1.0)}
    roi = {"roi__x_offset": 4, "roi__y_offset": 2, "roi__width": 16, "roi__height": 12}
    found = rig.points(info(**whole, **roi, binning_x=2, binning_y=2))
    # Pixel (0, 5) is (4.5, 12.5) of the calibrated image, pixel (0, 0) is (4.5, 2.5): on the horizon.
    assert found[:, :2] == pytest.approx(np.array([[HEIGHT * 8 / 10, -HEIGHT * 1 / 10]]), rel=1e-5)


def test_rectified_images(bench: Bench) -> None:
    rig = Rig(bench, height_m=HEIGHT, rectified=True, pitch_rad=0.1)
    rig.listen()
    # R undoes the pitch: the rays of rectified pixels are turned back by its transpose.
    turn = [1.0, 0.0, 0.0, 0.0, math.cos(0.1), math.sin(0.1), 0.0, -math.sin(0.1), math.cos(0.1)]
    p = [8.0, 0.0, 3.5, -4.0, 0.0, 8.0, 2.5, 0.0, 0.0, 0.0, 1.0, 0.0]
    found = rig.points(info(k=(1.0,) * 9, d=[0.5] * 5, p=p, r=turn))
    assert found[:, :2] == pytest.approx(np.array([[X, Y]]), rel=1e-4)
    assert "R of the CameraInfo is not a rotation" in rig.warning(info(p=p, r=[1.0] * 9))


def test_position_frame_and_range(bench: Bench) -> None:
    rig = Rig(bench, {"vehicle_frame": "footprint"}, height_m=HEIGHT, x_m=2.0, y_m=-0.5, yaw_rad=math.pi / 2)
    rig.listen()
    assert rig.points(info())[:, :3] == pytest.approx(np.array([[2.0 - Y, -0.5 + X, 0.0]]), rel=1e-5)
    assert rig.metres[-1].header.frame_id == "footprint"
    far = (100.0, *K[1:4], 100.0, *K[5:])  # a longer focal length: the point is 60 m away
    rig.infos.publish(info(k=far))
    rig.frames(lambda: len(rows(rig.metres[-1])) == 0, (8, 6))


class FakeTf(ModuleType):
    """tf2_ros with one transform."""

    def __init__(self) -> None:
        super().__init__("tf2_ros")
        self.open = 0
        self.lookups: list[tuple[str, str, int]] = []
        self.transform: Any = None
        self.Buffer = lambda: SimpleNamespace(lookup_transform=self.lookup, clear=self.clear)
        self.cleared = 0
        self.TransformListener = self.listener

    def listener(self, buffer: Any, node: Any, *, spin_thread: bool) -> Any:
        assert not spin_thread
        self.open += 1

        def unregister() -> None:
            self.open -= 1

        return SimpleNamespace(unregister=unregister, buffer=buffer)

    def clear(self) -> None:
        self.cleared += 1

    def lookup(self, target: str, source: str, time: Any) -> Any:
        self.lookups.append((target, source, time.nanoseconds))
        if self.transform is None:
            raise LookupError(f'"{source}" passed to lookupTransform argument source_frame does not exist.')
        return SimpleNamespace(transform=self.transform)


def optical(z: float) -> Any:
    """A level camera that looks forward, at height z."""
    return SimpleNamespace(
        translation=SimpleNamespace(x=1.0, y=0.0, z=z), rotation=SimpleNamespace(x=-0.5, y=0.5, z=-0.5, w=0.5)
    )


def test_the_pose_from_tf(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    tf = FakeTf()
    monkeypatch.setitem(sys.modules, "tf2_ros", tf)
    rig = Rig(bench)
    rig.frame()
    assert tf.open == 0
    rig.listen()
    text = rig.warning(info())
    assert "TF has no transform from" in text
    assert "does not exist" in text
    assert "camera.front.height_m" in text
    tf.transform = optical(HEIGHT)
    assert rig.points(info())[:, :3] == pytest.approx(np.array([[1.0 + X, Y, 0.0]]), rel=1e-5)
    stamp = rig.metres[-1].header.stamp.sec
    assert ("base_link", f"frame{stamp}", stamp * 1_000_000_000 + 5) in tf.lookups
    assert rig.status().by_key["pose from"] == "TF"
    tf.transform = optical(-0.25)
    assert "the camera is 0.25 m below the ground" in rig.warning(None)
    assert tf.open == 1
    assert bench.change("deactivate")
    assert tf.open == 0


def set_clock(bench: Bench, clocks: Any, seconds: int) -> None:
    """Publish this time until the node has it."""
    tick = Clock()
    tick.clock.sec = seconds

    def has_it() -> bool:
        clocks.publish(tick)
        return bool(bench.nodes[0].get_clock().now().nanoseconds == seconds * 1_000_000_000)

    bench.until(has_it, "the simulated time")


def test_transforms_are_forgotten_when_time_is_set_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    tf = FakeTf()
    monkeypatch.setitem(sys.modules, "tf2_ros", tf)
    rig = Rig(bench, {"use_sim_time": True})
    clocks = bench.peer.create_publisher(Clock, "/clock", QoSProfile(depth=10))
    rig.listen()
    bench.until(lambda: tf.open == 1, "the listener")
    set_clock(bench, clocks, 1000)
    before = tf.cleared
    set_clock(bench, clocks, 1030)
    assert tf.cleared == before
    set_clock(bench, clocks, 1000)
    assert tf.cleared == before + 1
    assert bench.change("deactivate")
    set_clock(bench, clocks, 900)
    assert tf.cleared == before + 1


def test_without_tf_and_without_parameters(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tf2_ros", None)
    rig = Rig(bench)
    rig.listen()
    text = rig.warning(info())
    assert "TF" in text
    assert "set camera.front.height_m, pitch_rad" in text
