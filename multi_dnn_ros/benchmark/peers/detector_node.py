"""One DNN as a node of its own, as one would write it with ONNX Runtime and OpenCV: images in, boxes or lanes out.

Its topics are those of the package's node, so that both are measured alike. One thread computes the network: more
threads would take cores from the other nodes.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import onnxruntime
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage, Image, PointCloud2, PointField
from vision_msgs.msg import Detection2D, Detection2DArray, ObjectHypothesisWithPose

from multi_dnn_ros.benchmark.peers.arrivals import Arrivals
from multi_dnn_ros.benchmark.peers.spinning import spin

Floats = npt.NDArray[np.float32]
_FIELDS = ("u", "v", "lane", "score")
_MIN_LANE_PIXELS = 50
_POINTS = 48


class DetectorNode:
    """Subscribes to `cameras` (name to topic) and publishes what the network of the file finds.

    network: the file that :func:`multi_dnn_ros.benchmark.plain_export.export_builtin` wrote.
    """

    def __init__(self, node: Node, name: str, network: Path, kind: Any, cameras: dict[str, str]) -> None:
        self.arrivals = Arrivals()
        self._description = json.loads(network.with_suffix(".json").read_text(encoding="utf-8"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(network), options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name
        lanes = self._description["role"] == "lane"
        self._decode = self._lanes if lanes else self._boxes
        result, topic = (PointCloud2, "points") if lanes else (Detection2DArray, "detections")
        self._publishers = {
            camera: node.create_publisher(result, f"/multi_dnn/{camera}/{name}/{topic}", 10) for camera in cameras
        }
        self._subscriptions = [
            node.create_subscription(kind, topic, partial(self._receive, camera), QoSProfile(depth=1))
            for camera, topic in cameras.items()
        ]

    def _receive(self, camera: str, message: Any) -> None:
        self.arrivals.add()
        image = _image(message)
        (output,) = self._session.run(None, {self._input: self._prepared(image)})
        height, width = image.shape[:2]
        scale = (width / self._description["width"], height / self._description["height"])
        self._publishers[camera].publish(self._decode(output[0], scale, message.header))

    def _prepared(self, image: npt.NDArray[np.uint8]) -> Floats:
        size = (self._description["width"], self._description["height"])
        pixels = cv2.resize(image, size, interpolation=cv2.INTER_AREA).astype(np.float32) / 255.0
        pixels = (pixels - np.float32(self._description["mean"])) / np.float32(self._description["std"])
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])

    def _boxes(self, rows: Floats, scale: tuple[float, float], header: Any) -> Detection2DArray:
        """rows: (4 + classes, N)."""
        classes = rows[4:].argmax(axis=0)
        scores = rows[4:].max(axis=0)
        chosen = np.flatnonzero(scores >= self._description["score_threshold"])
        centers, sizes = rows[:2, chosen].T, rows[2:4, chosen].T
        corners = np.hstack([centers - sizes / 2, sizes])
        kept = cv2.dnn.NMSBoxesBatched(
            corners.tolist(), scores[chosen].tolist(), classes[chosen].tolist(), 0.0, self._description["iou_threshold"]
        )
        message = Detection2DArray(header=header)
        for index in kept:
            detection = Detection2D(header=header)
            detection.bbox.center.position.x = float(centers[index, 0] * scale[0])
            detection.bbox.center.position.y = float(centers[index, 1] * scale[1])
            detection.bbox.size_x = float(sizes[index, 0] * scale[0])
            detection.bbox.size_y = float(sizes[index, 1] * scale[1])
            hypothesis = ObjectHypothesisWithPose()
            hypothesis.hypothesis.class_id = str(classes[chosen[index]])
            hypothesis.hypothesis.score = float(scores[chosen[index]])
            detection.results.append(hypothesis)
            message.detections.append(detection)
        return message

    def _lanes(self, logits: Floats, scale: tuple[float, float], header: Any) -> PointCloud2:
        """A curve of second degree through the pixels of each connected component. logits: (1, h, w)."""
        probability = 1.0 / (1.0 + np.exp(-logits[0]))
        mask = (probability >= self._description["score_threshold"]).astype(np.uint8)
        count, labels, statistics, _ = cv2.connectedComponentsWithStats(mask)
        lanes: list[Floats] = []
        for label in range(1, count):
            if statistics[label, cv2.CC_STAT_AREA] < _MIN_LANE_PIXELS:
                continue
            v, u = np.nonzero(labels == label)
            rows = np.linspace(v.min(), v.max(), _POINTS)
            curve = np.polyfit(v, u, 2 if np.ptp(v) > 12 else 1)
            columns = np.polyval(curve, rows)
            score = probability[v, u].mean()
            lanes.append(
                np.column_stack([columns * scale[0], rows * scale[1], np.full((_POINTS, 2), (len(lanes) + 1, score))])
            )
        points = np.concatenate(lanes).astype("<f4") if lanes else np.zeros((0, 4), "<f4")
        message = PointCloud2(header=header, height=1, width=len(points), point_step=16, row_step=16 * len(points))
        message.fields = [
            PointField(name=name, offset=4 * index, datatype=PointField.FLOAT32, count=1)
            for index, name in enumerate(_FIELDS)
        ]
        message.data = points.tobytes()
        message.is_dense = True
        return message


def _image(message: Any) -> npt.NDArray[np.uint8]:
    """(H, W, 3) RGB."""
    if hasattr(message, "format"):
        decoded = cv2.imdecode(np.frombuffer(message.data, np.uint8), cv2.IMREAD_COLOR)
        if decoded is None:
            raise ValueError(f"a {message.format} image of {len(message.data)} bytes cannot be decoded")
        return np.asarray(cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB), np.uint8)
    rows = np.frombuffer(message.data, np.uint8).reshape(message.height, message.step)
    image: npt.NDArray[np.uint8] = rows[:, : 3 * message.width].reshape(message.height, message.width, 3)
    if message.encoding not in ("rgb8", "bgr8"):
        raise ValueError(f"encoding is {message.encoding!r}; allowed: rgb8, bgr8")
    return image[:, :, ::-1] if message.encoding == "bgr8" else image


def main() -> None:
    """Serve until a signal comes, then print the number of images."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--name", required=True)
    parser.add_argument("--network", type=Path, required=True)
    parser.add_argument("--transport", choices=("raw", "compressed"), default="raw")
    parser.add_argument("--camera", action="append", required=True, metavar="NAME=TOPIC")
    args = parser.parse_args()
    cameras = dict(camera.split("=", 1) for camera in args.camera)
    kind = Image if args.transport == "raw" else CompressedImage
    detector = spin(args.name, lambda node: DetectorNode(node, args.name, args.network, kind, cameras))
    if detector is not None:  # else the signal came while it started
        print(detector.arrivals.text(), flush=True)


if __name__ == "__main__":
    main()
