"""One inference, several results: each has its own topics, class names and threshold; accounts are per inference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from builtin_interfaces.msg import Time
from node_bench import Bench
from sensor_msgs.msg import Image
from std_msgs.msg import Header
from two_heads import LABELS, exported, picture
from vision_msgs.msg import Detection2DArray, LabelInfo

from multi_dnn_ros.ros.result_messages import LATCHED, class_names, image_message
from multi_dnn_ros.serving.build import build as build_for_real


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("model"))


def settings(model: Path, /, **own: Any) -> dict[str, Any]:
    """A node with the DNN `road`. own: its parameters, with __ for a dot."""
    values = {"model": str(model), "role": "road", "labels": LABELS, "resize": "stretch", "backend": "eager",
              "jobs": 2, **own}  # fmt: skip
    parameters = {f"dnn.road.{name.replace('__', '.')}": value for name, value in values.items()}
    return {"device": "cpu", "dnns": ["road"], **parameters}


def two_filters(model: Path, **own: Any) -> dict[str, Any]:
    outputs = {"outputs": ["cars", "people"]}
    for name, label in (("cars", "car"), ("people", "person")):
        outputs |= {f"output__{name}__raw_outputs": ["0"], f"output__{name}__decoder": "yolo",
                    f"output__{name}__keep": [label]}  # fmt: skip
    return settings(model, **{**outputs, **own})


def start(bench: Bench, parameters: dict[str, Any]) -> None:
    bench.node(parameters, build=build_for_real)
    assert bench.change("configure"), bench.status("node").message
    assert bench.change("activate")


def message(pixels: npt.NDArray[np.uint8], stamp: int) -> Image:
    return image_message(pixels, "rgb8", Header(stamp=Time(sec=stamp), frame_id="lens"))


def boxes(found: Any) -> list[tuple[float, ...]]:
    """x1, y1, x2, y2 and class of each detection, sorted."""
    corners = []
    for one in found.detections:
        center, width, height = one.bbox.center.position, one.bbox.size_x, one.bbox.size_y
        corners.append((center.x - width / 2, center.y - height / 2, center.x + width / 2, center.y + height / 2,
                        int(one.results[0].hypothesis.class_id)))  # fmt: skip
    return sorted(corners)


def test_boxes_and_masks_of_one_inference(bench: Bench, model: Path) -> None:
    own = {"outputs": ["boxes", "free", "ground"],
           "output__boxes__raw_outputs": ["0"], "output__boxes__decoder": "yolo",
           "output__free__raw_outputs": ["1"], "output__free__decoder": "drivable",
           "output__ground__raw_outputs": ["1"], "output__ground__decoder": "segmentation",
           "output__ground__labels": ["wall", "road"]}  # fmt: skip
    start(bench, settings(model, **own))
    found = bench.listen("/multi_dnn/front/road/boxes/detections", Detection2DArray)
    free = bench.listen("/multi_dnn/front/road/free/mask", Image)
    ground = bench.listen("/multi_dnn/front/road/ground/mask", Image)
    overlay = bench.listen("/multi_dnn/front/overlay", Image)
    infos: list[Any] = []
    bench.peer.create_subscription(LabelInfo, "/multi_dnn/road/ground/label_info", infos.append, LATCHED)
    pixels = picture([(1, 1)], [(6, 0)], slice(3, 6)).repeat(2, 0).repeat(2, 1)
    bench.camera().publish(message(pixels, 1))
    bench.until(lambda: found and free and ground and overlay and infos, "all results and the overlay")
    assert boxes(found[0]) == [(16, 16, 32, 32, 0), (96, 0, 112, 16, 1)]
    assert (free[0].encoding, free[0].header.stamp.sec, free[0].height, free[0].width) == ("mono8", 1, 96, 128)
    road = pixels[..., 2] == 255
    np.testing.assert_array_equal(np.frombuffer(free[0].data, np.uint8).reshape(96, 128), np.where(road, 255, 0))
    np.testing.assert_array_equal(np.frombuffer(ground[0].data, np.uint8).reshape(96, 128), np.where(road, 1, 0))
    assert class_names(infos[0]) == {"0": "wall", "1": "road"}
    drawn = np.frombuffer(overlay[0].data, np.uint8).reshape(96, 128, 3)
    assert (drawn[60:70, 100:120] != pixels[60:70, 100:120]).any(-1).all()
    bench.until(lambda: bench.status("road on front").by_key.get("published") == "1", "the accounts")
    assert bench.status("road on front").by_key["offered"] == "1"


def test_the_threshold_of_one_result_changes_only_that_result(bench: Bench, model: Path) -> None:
    start(bench, two_filters(model))
    cars = bench.listen("/multi_dnn/front/road/cars/detections", Detection2DArray)
    people = bench.listen("/multi_dnn/front/road/people/detections", Detection2DArray)
    infos: list[Any] = []
    bench.peer.create_subscription(LabelInfo, "/multi_dnn/road/people/label_info", infos.append, LATCHED)
    bench.until(lambda: len(infos) == 1, "the class names")
    camera = bench.camera()
    pixels = picture([(1, 1)], [(6, 3)], slice(0)) // 2
    camera.publish(message(pixels, 1))
    bench.until(lambda: len(cars) == len(people) == 1, "results")
    assert len(boxes(cars[0])) == len(boxes(people[0])) == 1
    taken, reason = bench.set("dnn.road.score_threshold", 0.9)
    assert not taken
    assert "dnn.road.score_threshold has no effect with dnn.road.outputs; set dnn.road.output.<output>" in reason
    assert bench.set("dnn.road.score_threshold", 0.0) == (True, "")  # the default, as `ros2 param load` sets it
    assert bench.set("dnn.road.output.people.score_threshold", 0.75)[0]
    camera.publish(message(pixels, 2))
    bench.until(lambda: len(cars) == len(people) == 2, "results with the new threshold")
    assert len(boxes(cars[1])) == 1
    assert not boxes(people[1])
    bench.until(lambda: len(infos) == 2, "class names again")
    assert [one.threshold for one in infos] == [np.float32(0.4), 0.75]


def test_a_crop_is_seen_enlarged_and_its_boxes_are_in_the_image(bench: Bench, model: Path) -> None:
    start(bench, two_filters(model, crop=[64, 96, 64, 48]))
    cars = bench.listen("/multi_dnn/front/road/cars/detections", Detection2DArray)
    pixels = np.zeros((200, 240, 3), np.uint8)
    pixels[96:144, 64:128] = picture([(1, 1)], [], slice(0))
    camera = bench.camera()
    camera.publish(message(pixels, 1))
    bench.until(lambda: cars, "a result")
    assert boxes(cars[0]) == [(72, 104, 80, 112, 0)]
    camera.publish(message(pixels[:100], 2))
    bench.until(
        lambda: bench.status("road on front").by_key.get("dropped: dnn_error") == "1", "the drop of a small image"
    )
    assert bench.status("road on front").by_key["published"] == "1"
