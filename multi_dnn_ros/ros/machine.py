"""What the node runs on, for diagnostics."""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import rclpy
import torch


def hardware_id(device: torch.device) -> str:
    """Host name and the device's name: `robot1 NVIDIA Orin`, `robot1 Intel(R) Core(TM) i5-7260U`."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    return f"{platform.node()} {name}"


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Versions that a bug report needs. `ROS`: the distribution, or `standalone` without an installation."""
    try:
        own = version("multi_dnn_ros")
    except PackageNotFoundError:  # run from the checkout
        own = "not installed"
    standalone = "multi_dnn_ros" in (getattr(rclpy, "__file__", None) or "multi_dnn_ros")
    return {
        "multi_dnn_ros": own,
        "ROS": "standalone" if standalone else os.environ.get("ROS_DISTRO", "unknown"),
        "torch": torch.__version__,
        "CUDA": torch.version.cuda or "none",
        "Python": platform.python_version(),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(names, platform.machine())
