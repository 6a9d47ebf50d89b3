"""The online scheduler: frames in, results out. Knows neither ROS nor what a DNN detects; PyTorch only on a GPU."""

from multi_dnn_ros.engine.engine import Engine
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DnnTask, Drop, DropReason, Result, Timing

__all__ = ["DnnTask", "Drop", "DropReason", "Engine", "Failure", "Frame", "Result", "Timing"]
