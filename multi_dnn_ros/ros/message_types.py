"""Message classes by type name."""

from __future__ import annotations

import importlib
from typing import Any


def message_class(msgtype: str) -> Any:
    """The class of a message type such as ``sensor_msgs/msg/Image``.

    Raises LookupError: the type is not installed.
    """
    package, _, name = msgtype.replace("/msg/", "/").partition("/")
    try:
        return getattr(importlib.import_module(f"{package}.msg"), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise LookupError(f"message type {msgtype} is not installed") from error
