"""The online half: frames in, results out. It knows neither ROS nor what a lane is."""

from multi_dnn_ros.engine.engine import Engine
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.statistics import Percentiles, Statistics, StreamStatistics
from multi_dnn_ros.engine.task import DnnTask, Drop, DropReason, Result, Timing
from multi_dnn_ros.frame_error import FrameError

__all__ = [
    "DnnTask",
    "Drop",
    "DropReason",
    "Engine",
    "Failure",
    "Frame",
    "FrameError",
    "Percentiles",
    "Result",
    "Statistics",
    "StreamStatistics",
    "Timing",
]
