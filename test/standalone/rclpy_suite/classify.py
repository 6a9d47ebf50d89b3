"""Classifies the failure of a test by its error; nothing here depends on the names of tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

PASSED: Final = "passed"
UNCLAIMED: Final = "unclaimed"
HANDLES: Final = "handles"
DIFFERS: Final = "differs"
TIMING: Final = "timing"
SKIPPED: Final = "skipped"
#: From best to worst: a test with several cases has the outcome of its worst case.
OUTCOMES: Final = (PASSED, SKIPPED, UNCLAIMED, HANDLES, TIMING, DIFFERS)

_RUNTIME: Final = "multi_dnn_ros.standalone"
_SENTENCE: Final = re.compile(
    r"the standalone runtime of multi_dnn_ros has no (?P<name>.+?); install a real ROS 2", re.S
)
_BINDING: Final = ("rclpy.impl.implementation_singleton", "rclpy._rclpy_pybind11")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _private(error: BaseException) -> str | None:
    """Return the private name of rclpy that an AttributeError was raised for, as `Class._name`."""
    if not isinstance(error, AttributeError) or not error.name or not error.name.startswith("_"):
        return None
    owner = error.obj if isinstance(error.obj, type) else type(error.obj)
    home = getattr(error.obj, "__name__", "") if owner.__name__.endswith("Module") else owner.__module__
    return f"{owner.__name__}.{error.name}" if home.startswith((_RUNTIME, "rclpy")) else None


def classify(error: BaseException) -> tuple[str, str]:
    """Return the kind of failure, and the name or the text that shows it.

    Evidence of an unclaimed name is the runtime's own sentence about it, in the error or in one of its causes, or an
    AttributeError for a private name of one of the runtime's objects. Evidence of a C handle is the same for the C
    binding's module or an attribute `handle`. Every other error is a difference.
    """
    for link in _chain(error):
        sentence = _SENTENCE.search(str(link))
        name = sentence["name"] if sentence else _private(link)
        if name is None and type(link).__module__ == f"{_RUNTIME}.missing":
            name = str(link)
        if name is not None:
            is_handle = name.startswith(_BINDING) or re.search(r"\.(_\w+__)?handle$", name)
            return (HANDLES if is_handle else UNCLAIMED), name
    text = " ".join(str(error).split())
    return DIFFERS, f"{type(error).__name__}: {text:.300}"
