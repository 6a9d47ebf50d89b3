"""Damaged images, parameters and ONNX files: an error of the right kind that names the file, or a result."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper
from tiny_exports import TinyYolo, export

from multi_dnn_ros.common.errors import FrameError
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.settings.schema import DnnConfig
from multi_dnn_ros.vision.image_decoding import ENCODINGS, ImageSettings, decode_compressed, decode_image

SETTINGS = ImageSettings("front", 4096)
NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 7, 16, 255, 4095, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1])
SMALL = st.one_of(st.integers(0, 40), NUMBERS.filter(lambda number: 0 <= number < 2**32))
#: As many as take about a second.
_quick = settings(max_examples=400, deadline=None)
_slow = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def message_of(error: type[Exception], function: Callable[..., object], *given: Any) -> str:
    """What the error of this kind says; empty if there is none."""
    try:
        function(*given)
    except error as raised:
        return str(raised) or "an error without a text"
    return ""


@st.composite
def mutated(draw: Any, sources: list[bytes]) -> bytes:
    """Bytes changed, cut out, doubled or inserted."""
    data = bytearray(draw(st.sampled_from(sources)))
    for _ in range(draw(st.integers(1, 5))):
        at, length = draw(st.integers(0, len(data))), draw(st.integers(0, 16))
        piece = draw(st.one_of(st.binary(max_size=8), st.just(bytes(data[at : at + length]) * 2)))
        data[at : at + length] = piece
    return bytes(data)


@_quick
@given(
    width=SMALL,
    height=SMALL,
    encoding=st.sampled_from([*ENCODINGS, "", "32FC1", "rgb8 ", "\0", "nv99"]),
    step=st.one_of(SMALL, st.integers(1, 8)),
    big_endian=st.integers(0, 2),
    factor=st.sampled_from([0, 0.5, 1, 1.5]),
    per_pixel=st.booleans(),
)
def test_any_raw_image(
    width: int, height: int, encoding: str, step: int, big_endian: int, factor: float, per_pixel: bool
) -> None:
    step = step * width if per_pixel else step
    data = bytes(min(40_000, int(step * height * factor)))
    message = SimpleNamespace(
        width=width, height=height, encoding=encoding, step=step, is_bigendian=big_endian, data=data
    )
    try:
        image = decode_image(message, SETTINGS)
    except FrameError:
        return
    assert image.shape == (height, width, 3)
    assert image.dtype == np.uint8


_PICTURE = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
FILES = [cv2.imencode(end, _PICTURE)[1].tobytes() for end in (".jpg", ".png", ".webp", ".bmp")]


@_quick
@given(mutated(FILES), st.sampled_from(["jpeg", "png", "", "rgb8; jpeg"]))
def test_any_image_file(data: bytes, form: str) -> None:
    try:
        image = decode_compressed(SimpleNamespace(format=form, data=data), SETTINGS)
    except FrameError:
        return
    assert image.ndim == 3


@cache
def network() -> bytes:
    """A small detector as exporters write it."""
    with TemporaryDirectory() as folder:
        return export(TinyYolo(2), Path(folder) / "tiny.onnx").read_bytes()


def spoil(model: onnx.ModelProto, rng: random.Random) -> None:
    """Cycles, values that nothing writes, other operators; claimed sizes, and attributes of wrong kinds and values."""
    node = rng.choice([each for each in model.graph.node if each.input])
    if rng.random() < 0.5:
        names = [name for each in model.graph.node for name in (*each.input, *each.output)] + ["", "nowhere"]
        node.input[rng.randrange(len(node.input))] = rng.choice(names)
        node.op_type = rng.choice([*_OPERATORS, "", "\n\0", node.op_type])
        return
    sizes = (-1, 0, 1, 3, 1 << 16, (1 << 31) - 1, 1 << 40, (1 << 63) - 1)
    rng.choice(model.graph.initializer).dims[:] = [rng.choice(sizes) for _ in range(rng.randint(1, 4))]
    name = rng.choice(["axis", "kernel_shape", "pads", "strides", "mode", "dilations", "group"])
    if name not in [attribute.name for attribute in node.attribute]:
        node.attribute.append(helper.make_attribute(name, rng.choice([*sizes, [0, 1 << 40], "x" * 9999, 0.5])))


_OPERATORS = sorted({schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain})


@settings(_slow, max_examples=200)
@given(st.one_of(st.deferred(lambda: mutated([network()])), st.integers(0, 2**32)))
def test_any_onnx_file(tmp_path_factory: pytest.TempPathFactory, change: bytes | int) -> None:
    """change: the file, or the seed of a change of its graph."""
    file = tmp_path_factory.getbasetemp() / "any.onnx"
    if not isinstance(change, bytes):
        model = onnx.ModelProto.FromString(network())
        spoil(model, random.Random(change))
        change = model.SerializeToString()
    file.write_bytes(change)
    config = DnnConfig(
        role="object", model=str(file), decoder="yolo", labels=["thing", "other"], input_width=96, input_height=64
    )
    message = message_of(ModelError, load_dnn, "x", config)
    assert all(file.name in line or "dnn.x" in line for line in message.splitlines())
    assert len(message) < 1500
