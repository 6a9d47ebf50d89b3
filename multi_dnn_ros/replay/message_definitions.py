"""Text definition and type hash of a message type, which a recording stores for its readers.

Both come from the .msg files of the installed packages, so that they match the running ROS 2, even for types that the
rosbags library does not know (vision_msgs).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ament_index_python.packages import get_package_share_directory
from rosbags.interfaces import Nodetype
from rosbags.typesys import get_types_from_msg
from rosbags.typesys.store import Typestore

import multi_dnn_ros.ros  # noqa: F401  reports a missing ROS 2


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
    pending = {msgtype}
    while pending:
        name = pending.pop()
        package, _, short = name.partition("/msg/")
        try:
            path = Path(get_package_share_directory(package), "msg", f"{short}.msg")
            types = get_types_from_msg(path.read_text(encoding="utf-8"), name)
        except (LookupError, ValueError, OSError) as error:
            raise LookupError(f"message type {name} is not installed") from error
        store.register(types)
        pending |= {nested for _, kind in types[name][1] for nested in _named(kind)} - store.fielddefs.keys()
    return store


def _named(kind: Any) -> Iterator[str]:
    """The message types in the type of a field."""
    node, content = kind
    if node == Nodetype.NAME:
        yield content
    elif node in (Nodetype.ARRAY, Nodetype.SEQUENCE):
        yield from _named(content[0])
