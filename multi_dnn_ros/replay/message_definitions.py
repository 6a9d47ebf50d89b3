"""Text definition and type hash of a message type, which a recording stores for its readers.

Both are derived from the message class, so that they match the running ROS 2, even for types that the rosbags library
does not know (vision_msgs). The class lacks the constants and comments of the .msg file;
readers need neither, and the type hash (REP 2011) does not cover them.
"""

from __future__ import annotations

import functools
import re

from rosbags.typesys import get_types_from_msg
from rosbags.typesys.store import Typestore

import multi_dnn_ros.ros  # noqa: F401  reports a missing ROS 2
from multi_dnn_ros.ros.message_types import message_class

# rclpy uses IDL names of field types, .msg files use ROS names.
_IDL_NAMES = {"boolean": "bool", "octet": "byte", "float": "float32", "double": "float64"}
_SEQUENCE = re.compile(r"sequence<(?P<element>.+?)(?:, (?P<bound>\d+))?>$")
_ARRAY = re.compile(r"(?P<element>.+)\[(?P<length>\d+)\]$")
_BOUNDED_STRING = re.compile(r"string<(?P<bound>\d+)>$")


@functools.cache
def definition(msgtype: str) -> tuple[str, str]:
    """The .msg text followed by the texts of its nested types, and the RIHS01 type hash.

    Raises LookupError if the type is not installed.
    """
    store = _typestore(msgtype)
    return store.generate_msgdef(msgtype, ros_version=2)[0], store.hash_rihs01(msgtype)


def canonical(msgtype: str, data: bytes) -> bytes:
    """The CDR bytes of a message with zeros as padding.

    Middlewares differ: Fast DDS leaves uninitialized memory in the alignment gaps, so equal messages have different
    bytes in each run. Raises LookupError if the type is not installed.
    """
    store = _typestore(msgtype)
    return bytes(store.serialize_cdr(store.deserialize_cdr(data, msgtype), msgtype))


@functools.cache
def _typestore(msgtype: str) -> Typestore:
    """A type store with a message type and the types nested in it."""
    store = Typestore()
    pending = [msgtype]
    texts: dict[str, str] = {}
    while pending:
        name = pending.pop()
        if name not in texts:
            fields = message_class(name).get_fields_and_field_types()
            texts[name] = "\n".join(f"{_msg_type(kind)} {field}" for field, kind in fields.items())
            pending += [nested for kind in fields.values() if (nested := _nested(kind))]
    for name, text in texts.items():
        store.register(get_types_from_msg(text, name))
    return store


def _element(kind: str) -> tuple[str, str]:
    """Element type and .msg suffix of a field type."""
    if match := _SEQUENCE.match(kind):
        bound = match["bound"]
        return match["element"], f"[<={bound}]" if bound else "[]"
    if match := _ARRAY.match(kind):
        return match["element"], f"[{match['length']}]"
    return kind, ""


def _msg_type(kind: str) -> str:
    element, suffix = _element(kind)
    if match := _BOUNDED_STRING.match(element):
        element = f"string<={match['bound']}"
    return _IDL_NAMES.get(element, element) + suffix


def _nested(kind: str) -> str | None:
    package, _, name = _element(kind)[0].partition("/")
    return f"{package}/msg/{name}" if name else None
