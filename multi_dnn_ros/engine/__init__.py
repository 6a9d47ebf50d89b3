"""The online scheduler: frames in, results out. Knows neither ROS nor what a DNN detects.

Frames, results and drops are free of PyTorch, because the node's process uses them and must not import it.
Only :class:`Engine` and what it runs need PyTorch.
"""

from typing import TYPE_CHECKING, Any

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DnnTask, Drop, DropReason, Result, Timing

if TYPE_CHECKING:
    from multi_dnn_ros.engine.engine import Engine

__all__ = [
    "DnnTask",
    "Drop",
    "DropReason",
    "Engine",
    "Failure",
    "Frame",
    "Result",
    "Timing",
]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from multi_dnn_ros.engine.engine import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
