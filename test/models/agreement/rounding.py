"""How far ONNX Runtime agrees with itself when a dynamically quantized network is rounded differently.

    python test/models/agreement/rounding.py --weights DIR --images DIR --output results/quantized_rounding.json

Compared with ONNX Runtime on the same input: itself with an input that differs by one part in ten million, about one
rounding of float32; itself without its graph optimizations; and the converted network. This shows how much of a
difference rounding alone can explain. It does not show that a conversion is correct; the comparison when a file is
loaded does that. Boxes: average precision at IoU 0.9, as in measure.py. `codes`: share of the 8-bit values of each
DynamicQuantizeLinear that are equal, in the file's order.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import torch
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).resolve().parent))
from measure import _IOU, _MAX_DETECTIONS, _threshold, average_precision
from public_weights import Read, read_batched, read_yolo

from reference_decoding import Options, detections  # isort: skip

from multi_dnn_ros.common.reporting import provenance, write_json
from multi_dnn_ros.models.onnx_intake.conversion import convert
from multi_dnn_ros.models.onnx_intake.preparation import prepare
from multi_dnn_ros.vision.preprocess import Preprocess

#: File, decoding, whether boxes are suppressed.
FILES: dict[str, tuple[Read, bool]] = {
    "yolov8n_int8": (read_yolo, True), "deimv2_atto_coco_int8": (read_batched, False),
}  # fmt: skip
_PER_IMAGE = 60
_NOISE = 1e-7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    images = [cv2.imread(str(file))[..., ::-1].copy() for file in sorted(args.images.glob("*.jpg"))]
    found = {name: measured(args.weights / f"{name}.onnx", *how, images) for name, how in FILES.items()}
    print(found)
    command = f"python test/models/agreement/rounding.py {shlex.join(sys.argv[1:])}"
    write_json(
        args.output, {**provenance(), "command": command, "images": len(images), "noise": _NOISE, "models": found}
    )


def measured(file: Path, read: Read, suppress: bool, images: list[np.ndarray]) -> dict[str, Any]:
    """Agreement of each variant with ONNX Runtime, and shares of equal codes for the first image."""
    prepared = prepare(file)
    size = prepared.image.size
    assert size is not None
    network = convert(prepared.model)
    rng = np.random.default_rng(0)
    inputs = [Preprocess(*size, fit="letterbox" if suppress else "stretch")(torch.from_numpy(image))[0].numpy()
              for image in images]  # fmt: skip
    noisy = [one * (1 + _NOISE * rng.choice([-1.0, 1.0], one.shape)).astype(np.float32) for one in inputs]
    plain, unoptimized = session(file), session(file, optimized=False)
    expected = [run(plain, one, size) for one in inputs]

    def converted(one: np.ndarray) -> list[np.ndarray]:
        with torch.inference_mode():
            return [leaf.numpy() for leaf in pytree.tree_leaves(network(torch.from_numpy(np.array(one))))]

    variants = {
        "input with noise": [run(plain, one, size) for one in noisy],
        "without optimizations": [run(unoptimized, one, size) for one in inputs],
        "converted": [converted(one) for one in inputs],
    }
    boxes = {"reference": [read(one, size) for one in expected]}
    boxes |= {name: [read(one, size) for one in outputs] for name, outputs in variants.items()}
    scores = sorted((one[4] for some in boxes["reference"] for one in some), reverse=True)
    threshold = _threshold(scores, min(_PER_IMAGE * len(images), len(scores) if suppress else len(scores) // 2))
    options = Options(threshold=threshold, iou=_IOU, most=_MAX_DETECTIONS)
    preprocess = Preprocess(*size)
    final = {
        name: [detections(some, preprocess, (size[1], size[0]), options, suppress) for some in every]
        for name, every in boxes.items()
    }
    truth = final.pop("reference")
    return {
        "threshold": threshold,
        "boxes of the reference": sum(map(len, truth)),
        "mAP at IoU 0.9": {name: average_precision(some, truth, 0.9) for name, some in final.items()},
        "codes": codes(file, inputs[0], noisy[0], size),
    }


def session(file: Path | bytes, *, optimized: bool = True) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    given = file if isinstance(file, bytes) else str(file)
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def run(network: onnxruntime.InferenceSession, image: np.ndarray, size: tuple[int, int]) -> list[np.ndarray]:
    first, *more = (value.name for value in network.get_inputs())
    outputs: list[np.ndarray] = network.run(None, {first: image, **dict.fromkeys(more, np.array([size], np.int64))})
    return outputs


def codes(file: Path, image: np.ndarray, noisy: np.ndarray, size: tuple[int, int]) -> list[float]:
    """Share of equal 8-bit values of each DynamicQuantizeLinear for the image and for the image with noise."""
    model = onnx.load(str(file))
    names = [node.output[0] for node in model.graph.node if node.op_type == "DynamicQuantizeLinear"]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    network = session(model.SerializeToString())
    pairs = zip(run(network, image, size), run(network, noisy, size), strict=True)
    return [round(float((left == right).mean()), 5) for left, right in pairs]


if __name__ == "__main__":
    main()
