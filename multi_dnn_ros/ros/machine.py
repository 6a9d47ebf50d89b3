"""What the node runs on, for diagnostics."""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

import torch

from multi_dnn_ros.reporting import cpu_model
from multi_dnn_ros.ros.middleware import is_standalone


def hardware_id(device: torch.device) -> str:
    """Host name and the device's name: `robot1 NVIDIA Orin`, `robot1 Intel(R) Core(TM) i5-7260U`."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()
    return f"{platform.node()} {name}"


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Versions that a bug report needs. `ROS`: the distribution, or `standalone` without an installation."""
    try:
        own = version("multi_dnn_ros")
    except PackageNotFoundError:  # run from the checkout
        own = "not installed"
    return {
        "multi_dnn_ros": own,
        "ROS": "standalone" if is_standalone() else os.environ.get("ROS_DISTRO", "unknown"),
        "torch": torch.__version__,
        "CUDA": torch.version.cuda or "none",
        "Python": platform.python_version(),
    }
