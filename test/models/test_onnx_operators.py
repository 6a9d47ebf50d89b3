"""Each converted operator agrees with ONNX Runtime, in every opset from 11 to 22 that has it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, defs, helper
from onnx_graphs import OPSETS, assert_same, model, written

from multi_dnn_ros.models.onnx_intake.converters.quantization import dequantize, quantize

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


SIMPLE = ["Elu", "Selu", "Softplus", "Softsign", "Sin", "Cos", "Round", "Identity", "Sinh", "Asinh", "Sigmoid", "Tanh",
          "Erf", "Abs", "GlobalAveragePool", "GlobalMaxPool", "Softmax", "Neg"]  # fmt: skip
REDUCTIONS = [f"Reduce{name}" for name in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSumExp", "SumSquare")]
CASES = [
    Case("reshape", "Reshape", {"s": ints(0, -1, 5)}),
    Case("reshape_allowzero", "Reshape", {"s": ints(1, 6, 40)}, since=14, allowzero=1),
    Case("expand", "Expand", {"s": ints(2, 1, 1, 8, 1)}),
    Case("slice", "Slice", {"s": ints(1, -1), "e": ints(7, -9), "a": ints(2, -1), "t": ints(2, -3)}),
    Case("slice_reversed", "Slice", {"s": ints(-1), "e": ints(-(2**62)), "a": ints(1), "t": ints(-1)}),
    Case("slice_all", "Slice", {"s": ints(0, 1), "e": ints(1, 2**62)}),
    Case("pad_constant", "Pad", {"p": ints(0, 0, 1, 2, 0, 1, -1, 3), "v": floats(2.5)[0]}),
    Case("pad_reflect", "Pad", {"p": ints(0, 0, 1, 2, 0, 0, 3, 4)}, mode="reflect"),
    Case("pad_edge", "Pad", {"p": ints(0, 1, 1, 2, 0, 0, 3, 4)}, mode="edge"),
    Case("pad_wrap", "Pad", {"p": ints(0, 0, 1, 2, 0, 0, 3, 4)}, mode="wrap", since=19),
    Case("pad_axes", "Pad", {"p": ints(1, 2), "v": floats(1.0)[0], "a": ints(-1)}, since=18),
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
    Case("transpose", "Transpose", perm=[0, 2, 1, 3]),  # not to (h, w, 3), which is a map: see test_onnx_map_outputs
    Case("flatten", "Flatten", axis=2),
    Case("gather", "Gather", {"i": np.array([[0, -1], [1, 2]], I)}, axis=1),
    Case("gather_one", "Gather", {"i": np.array(-2, I)}, axis=3),
    Case("gather_elements", "GatherElements", {"i": RANDOM.integers(-3, 3, (1, 2, 8, 4))}, axis=1),
    Case("gather_nd", "GatherND", {"i": np.array([[0, 1, -2], [0, 2, 3]], I)}),
    Case("gather_nd_batch", "GatherND", {"i": np.array([[[1, 2], [2, 3]]], I)}, since=12, batch_dims=1),
    Case("scatter_nd", "ScatterND", {"i": np.array([[0, 1], [0, -1]], I), "u": noise(2, 8, 10)}),
    *(
        Case(
            f"scatter_nd_{how}",
            "ScatterND",
            {"i": np.array([[0, 1], [0, 1]], I), "u": noise(2, 8, 10)},
            since=since,
            reduction=how,
        )
        for how, since in (("add", 16), ("mul", 16), ("min", 18), ("max", 18))
    ),
    Case("scatter_elements", "ScatterElements", {"i": np.array([[[[1, -1]]]], I), "u": noise(1, 1, 1, 2)}, axis=3),
    *(
        Case(
            f"scatter_elements_{how}",
            "ScatterElements",
            {"i": np.array([[[[1, 1]]]], I), "u": noise(1, 1, 1, 2)},
            axis=3,
            since=since,
            reduction=how,
        )
        for how, since in (("add", 16), ("mul", 16), ("min", 18), ("max", 18))
    ),
    *(
        Case(f"cum_sum_{axis}_{exclusive}_{reverse}", "CumSum", {"a": np.array(axis, I)}, **options)
        for axis, exclusive, reverse in ((2, None, None), (-1, 1, 0), (3, 0, 1), (1, 1, 1))
        for options in ({} if exclusive is None else {"exclusive": exclusive, "reverse": reverse},)
    ),
    Case("top_k", "TopK", {"k": ints(3)}, axis=3, outputs=2, kinds={"out1": TensorProto.INT64}),
    Case("top_k_smallest", "TopK", {"k": ints(2)}, axis=1, largest=0, outputs=2, kinds={"out1": TensorProto.INT64}),
    Case("trilu", "Trilu", {"k": np.array(1, I)}, since=14, upper=0),
    Case("trilu_upper", "Trilu", since=14),
    Case("layer_norm", "LayerNormalization", {"w": noise(10), "b": noise(10)}, since=17, epsilon=1e-3),
    Case("layer_norm_axes", "LayerNormalization", {"w": noise(8, 10)}, since=17, axis=-2),
    Case("group_norm", "GroupNormalization", {"w": noise(3), "b": noise(3)}, since=21, num_groups=3, tolerance=1e-4),
    Case(
        "group_norm_one", "GroupNormalization", {"w": noise(3), "b": noise(3)}, since=21, num_groups=1, tolerance=1e-4
    ),
    Case("instance_norm", "InstanceNormalization", {"w": noise(3), "b": noise(3)}, tolerance=1e-4),
    Case(
        "batch_norm",
        "BatchNormalization",
        {"s": noise(3), "b": noise(3), "m": noise(3), "v": np.abs(noise(3))},
        tolerance=1e-4,
    ),
    Case("lp_norm", "LpNormalization", axis=1),
    Case("mvn", "MeanVarianceNormalization", tolerance=1e-4),
    Case("gelu", "Gelu", since=20),
    Case("gelu_tanh", "Gelu", since=20, approximate="tanh"),
    Case("mish", "Mish", since=18),
    Case("hard_swish", "HardSwish", since=14),
    Case("hard_sigmoid", "HardSigmoid", alpha=0.1),
    Case("shrink", "Shrink", bias=0.2),
    Case("thresholded_relu", "ThresholdedRelu", alpha=0.3),
    Case("clip", "Clip", {"low": floats(-0.5)[0], "high": floats(0.4)[0]}),
    Case("clip_above", "Clip", {"high": floats(0.4)[0]}, inputs=["image", "", "high"]),
    Case("cast", "Cast", to=TensorProto.INT32, kinds={"out0": TensorProto.INT32}),
    Case("cast_like", "CastLike", {"o": ints(1)}, since=15, kinds={"out0": TensorProto.INT64}),
    *(Case(operator.lower(), operator) for operator in SIMPLE),
    *(
        Case(f"{operator}_attribute", operator, until=12 if operator == "ReduceSum" else 17, axes=[2, -1], keepdims=0)
        for operator in REDUCTIONS
    ),
    *(
        Case(f"{operator}_input", operator, {"a": ints(2, -1)}, since=13 if operator == "ReduceSum" else 18)
        for operator in REDUCTIONS
    ),
    Case("reduce_nothing", "ReduceMean", since=18, noop_with_empty_axes=1),
    Case("conv", "Conv", {"w": noise(5, 3, 3, 3), "b": noise(5)}, pads=[1, 0, 2, 1], strides=[2, 1], tolerance=1e-4),
    Case("conv_same", "Conv", {"w": noise(4, 3, 3, 3)}, auto_pad="SAME_UPPER", strides=[2, 2], tolerance=1e-4),
    Case("conv_same_lower", "Conv", {"w": noise(4, 3, 2, 2)}, auto_pad="SAME_LOWER", tolerance=1e-4),
    Case("conv_valid", "Conv", {"w": noise(4, 3, 2, 2)}, auto_pad="VALID", tolerance=1e-4),
    Case(
        "conv_transpose",
        "ConvTranspose",
        {"w": noise(3, 4, 3, 3)},
        strides=[2, 2],
        output_padding=[1, 1],
        tolerance=1e-4,
    ),
    Case("max_pool", "MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    Case("max_pool_same", "MaxPool", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    Case("max_pool_ceil", "MaxPool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    Case("average_pool", "AveragePool", kernel_shape=[3, 3], strides=[1, 2], pads=[1, 1, 1, 1]),
    Case("average_pool_unequal", "AveragePool", kernel_shape=[2, 2], pads=[0, 0, 1, 1]),
    Case("average_pool_counted", "AveragePool", kernel_shape=[2, 2], pads=[0, 0, 1, 1], count_include_pad=1),
    Case("space_to_depth", "SpaceToDepth", blocksize=2),
    Case("depth_to_space", "Concat", inputs=["image", "image", "image", "image"], axis=1),
    *(
        Case(
            f"grid_sample_{mode}_{padding}_{corners}",
            "GridSample",
            {"g": RANDOM.uniform(-1.3, 1.3, (1, 4, 5, 2)).astype(np.float32)},
            since=since,
            until=until,
            mode=mode,
            padding_mode=padding,
            align_corners=corners,
            tolerance=1e-4,
        )
        for (mode, since, until) in (
            ("bilinear", 16, 19),
            ("bicubic", 16, 19),
            ("linear", 20, 99),
            ("cubic", 20, 99),
            ("nearest", 16, 99),
        )
        for padding, corners in (("zeros", 0), ("border", 1), ("reflection", 0))
    ),
]


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


COORDINATES = [
    "half_pixel",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "half_pixel_symmetric",
    "tf_crop_and_resize",
]


def resize(path: Path, opset: int, scales: list[float] | None, sizes: list[int] | None, **attributes: Any) -> Path:
    crop = attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    # No coordinate is in the middle of two elements, where rounding decides which one is nearest.
    constants = {"roi": floats(0, 0, 0.23, -0.11, 1, 1, 0.79, 1.22) if crop else floats(), "none": floats()}
    names = ["image", "roi", "none"]
    if scales:
        constants["scales"], names[2] = floats(*scales), "scales"
    if sizes:
        constants["sizes"] = ints(*sizes)
        names.append("sizes")
    proto = model([helper.make_node("Resize", names, ["out"], **attributes)], ["out"], opset=opset, constants=constants)
    return written(path, proto)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("opset", [11, 13, 18, 19, 22])
def test_resize(coordinates: str, opset: int, tmp_path: Path) -> None:
    if coordinates == "half_pixel_symmetric" and opset < 19:
        pytest.skip("new in opset 19")
    forms: list[tuple[list[float] | None, list[int] | None]] = [
        ([1, 1, 2, 2], None),
        ([1, 1, 0.6, 1.7], None),
        (None, [1, 3, 16, 20]),
        (None, [1, 3, 5, 13]),
        (None, [1, 3, 1, 4]),
    ]
    for number, (scales, sizes) in enumerate(forms):
        if coordinates == "tf_crop_and_resize" and scales == [1, 1, 2, 2]:
            continue
        for mode in ("nearest", "linear", "cubic"):
            options: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
            path = resize(tmp_path / f"{number}{mode}.onnx", opset, scales, sizes, **options)
            assert_same(path, tolerance=1e-4)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_resize_rounds_as_it_says(rounding: str, tmp_path: Path) -> None:
    for coordinates, scales in itertools.product(COORDINATES[:4], ([1, 1, 2, 3], [1, 1, 0.5, 0.4])):
        options = {"mode": "nearest", "nearest_mode": rounding, "coordinate_transformation_mode": coordinates}
        assert_same(resize(tmp_path / "r.onnx", 13, scales, None, **options))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("sizes", [[1, 3, 4, 5], [1, 3, 3, 7], [1, 3, 12, 7]])
def test_resize_antialiased(mode: str, sizes: list[int], tmp_path: Path) -> None:
    for opset in (18, 19):
        assert_same(resize(tmp_path / "a.onnx", opset, None, sizes, mode=mode, antialias=1), tolerance=1e-4)


def test_resize_with_other_cubic_weights(tmp_path: Path) -> None:
    for options in ({"cubic_coeff_a": -0.5}, {"exclude_outside": 1}):
        assert_same(resize(tmp_path / "c.onnx", 13, [1, 1, 1.5, 2], None, mode="cubic", **options), tolerance=1e-4)


def test_resize_of_named_axes_and_kept_aspect_ratio(tmp_path: Path) -> None:
    for policy in ("stretch", "not_larger", "not_smaller"):
        node = helper.make_node(
            "Resize", ["image", "", "", "s"], ["out"], axes=[2, 3], keep_aspect_ratio_policy=policy, mode="linear"
        )
        proto = model([node], ["out"], opset=19, constants={"s": ints(12, 30)})
        assert_same(written(tmp_path / f"{policy}.onnx", proto), tolerance=1e-4)


def test_a_quantized_network(tmp_path: Path) -> None:
    """Weights per channel in int8, activations in uint8."""
    nodes = [
        helper.make_node("QuantizeLinear", ["image", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["x"]),
        helper.make_node("DequantizeLinear", ["weights", "scales", "zeros"], ["w"], axis=0),
        helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1]),
        helper.make_node("QuantizeLinear", ["y", "scale_out"], ["r"]),
        helper.make_node("DequantizeLinear", ["r", "scale_out"], ["out"]),
    ]
    constants = {
        "scale": floats(0.02)[0],
        "zero": np.array(128, np.uint8),
        # 7 bits: on CPUs without 8-bit dot products, ONNX Runtime saturates sums of two products in 16 bits.
        "weights": RANDOM.integers(-64, 64, (4, 3, 3, 3)).astype(np.int8),
        "scales": floats(0.01, 0.02, 0.005, 0.03),
        "zeros": np.zeros(4, np.int8),
        "scale_out": floats(0.125)[0],
    }
    for opset in (13, 19, 21):
        path = written(tmp_path / f"q{opset}.onnx", model(nodes, ["out"], opset=opset, constants=constants))
        network = assert_same(path, tolerance=0.13)
        functions = [layer.function for layer in network.modules() if hasattr(layer, "function")]
        # The weights' operator is folded; the graph may name its result by an Identity.
        assert [each for each in functions if each in (quantize, dequantize)] == [quantize, dequantize] * 2
