"""Compares a converted network with ONNX Runtime when a file is loaded for the first time; the result is cached.

The outputs are compared. If those of a dynamically quantized network differ, its parts are compared (parts.py).
"""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from multi_dnn_ros.common.atomic_files import atomic_write
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.resources import cache_folder
from multi_dnn_ros.models.onnx_intake.conversion import convert
from multi_dnn_ros.models.onnx_intake.inputs import KNOWN_INPUTS, element_type
from multi_dnn_ros.models.onnx_intake.parts import with_given_ranges
from multi_dnn_ros.models.onnx_intake.preparation import Prepared
from multi_dnn_ros.models.onnx_intake.reading import read_model, tensors_of
from multi_dnn_ros.models.onnx_intake.refusal import Refusal

log = logging.getLogger(__name__)

#: Maximum difference, relative to the largest value of the output: for a float32 file, for one in half precision, and
#: for one with quantized activations, where a value between two steps may be rounded to either of them.
_TOLERANCE, _TOLERANCE_HALF, _TOLERANCE_QUANTIZED = 1e-3, 2e-2, 5e-2
#: The same for 8-bit values that DynamicQuantizeLinear computes from an activation of its own part, relative to the 255
#: steps of a range: two steps, because value and zero point may each be rounded to either of two neighbours.
_TOLERANCE_STEPS = 2.5 / 255
#: Share of the values of an output that may differ by more if the graph compares, selects or rounds, because two nearly
#: equal scores may swap.
_MAX_SWAPPED = 0.05
_DISCONTINUOUS = {"ArgMax", "ArgMin", "Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
             "QuantizeLinear", "Round", "Sign", "TopK"}  # fmt: skip
#: Those that replace DynamicQuantizeLinear in the converted graph, see quantized_operators.py.
_OF_DYNAMIC_QUANTIZATION = {"Equal", "Round"}
_TIMEOUT_S = 300
_IMAGES = Path(__file__).resolve().parents[2] / "calibration_images"


def verify(path: Path, prepared: Prepared, network: nn.Module, image: Path | None = None) -> None:
    """Raise Refusal, which names the tensor and the difference, unless the network agrees with ONNX Runtime.

    Both run on noise and on `image`, by default one that comes with the package. Outputs of a dynamically quantized
    network may differ if all of its parts agree; this is logged as a warning. If ONNX Runtime cannot run the file, a
    warning is logged and nothing is compared. This is done once for each file and input size; the result is kept in the
    user's cache.
    """
    size = prepared.image.size
    if size is None:
        return
    image = image or next(iter(sorted(_IMAGES.glob("*.jpg"))), None)
    record = cache_folder() / "onnx" / f"{_key(path, size, image)}.json"
    if record.is_file():
        return
    differences: dict[str, float] = {}
    for what, pixels in _inputs(size, image):
        try:
            expected = _by_onnxruntime(path, prepared, pixels)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            log.warning("%s is not compared with ONNX Runtime: %s", path, summarize_error(error))
            return
        try:
            actual = _by_network(network, prepared, pixels)
        except Exception as error:
            raise Refusal(f"fails on an image of {size[0]} x {size[1]}: {summarize_error(error)}") from None
        try:
            found = _compare(prepared, actual, expected, what)
        except Refusal as refusal:
            if not prepared.rounded:
                raise
            found = _compare_parts(path, prepared, pixels, what, refusal)
        for name, difference in found.items():
            differences[name] = max(difference, differences.get(name, 0.0))
    try:
        with atomic_write(record) as temporary:
            temporary.write_text(json.dumps({"file": str(path), "largest difference": differences}, indent=1) + "\n")
    except OSError as error:
        log.warning("the comparison of %s with ONNX Runtime is not cached: %s", path, error)


def _key(path: Path, size: tuple[int, int], image: Path | None) -> str:
    """Hash of the file and its external data, of the code and libraries that convert it, and of the inputs."""
    digest = hashlib.sha256(str(size).encode())
    for library in ("multi_dnn_ros", "onnx2torch", "torch", "onnxruntime"):
        digest.update(f"{library} {_version(library)}".encode())
    sources = sorted(Path(__file__).resolve().parent.rglob("*.py"))
    images = (image,) if image is not None and image.is_file() else ()
    for file in (path, *_external_files(path), *images, *sources):
        with file.open("rb") as content:
            while chunk := content.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""


def _external_files(path: Path) -> list[Path]:
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data

    model = read_model(path, weights=False)
    names = {ExternalDataInfo(tensor).location for tensor in tensors_of(model) if uses_external_data(tensor)}
    return [path.parent / name for name in sorted(names)]


def _inputs(size: tuple[int, int], image: Path | None) -> list[tuple[str, np.ndarray]]:
    """Name and pixels of each input: (1, 3, height, width) float32, 0..1."""
    width, height = size
    found: list[tuple[str, Any]] = [("noise", np.random.default_rng(0).random((1, 3, height, width), np.float32))]
    pixels = cv2.imread(str(image), cv2.IMREAD_COLOR) if image is not None else None
    if pixels is not None:
        planes = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)[..., ::-1].transpose(2, 0, 1)
        found.append((f"the image {image.name if image else ''}", planes[None].astype(np.float32) / 255))
    return found


def _by_network(
    network: nn.Module, prepared: Prepared, pixels: np.ndarray, given: Sequence[np.ndarray] = ()
) -> list[np.ndarray]:
    """Outputs of the network. given: its inputs after the image."""
    values = np.round(pixels * 255) if prepared.image.integers else pixels
    inputs = [torch.from_numpy(np.ascontiguousarray(values)), *(torch.from_numpy(each) for each in given)]
    with torch.inference_mode():
        outputs = pytree.tree_leaves(network(*inputs))
    return [output.numpy() for output in outputs]


def _by_onnxruntime(
    path: Path, prepared: Prepared, pixels: np.ndarray, further: Sequence[str] = ()
) -> list[np.ndarray]:
    """The outputs of the network, then the tensors `further`, from the unconverted file in a separate process.

    Raises ValueError with ONNX Runtime's reason.
    """
    from onnx import ValueInfoProto, helper, inliner

    model = read_model(path)
    if len(model.functions):
        model = inliner.inline_local_functions(model)
    del model.graph.output[:]
    names = list(dict.fromkeys([*(tensor.name for tensor in prepared.tensors), *further]))
    model.graph.output.extend(ValueInfoProto(name=name) for name in names)
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs: dict[str, Any] = {}
    for value in model.graph.input:
        if value.name in constants:
            continue
        dtype = helper.tensor_dtype_to_np_dtype(element_type(value))
        if value.name in KNOWN_INPUTS:
            inputs[value.name] = np.array(KNOWN_INPUTS[value.name](*(prepared.image.size or (0, 0))), dtype)
            continue
        values = np.round(pixels * 255) if prepared.image.integers else pixels
        inputs[value.name] = (values.transpose(0, 2, 3, 1) if prepared.image.channels_last else values).astype(dtype)
    with tempfile.TemporaryDirectory(prefix="multi_dnn_ros_") as scratch:
        folder = Path(scratch)
        try:
            (folder / "model.onnx").write_bytes(model.SerializeToString())
        except Exception as error:  # protobuf raises its own errors, such as for over 2 GiB
            raise ValueError(f"the model cannot be written as one file: {summarize_error(error)}") from None
        np.savez(folder / "inputs.npz", **inputs)
        command = [sys.executable, "-m", "multi_dnn_ros.models.onnx_intake.reference_process", scratch]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
        if done.returncode:
            reason = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            why = reason[-1][:300] if reason else "no message"
            raise ValueError(f"its process ended with exit code {done.returncode}: {why}")
        with np.load(folder / "outputs.npz") as outputs:
            found = dict(zip(names, (outputs[key] for key in outputs.files), strict=True))
    return [
        found[tensor.name].transpose(0, 3, 1, 2) if tensor.channels_last else found[tensor.name]
        for tensor in prepared.tensors
    ] + [found[name] for name in further]


def _compare(
    prepared: Prepared, actual: Sequence[np.ndarray], expected: Sequence[np.ndarray], what: str
) -> dict[str, float]:
    """Largest difference of each output, relative to the output's largest value."""
    tolerance = _TOLERANCE_HALF if prepared.half else _TOLERANCE
    if prepared.quantized:
        tolerance = max(tolerance, _TOLERANCE_QUANTIZED)
    swapped = _MAX_SWAPPED if prepared.quantized or set(prepared.operators) & _DISCONTINUOUS else 0.0
    return {
        name: _check(f"output {name[:80]!r}", what, values, reference, tolerance, swapped)
        for (name, _), values, reference in zip(prepared.outputs, actual, expected, strict=True)
    }


def _compare_parts(path: Path, prepared: Prepared, pixels: np.ndarray, what: str, refusal: Refusal) -> dict[str, float]:
    """As :func:`_compare`, with the inputs of each part from ONNX Runtime.

    refusal: the result for the whole network. It is raised if ONNX Runtime cannot compute these inputs.
    """
    try:
        reference = _by_onnxruntime(path, prepared, pixels, prepared.rounded)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        log.warning("%s is not compared with ONNX Runtime part by part: %s", path, summarize_error(error))
        raise refusal from None
    count = len(prepared.outputs)
    actual = _by_network(convert(with_given_ranges(prepared)), prepared, pixels, reference[count:])
    tolerance = _TOLERANCE_HALF if prepared.half else _TOLERANCE
    if "QuantizeLinear" in prepared.operators:  # some ranges are fixed, so that parts also round inside
        tolerance = max(tolerance, _TOLERANCE_QUANTIZED)
    swapped = _MAX_SWAPPED if set(prepared.operators) & (_DISCONTINUOUS - _OF_DYNAMIC_QUANTIZATION) else 0.0
    where = f"{what}, computed from ONNX Runtime's 8-bit values"
    found = {
        name: _check(f"output {name[:80]!r}", where, values, expected, tolerance, swapped)
        for (name, _), values, expected in zip(prepared.outputs, actual[:count], reference[:count], strict=True)
    }
    for name, values, expected in zip(prepared.rounded, actual[count:], reference[count:], strict=True):
        steps = 255.0 if expected.dtype == np.uint8 else None  # None for a scale
        allowed = _TOLERANCE_STEPS if steps else max(tolerance, _TOLERANCE_STEPS)
        _check(f"tensor {name[:80]!r}", where, values, expected, allowed, swapped, steps)
    log.warning(
        "%s is quantized dynamically, which amplifies rounding: on %s each part of the network agrees with ONNX "
        "Runtime, but the whole does not: %s", path, what, refusal,
    )  # fmt: skip
    return found


def _check(
    tensor: str,
    what: str,
    values: np.ndarray,
    reference: np.ndarray,
    tolerance: float,
    swapped: float,
    largest: float | None = None,
) -> float:
    """The largest difference of a tensor, relative to its largest value or `largest`.

    Raises Refusal if more than the share `swapped` of its values differ by more than `tolerance`.
    """
    if values.shape != reference.shape:
        raise Refusal(_message(tensor, what, f"shape {values.shape}, that of ONNX Runtime {reference.shape}"))
    difference, share = _difference(values, reference, tolerance, largest)
    if share > swapped:
        raise Refusal(
            _message(
                tensor,
                what,
                f"{share:.1%} of its values differ by more than {tolerance:g} of the largest value, "
                f"at most by {difference:.2g} of it; allowed: {swapped:.0%}",
            )
        )
    return difference


def _difference(
    values: np.ndarray, reference: np.ndarray, tolerance: float, largest: float | None
) -> tuple[float, float]:
    """Largest difference relative to `largest`, and the share of values that differ by more than tolerance.

    largest: if None, the largest value of the reference.
    """
    if not reference.size:
        return 0.0, 0.0
    left, right = values.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(right)
    scale = largest or float(np.abs(right[finite]).max(initial=0.0)) or 1.0
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0.0, np.abs(left - right) / scale)
    gap = np.nan_to_num(gap, nan=np.inf)
    return float(gap.max()), float((gap > tolerance).mean())


def _message(tensor: str, what: str, difference: str) -> str:
    return (
        f"the converted network disagrees with ONNX Runtime: {tensor} on {what}: {difference}; "
        "export it with another opset, or as a .pt2 file"
    )
