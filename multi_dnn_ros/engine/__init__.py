"""The online half: frames in, results out. It knows neither ROS nor what a lane is."""

from multi_dnn_ros.engine.engine import Engine
from multi_dnn_ros.engine.frame import Frame, FrameError
from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.statistics import Percentiles, Statistics, StreamStatistics
from multi_dnn_ros.engine.task import DnnTask, Drop, DropReason, Result, Timing

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
