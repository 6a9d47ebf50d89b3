"""Provenance of results, and functions that format and write them."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from multi_dnn_ros import __version__
from multi_dnn_ros.common.atomic_files import atomic_write
from multi_dnn_ros.common.resources import cpu_count

#: Packages whose versions affect measurements.
PACKAGES = ("torch", "torchvision", "onnxruntime", "numpy", "opencv-python-headless", "rosbags")


def provenance() -> dict[str, Any]:
    """Machine, versions and the command of this process."""
    module = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "").removesuffix(".__main__")
    is_tool = module.startswith("multi_dnn_ros.") and module != "multi_dnn_ros.cli.main"
    program = f"python -m {module}" if is_tool else "multi-dnn"
    machine = {"cpu": cpu_model(), "cores": cpu_count(), "system": platform.platform(), "gpu": _gpu()}
    versions = {"multi_dnn_ros": __version__, "python": platform.python_version(), **dict(map(_version, PACKAGES))}
    return {"command": f"{program} {shlex.join(sys.argv[1:])}".rstrip(), "machine": machine, "versions": versions}


def _version(package: str) -> tuple[str, str]:
    try:
        return package, metadata.version(package)
    except metadata.PackageNotFoundError:
        return package, "not installed"


def cpu_model() -> str:
    """Name of this machine's CPU."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "Model")):  # some ARM boards have only "Model"
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _gpu() -> str | None:
    try:
        import torch
    except ImportError:  # serving on a CPU does without it
        return None
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def distribution(samples: Sequence[float]) -> dict[str, float]:
    """Count, minimum, percentiles and maximum of measurements, in the unit of `samples`."""
    values = np.asarray(samples, dtype=np.float64)
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return {"samples": len(values), "min": float(values.min()), "p50": float(p50), "p95": float(p95), "p99": float(p99),
            "max": float(values.max())}  # fmt: skip


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON as :func:`write_text` does."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically. Parent folders are created."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )
