"""Several accurate DNNs at once on one small GPU, as one ROS 2 node.

Packages from the bottom to the top; each imports only those above it in this list (test/package/test_layout.py)::

    common, settings                 errors and files; every parameter
    vision, decoders                 images and results; raw outputs to results
    graph, models                    traced networks; where DNNs come from
    backends, engine                 how a stage runs on a device; the online scheduler
    planning, pipeline, serving      layer times; from settings to tasks; engine processes and their supervision
    compression, training, profiling the offline half
    ros                              the node
    camera, replay                   sources and recordings
    demo, benchmark, cli             what a person runs
"""

import getpass
import os
from pathlib import Path

from multi_dnn_ros.common.resources import cpu_count, is_writable, temporary_folder

__version__ = "0.1.0"

#: Switches off what libraries report to their vendors: ONNX Runtime (from version 1.29 on), Ray, Hugging Face's, and
#: others that follow https://consoledonottrack.com.
_NO_REPORTS = {
    "ORT_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}
#: Hardware queues of a GPU, at most 32, by default 8; read when CUDA is initialized, which asking for GPUs does, too.
#: Streams that share a queue wait for one another, also at a closed gate.
_GPU_QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}


def _prepare_environment() -> None:
    """Set the variables that libraries read when they are loaded; child processes inherit them. The user's own values
    are kept.
    """
    for name, value in (*_NO_REPORTS.items(), *_GPU_QUEUES.items()):
        os.environ.setdefault(name, value)
    # A container may be started with a user id that /etc/passwd does not know. PyTorch asks for the user's name when it
    # is imported, other libraries for the home folder.
    try:
        getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        os.environ["USER"] = str(os.getuid())
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = os.sep  # as Docker sets it
    # Without a folder for its logs, which it hardly uses, the real rclpy does not start.
    if not os.environ.keys() & {"ROS_LOG_DIR", "ROS_HOME"} and not is_writable(Path.home() / ".ros" / "log"):
        os.environ["ROS_LOG_DIR"] = str(temporary_folder() / "ros_log")
    if (count := cpu_count()) < (os.cpu_count() or 1):
        os.environ.setdefault("OMP_NUM_THREADS", str(count))


_prepare_environment()  # before any library is imported
