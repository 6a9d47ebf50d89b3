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


def pose(x: float = 0.0, y: float = 0.0, pitch: float = 0.0, yaw: float = 0.0) -> list[float]:
    return [x, y, HEIGHT, 0.0, pitch, yaw]


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
    rig = Rig(bench, pose=pose())
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
    rig = Rig(bench, pose=pose())
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


TURN = [1.0, 0.0, 0.0, 0.0, math.cos(0.1), math.sin(0.1), 0.0, -math.sin(0.1), math.cos(0.1)]
P = [8.0, 0.0, 3.5, -4.0, 0.0, 8.0, 2.5, 0.0, 0.0, 0.0, 1.0, 0.0]
ROI = {"roi__x_offset": 4, "roi__y_offset": 2, "roi__width": 16, "roi__height": 12, "binning_x": 2, "binning_y": 2}


@pytest.mark.parametrize(
    ("camera", "calibration", "size", "expected"),
    [
        # Pixel (0, 11) of a resized image is (-0.25, 5.25) of the calibrated one.
        ({"pose": pose()}, {}, (16, 12), (HEIGHT * 8 / 2.75, HEIGHT * 3.75 / 2.75)),
        # Pixel (0, 5) is (4.5, 12.5) of the calibrated image.
        ({"pose": pose()}, {"width": 32, "height": 24, "k": K, **ROI}, (8, 6), (HEIGHT * 8 / 10, -HEIGHT * 1 / 10)),
        # R undoes the pitch: the rays of rectified pixels are turned back by its transpose.
        ({"pose": pose(pitch=0.1), "rectified": True}, {"k": (1.0,) * 9, "d": [0.5] * 5, "p": P, "r": TURN}, (8, 6),
         (X, Y)),
        ({"pose": pose(2.0, -0.5, yaw=math.pi / 2)}, {}, (8, 6), (2.0 - Y, -0.5 + X)),
    ],
    ids=["resized", "region of interest", "rectified", "pose"],
)  # fmt: skip
def test_calibration_and_pose(
    bench: Bench, camera: dict[str, Any], calibration: dict[str, Any], size: tuple[int, int], expected: tuple
) -> None:
    rig = Rig(bench, {"vehicle_frame": "footprint"}, **camera)
    rig.listen()
    assert rig.points(info(**calibration), size)[0, :3] == pytest.approx([*expected, 0.0], rel=1e-4)
    assert rig.metres[-1].header.frame_id == "footprint"


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
    assert "camera.front.pose" in text
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


def test_transforms_are_forgotten_when_time_is_set_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    tf = FakeTf()
    monkeypatch.setitem(sys.modules, "tf2_ros", tf)
    rig = Rig(bench, {"use_sim_time": True})
    clocks = bench.peer.create_publisher(Clock, "/clock", QoSProfile(depth=10))
    rig.listen()
    bench.until(lambda: tf.open == 1, "the listener")
    now, cleared = bench.nodes[0].get_clock().now, []
    for seconds in (1000, 1030, 1000):
        tick = Clock()
        tick.clock.sec = seconds
        bench.until(
            lambda at=seconds, tick=tick: (clocks.publish(tick), now().nanoseconds == at * 10**9)[1], "the time"
        )
        cleared.append(tf.cleared)
    assert cleared[2] == cleared[1] + 1 == cleared[0] + 1
