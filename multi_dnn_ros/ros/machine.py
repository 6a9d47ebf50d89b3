"""Hardware, software versions and memory, for diagnostics."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

import psutil


def hardware_id(device_name: str) -> str:
    """Name of the computer and of the device: `robot1 NVIDIA Orin`, `robot1 Intel(R) Core(TM) i5-7260U`."""
    return f"{platform.node()} {device_name}"


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Versions that a bug report needs. `ROS`: the distribution.

    `torch`: the installed version. The engine process reports the versions of torch and CUDA that it has loaded.
    """
    return {
        "multi_dnn_ros": _installed("multi_dnn_ros"),
        "ROS": os.environ.get("ROS_DISTRO", "unknown"),
        "torch": _installed("torch"),
        "Python": platform.python_version(),
    }


def resident_memory() -> dict[str, int]:
    """Memory of this process by key, in bytes."""
    return {"resident memory (bytes)": psutil.Process().memory_info().rss}


def memory_text(memory: Mapping[str, int]) -> str:
    """`resident memory: node 110 MiB, engine processes 895 MiB`. memory: bytes by key, as in the diagnostics."""
    by_kind: dict[str, list[str]] = {}
    for key, value in memory.items():
        name = key.removesuffix(" (bytes)")
        kind = name.removeprefix("engine processes ")
        owner = "node" if kind == name else "engine processes"
        by_kind.setdefault(kind, []).append(f"{owner} {value / 2**20:,.0f} MiB")
    return "; ".join(f"{kind}: {', '.join(values)}" for kind, values in by_kind.items())


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # this package, run from a checkout
        return "not installed"
