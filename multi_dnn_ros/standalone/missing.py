"""How the standalone runtime says that it does not have something: at once, and in one sentence."""

from __future__ import annotations

from typing import Any


class MissingFeatureError(ImportError):
    """A module or a name of ROS 2 that the standalone runtime does not have."""


class UnsupportedError(NotImplementedError):
    """An argument or a value of rclpy that the standalone runtime does not act on."""


def missing(name: str) -> str:
    """Return the sentence for a name of ROS 2 that is not here."""
    return f"the standalone runtime of multi_dnn_ros has no {name}; install a real ROS 2 to use it"


def refuse(where: str, **arguments: Any) -> None:
    """Raise when any of the named arguments was given, that is, is not None.

    Raises:
        UnsupportedError: names the function and the argument.
    """
    for name, value in arguments.items():
        if value is not None:
            raise UnsupportedError(missing(f"{where}({name}={value!r:.60})"))


class Surface:
    """Base of the classes that stand in for rclpy's: an attribute that is not here says so."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=self)
        raise AttributeError(missing(f"{type(self).__name__}.{name}"), name=name, obj=self)
