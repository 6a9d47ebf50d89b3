"""Message classes and CDR, compared with those of rosbags and with values known from ROS 2."""

from __future__ import annotations

import array
import contextlib
import copy
import functools
import pickle
import struct
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multi_dnn_ros.standalone import cdr, interfaces, messages
from multi_dnn_ros.standalone.interfaces import FieldType
from multi_dnn_ros.standalone.missing import MissingFeatureError

_STORE = interfaces._store()
ALL_TYPES = sorted(_STORE.fielddefs)

_INTEGERS = {
    f"{sign}int{bits}": st.integers(0 if sign else -(2 ** (bits - 1)), 2**bits - 1 if sign else 2 ** (bits - 1) - 1)
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}
_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    **_INTEGERS,
    "char": _INTEGERS["uint8"],
    "bool": st.booleans(),
    "byte": st.binary(min_size=1, max_size=1),
    "float32": st.floats(width=32, allow_nan=False),
    "float64": st.floats(allow_nan=False),
}
_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=6)


def _value(kind: FieldType) -> st.SearchStrategy[Any]:
    if kind.is_message:
        element = message_of(kind.base)
    elif kind.base == "string":
        element = st.text("ab", max_size=min(kind.string_bound, 6)) if kind.string_bound else _TEXT
    else:
        element = _PRIMITIVES[kind.base]
    if kind.array is not None:
        return st.lists(element, min_size=kind.array, max_size=kind.array)
    if kind.sequence is not None:
        return st.lists(element, max_size=min(kind.sequence or 2, 2))
    return element


@functools.cache
def message_of(type_name: str) -> st.SearchStrategy[Any]:
    """A strategy for any message of a type."""
    fields = {name: _value(kind) for name, kind in interfaces.fields(type_name)}
    return st.fixed_dictionaries(fields).map(lambda values: messages.message_class(type_name)(**values))


@pytest.mark.parametrize("type_name", ALL_TYPES)
def test_every_default_message_survives_and_matches_rosbags(type_name: str) -> None:
    cls = messages.message_class(type_name)
    data = cdr.serialize_message(cls())
    assert cdr.deserialize_message(data, cls) == cls()
    assert bytes(_STORE.serialize_cdr(_STORE.deserialize_cdr(data, type_name), type_name)) == data


@settings(max_examples=150)
@given(data=st.data(), type_name=st.sampled_from(ALL_TYPES))
def test_any_message_survives_and_matches_rosbags(data: st.DataObject, type_name: str) -> None:
    message = data.draw(message_of(type_name))
    serialized = cdr.serialize_message(message)
    assert cdr.deserialize_message(serialized, type(message)) == message
    assert bytes(_STORE.serialize_cdr(_STORE.deserialize_cdr(serialized, type_name), type_name)) == serialized
    theirs = _STORE.serialize_cdr(_STORE.deserialize_cdr(serialized, type_name), type_name, little_endian=False)
    assert cdr.deserialize_message(bytes(theirs), type(message)) == message


@settings(max_examples=150)
@given(
    data=st.data(),
    type_name=st.sampled_from(
        ["sensor_msgs/msg/Image", "vision_msgs/msg/Detection2DArray", "rcl_interfaces/msg/ParameterEvent"]
    ),
)
def test_damaged_bytes_are_an_error_that_names_the_type(data: st.DataObject, type_name: str) -> None:
    serialized = bytearray(cdr.serialize_message(data.draw(message_of(type_name))))
    for position in data.draw(st.lists(st.integers(0, len(serialized) - 1), max_size=4)):
        serialized[position] = data.draw(st.integers(0, 255))
    del serialized[data.draw(st.integers(0, len(serialized))) :]
    error = None
    try:
        cdr.deserialize_message(bytes(serialized), messages.message_class(type_name))
    except cdr.CdrError as raised:
        error = str(raised)
    assert error is None or "/msg/" in error


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes_raise_only_cdr_errors(data: bytes) -> None:
    for type_name in ("sensor_msgs/msg/PointCloud2", "rcl_interfaces/srv/SetParameters_Request"):
        with contextlib.suppress(cdr.CdrError):
            cdr.deserialize_message(b"\x00\x01\x00\x00" + data, messages.message_class(type_name))


def test_a_string_that_is_not_utf_8_is_read_as_rclpy_reads_it() -> None:
    header = messages.message_class("std_msgs/msg/Header")
    data = bytes(cdr.serialize_message(header(frame_id="kamera f?r vorn"))).replace(b"?", b"\xfc")
    assert cdr.deserialize_message(data, header).frame_id == "kamera f\N{REPLACEMENT CHARACTER}r vorn"


def test_a_claimed_length_beyond_the_data_is_an_error() -> None:
    from sensor_msgs.msg import Image

    data = bytearray(cdr.serialize_message(Image(encoding="rgb8")))
    struct.pack_into("<I", data, len(data) - 4, 0xFFFFFFFF)
    with pytest.raises(
        cdr.CdrError, match=r"sensor_msgs/msg/Image\.data: claims 4294967295 elements, 0 bytes are left"
    ):
        cdr.deserialize_message(bytes(data), Image)


def test_an_unwritable_field_is_named() -> None:
    from std_msgs.msg import Header

    header = Header()
    header.stamp._sec = 2**40  # bypasses the check on assignment
    with pytest.raises(cdr.CdrError, match=r"builtin_interfaces/msg/Time\.sec"):
        cdr.serialize_message(header)
    with pytest.raises(cdr.CdrError, match="not plain CDR"):
        cdr.deserialize_message(b"\x00\x07\x00\x00", Header)


@pytest.mark.parametrize(
    ("type_name", "digest"),
    [
        ("vision_msgs/msg/Detection2DArray", "214274120007f4a683866481336b70310268cfa107aebe9d594a6acf75bda968"),
        ("sensor_msgs/msg/CameraInfo", "b3dfd68ff46c9d56c80fd3bd4ed22c7a4ddce8c8348f2f59c299e73118e7e275"),
        ("sensor_msgs/msg/PointCloud2", "9198cabf7da3796ae6fe19c4cb3bdd3525492988c70522628af5daa124bae2b5"),
        ("std_msgs/msg/String", "df668c740482bbd48fb39d76a70dfd4bd59db1288021743503259e948f6b1a18"),
        ("std_msgs/msg/Char", "3ad2d04dd29ba19d04b16659afa3ccaedd691914b02a64e82e252f2fa6a586a9"),
    ],
)
def test_type_hashes_are_those_of_ros(type_name: str, digest: str) -> None:
    assert interfaces.type_hash(type_name) == f"RIHS01_{digest}"


def test_defaults_constants_and_types_are_those_of_rclpy() -> None:
    from diagnostic_msgs.msg import DiagnosticStatus
    from geometry_msgs.msg import Quaternion
    from lifecycle_msgs.msg import State, Transition
    from rcl_interfaces.msg import Log, ParameterDescriptor, ParameterType
    from sensor_msgs.msg import CameraInfo, PointField

    assert Quaternion().w == 1.0
    assert DiagnosticStatus().level == DiagnosticStatus.OK == b"\x00"
    assert DiagnosticStatus.STALE == b"\x03"
    assert (PointField.FLOAT32, Transition.TRANSITION_CONFIGURE, State.PRIMARY_STATE_ACTIVE) == (7, 1, 3)
    assert (Log.INFO, ParameterType.PARAMETER_DOUBLE) == (20, 3)
    assert ParameterDescriptor().read_only is False
    info = CameraInfo()
    assert isinstance(info.k, np.ndarray)
    assert info.k.shape == (9,)
    assert isinstance(info.d, array.array)
    assert info.get_fields_and_field_types()["k"] == "double[9]"
    assert ParameterDescriptor.get_fields_and_field_types()["integer_range"] == (
        "sequence<rcl_interfaces/IntegerRange, 1>"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\x02\x03",
        bytearray(b"\x01\x02\x03"),
        memoryview(b"\x01\x02\x03"),
        [1, 2, 3],
        np.array([1, 2, 3], np.uint8),
    ],
)
def test_image_data_takes_any_bytes(data: Any) -> None:
    from sensor_msgs.msg import Image

    image = Image(data=data)
    assert isinstance(image.data, array.array)
    assert bytes(image.data) == b"\x01\x02\x03"
    assert np.frombuffer(image.data, np.uint8).tolist() == [1, 2, 3]
    assert bytes(image.data[1:]) == b"\x02\x03"


def test_an_array_of_the_right_type_is_not_copied() -> None:
    from sensor_msgs.msg import Image

    data = array.array("B", bytes(1000))
    image = Image()
    image.data = data
    assert image.data is data
    strided = np.arange(20, dtype=np.uint8).reshape(4, 5)[:, ::2]
    image.data = strided
    assert bytes(image.data) == strided.tobytes()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("height", -1),
        ("height", 2**32),
        ("height", 1.0),
        ("encoding", b"rgb8"),
        ("data", "text"),
        ("data", [256]),
        ("header", 3),
    ],
)
def test_a_wrong_value_is_refused_on_assignment(name: str, value: Any) -> None:
    from sensor_msgs.msg import Image

    with pytest.raises(AssertionError, match=rf"sensor_msgs/msg/Image\.{name}"):
        setattr(Image(), name, value)


def test_unknown_keyword_and_attribute_are_refused() -> None:
    from sensor_msgs.msg import Image

    with pytest.raises(
        AssertionError, match=r"Invalid arguments passed to constructor: heigth; .*sensor_msgs/msg/Image"
    ):
        Image(heigth=3)
    with pytest.raises(AttributeError):
        Image().heigth = 3


def test_messages_copy_compare_and_pickle() -> None:
    from vision_msgs.msg import Detection2D, Detection2DArray

    message = Detection2DArray(detections=[Detection2D(id="a")])
    twin = copy.deepcopy(message)
    assert twin == message == pickle.loads(pickle.dumps(message))  # noqa: S301 (our own bytes)
    twin.detections[0].bbox.center.position.x = 1.0
    assert twin != message
    assert message != "message"
    assert "vision_msgs.msg.Detection2D(" in repr(message)


@pytest.mark.parametrize(
    "statement",
    [
        "import rclpy.action",
        "from rclpy.action import ActionClient",
        "from rclpy import spin_for_ever",
        "from rclpy.node import NodeNameNonExistentError",
        "from sensor_msgs.msg import Hologram",
        "import sensor_msgs.action",
        "from std_srvs.srv import Teleport",
    ],
)
def test_a_missing_name_raises_an_explicit_error(statement: str) -> None:
    with pytest.raises(MissingFeatureError, match=r"standalone runtime .* has no .*real ROS 2"):
        exec(statement)  # noqa: S102 (an import statement)


def test_star_import() -> None:
    namespace: dict[str, Any] = {}
    exec("from std_srvs.srv import *\nfrom rclpy.qos import *", namespace)  # noqa: S102 (import statements)
    assert {"Empty", "SetBool", "Trigger", "QoSProfile"} <= namespace.keys()


def test_every_offered_name_exists() -> None:
    import importlib

    from multi_dnn_ros.standalone.surface import SURFACE

    for module, offered in SURFACE.items():
        for name in offered:
            assert getattr(importlib.import_module(module), name) is not None


def test_install_refuses_if_a_real_rclpy_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import ModuleType

    from multi_dnn_ros import standalone
    from multi_dnn_ros.standalone.finder import StandaloneFinder

    standalone.install()  # idempotent
    assert sum(isinstance(finder, StandaloneFinder) for finder in sys.meta_path) == 1
    real = ModuleType("rclpy")
    real.__file__ = "/opt/ros/rclpy/__init__.py"
    others = [finder for finder in sys.meta_path if not isinstance(finder, StandaloneFinder)]
    monkeypatch.setattr(sys, "meta_path", others)
    monkeypatch.setitem(sys.modules, "rclpy", real)
    with pytest.raises(RuntimeError, match=r"a real rclpy is importable \(/opt/ros/rclpy/__init__.py\)"):
        standalone.install()


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_bytes_can_be_read_without_a_copy(size: int) -> None:
    image = messages.message_class("sensor_msgs/msg/Image")(width=3, encoding="mono8", data=bytes(range(256)) * size)
    data = bytes(cdr.serialize(image))
    read = cdr.deserialize(data, type(image), byte_views=True)
    assert isinstance(read.data, memoryview)
    assert read.data.obj is data
    assert bytes(read.data) == bytes(image.data)
    assert (read.width, read.encoding) == (3, "mono8")
    with pytest.raises(cdr.CdrError, match=r"Image\.data"):
        cdr.deserialize(data[:-256] if size else data[:-1], type(image), byte_views=True)
