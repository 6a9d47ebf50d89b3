"""What the node runs on, for diagnostics."""

from __future__ import annotations

import ctypes
import gc
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


def settle_memory() -> None:
    """Take what is there now out of garbage collection until memory is given back.

    With a pipeline it is several hundred thousand objects: going through them would hold up every thread for a quarter
    of a second, now and then.
    """
    gc.collect()
    gc.freeze()


def give_back_memory(device: torch.device) -> None:
    """Return what was freed to the system and to other processes on the GPU; allocators keep it otherwise."""
    gc.unfreeze()
    gc.collect()  # traced graphs refer to themselves
    if device.type == "cuda":
        torch.cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


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
