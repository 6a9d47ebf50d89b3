"""Each operator of this package's converters agrees with ONNX Runtime, in every opset from 11 to 22 that has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, defs, helper
from onnx_graphs import OPSETS, assert_same, model, written

from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.sources import load_source
from multi_dnn_ros.settings.schema import DnnConfig

I = np.int64  # noqa: E741
RANDOM = np.random.default_rng(1)


def ints(*values: int) -> np.ndarray:
    return np.array(values, I)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def noise(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


class Case:
    """One node in one form: `since` and `until` are the first and the last opset with this form."""

    def __init__(
        self,
        name: str,
        operator: str,
        constants: Any = None,
        *,
        since: int = 11,
        until: int = 99,
        outputs: int = 1,
        kinds: Any = None,
        inputs: list[str] | None = None,
        tolerance: float = 1e-5,
        **attributes: Any,
    ) -> None:
        self.name, self.operator, self.constants = name, operator, constants or {}
        self.since, self.until, self.kinds, self.attributes = since, until, kinds or {}, attributes
        self.inputs = ["image", *self.constants] if inputs is None else inputs
        self.outputs = [f"out{i}" for i in range(outputs)]
        self.tolerance = tolerance


REDUCTIONS = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2"]
CASES = [
    Case("reshape", "Reshape", {"s": ints(0, -1, 5)}),
    Case("reshape_allowzero", "Reshape", {"s": ints(1, 6, 40)}, since=14, allowzero=1),
    Case("expand", "Expand", {"s": ints(2, 1, 1, 8, 1)}),
    Case("slice", "Slice", {"s": ints(1, -1), "e": ints(7, -9), "a": ints(2, -1), "t": ints(2, -3)}),
    Case("slice_reversed", "Slice", {"s": ints(-1), "e": ints(-(2**62)), "a": ints(1), "t": ints(-1)}),
    Case("pad_constant", "Pad", {"p": ints(0, 0, 1, 2, 0, 1, -1, 3), "v": floats(2.5)[0]}),
    Case("pad_reflect", "Pad", {"p": ints(0, 0, 1, 2, 0, 0, 3, 4)}, mode="reflect"),
    Case("pad_edge", "Pad", {"p": ints(0, 0, 1, 2, 0, 0, 3, 4)}, mode="edge"),
    Case("squeeze", "Squeeze", until=12, axes=[0]),
    Case("squeeze_input", "Squeeze", {"a": ints(0)}, since=13),
    Case("squeeze_all", "Squeeze"),
    Case("unsqueeze", "Unsqueeze", until=12, axes=[0, 4]),
    Case("unsqueeze_input", "Unsqueeze", {"a": ints(-1, 0)}, since=13),
    Case("split", "Split", until=12, axis=2, split=[3, 5], outputs=2),
    Case("split_equal", "Split", until=17, axis=3, outputs=5),
    Case("split_input", "Split", {"s": ints(3, 5)}, since=13, axis=2, outputs=2),
    Case("split_number", "Split", since=18, axis=3, outputs=3, num_outputs=3),
    Case("split_one", "Split", since=18, axis=3, outputs=1, num_outputs=1),
    Case("tile", "Tile", {"r": ints(1, 2, 1, 3)}),
    Case("gather", "Gather", {"i": np.array([[0, -1], [1, 2]], I)}, axis=1),
    Case("gather_one", "Gather", {"i": np.array(-2, I)}, axis=3),
    Case("gather_elements", "GatherElements", {"i": RANDOM.integers(-3, 3, (1, 2, 8, 4))}, axis=1),
    Case("scatter_nd", "ScatterND", {"i": np.array([[0, 1], [0, -1]], I), "u": noise(2, 8, 10)}),
    Case("top_k", "TopK", {"k": ints(3)}, axis=3, outputs=2, kinds={"out1": TensorProto.INT64}),
    Case("top_k_smallest", "TopK", {"k": ints(2)}, axis=1, largest=0, outputs=2, kinds={"out1": TensorProto.INT64}),
    *(
        Case(f"{name}_attribute", name, until=12 if name == "ReduceSum" else 17, axes=[2, -1], keepdims=0)
        for name in REDUCTIONS
    ),
    *(Case(f"{name}_input", name, {"a": ints(2, -1)}, since=13 if name == "ReduceSum" else 18) for name in REDUCTIONS),
    Case("clip", "Clip", {"low": floats(-0.5)[0], "high": floats(0.4)[0]}),
    Case("clip_above", "Clip", {"high": floats(0.4)[0]}, inputs=["image", "", "high"]),
    Case("gelu", "Gelu", since=20),
    Case("gelu_tanh", "Gelu", since=20, approximate="tanh"),
    Case("cast", "Cast", to=TensorProto.INT32, kinds={"out0": TensorProto.INT32}),  # a later version of onnx2torch's
    Case("conv", "Conv", {"w": noise(5, 3, 3, 3), "b": noise(5)}, pads=[1, 0, 2, 1], strides=[2, 1], tolerance=1e-4),
    Case("conv_same", "Conv", {"w": noise(4, 3, 3, 3)}, auto_pad="SAME_UPPER", strides=[2, 2], tolerance=1e-4),
    Case("conv_same_lower", "Conv", {"w": noise(4, 3, 2, 2)}, auto_pad="SAME_LOWER", tolerance=1e-4),
    Case("max_pool_same", "MaxPool", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    *(
        Case(
            f"grid_sample_{mode}_{padding}_{corners}", "GridSample",
            {"g": RANDOM.uniform(-1.3, 1.3, (1, 4, 5, 2)).astype(np.float32)},
            since=since, until=until, mode=mode, padding_mode=padding, align_corners=corners, tolerance=1e-4,
        )
        for mode, since, until in (("bilinear", 16, 19), ("linear", 20, 99), ("nearest", 16, 99))
        for padding, corners in (("zeros", 0), ("border", 1))
    ),
    *(
        Case(
            f"resize_{mode}_{coordinates}_{sizes[3]}", "Resize",
            {"s": ints(*sizes)}, inputs=["image", "", "", "s"], since=13, mode=mode, tolerance=1e-4,
            coordinate_transformation_mode=coordinates, **({"nearest_mode": "floor"} if mode == "nearest" else {}),
        )
        for mode, coordinates in (
            ("nearest", "asymmetric"), ("linear", "half_pixel"), ("linear", "pytorch_half_pixel"),
            ("linear", "align_corners"), ("cubic", "half_pixel"),
        )
        for sizes in ([1, 3, 16, 20], [1, 3, 5, 13])
    ),
    Case("resize_scales", "Resize", {"roi": floats(), "s": floats(1, 1, 2, 3)}, mode="nearest",
         coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operator_agrees_with_onnxruntime(case: Case, tmp_path: Path) -> None:
    done = set()
    for opset in OPSETS:
        if not case.since <= opset <= case.until:
            continue
        version = defs.get_schema(case.operator, opset).since_version
        if version in done:  # the same definition
            continue
        done.add(version)
        node = helper.make_node(case.operator, case.inputs, case.outputs, **case.attributes)
        proto = model([node], case.outputs, opset=opset, constants=case.constants, output_kinds=case.kinds)
        assert_same(written(tmp_path / f"{case.name}_{opset}.onnx", proto), tolerance=case.tolerance)
    assert done


@pytest.mark.parametrize(
    ("operator", "constants", "attributes", "words"),
    [
        ("Sinh", {}, {}, "cannot be converted to PyTorch.*Sinh.*; on a CPU, ONNX Runtime runs"),
        (
            "Resize", {"roi": floats(*[0] * 4, *[0.5] * 4), "s": floats(1, 1, 2, 3)},
            {"coordinate_transformation_mode": "tf_crop_and_resize"}, "operator Resize .*tf_crop_and_resize",
        ),
        ("Resize", {"roi": floats(), "s": floats(1, 1, 0.5, 0.4)}, {"mode": "nearest"}, "differs from ONNX Runtime's"),
        ("ReduceMax", {}, {"noop_with_empty_axes": 1}, "noop_with_empty_axes"),
    ],
)  # fmt: skip
def test_an_operator_that_pytorch_lacks_is_named_with_the_file(
    operator: str, constants: Any, attributes: Any, words: str, tmp_path: Path
) -> None:
    node = helper.make_node(operator, ["image", *constants], ["out"], "the_node", **attributes)
    proto = model([node, helper.make_node("Relu", ["out"], ["end"])], ["end"], opset=20, constants=constants)
    config = DnnConfig(role="object", model=str(written(tmp_path / "net.onnx", proto)))
    with pytest.raises(ModelError, match=rf"net\.onnx: .*{words}"):
        load_source("x", config)
    assert load_source("x", config, onnx=True).outputs  # by ONNX Runtime
