"""Errors for features that the standalone runtime does not have."""

from __future__ import annotations

from typing import Any


class MissingFeatureError(ImportError):
    """A module or a name of ROS 2 that the standalone runtime does not have."""


class UnsupportedError(NotImplementedError):
    """An argument or value of rclpy that the standalone runtime does not support."""


def missing(name: str) -> str:
    """Return the error text for a missing name of ROS 2."""
    return f"the standalone runtime of multi_dnn_ros has no {name}; install a real ROS 2 to use it"


def refuse(where: str, **arguments: Any) -> None:
    """Raise if any of the named arguments is not None.

    Raises:
        UnsupportedError: names the function and the argument.
    """
    for name, value in arguments.items():
        if value is not None:
            raise UnsupportedError(missing(f"{where}({name}={value!r:.60})"))


class Surface:
    """Base of the classes that replace rclpy's: accessing a missing attribute raises an explicit error."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=self)
        raise AttributeError(missing(f"{type(self).__name__}.{name}"), name=name, obj=self)
