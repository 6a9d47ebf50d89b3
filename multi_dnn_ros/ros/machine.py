"""What the node runs on, for diagnostics."""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

from multi_dnn_ros.ros.middleware import is_standalone


def hardware_id(device_name: str) -> str:
    """Host name and the device's name: `robot1 NVIDIA Orin`, `robot1 Intel(R) Core(TM) i5-7260U`."""
    return f"{platform.node()} {device_name}"


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Versions that a bug report needs, as far as this process knows them. `ROS`: the distribution, or `standalone`.

    Those of torch and CUDA as they were loaded are in the description that an engine gives of itself.
    """
    return {
        "multi_dnn_ros": _installed("multi_dnn_ros"),
        "ROS": "standalone" if is_standalone() else os.environ.get("ROS_DISTRO", "unknown"),
        "torch": _installed("torch"),
        "Python": platform.python_version(),
    }


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # our own: run from the checkout
        return "not installed"
