"""Provenance of results, and functions that format and write them."""

from __future__ import annotations

import csv
import io
import json
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multi_dnn_ros import __version__
from multi_dnn_ros.common.atomic_files import atomic_write
from multi_dnn_ros.common.environment import cpu_count as cpu_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Packages whose versions affect measurements.
PACKAGES = ("torch", "torchvision", "onnxruntime", "numpy", "opencv-python-headless", "rosbags")


def provenance() -> dict[str, Any]:
    """Machine, versions and the command of this process."""
    return {
        "command": f"{_program()} {shlex.join(sys.argv[1:])}".rstrip(),
        "machine": {
            "cpu": cpu_model(),
            "cores": cpu_count(),
            "system": platform.platform(),
            "gpu": _gpu(),
        },
        "versions": {"multi_dnn_ros": __version__, "python": platform.python_version(), **_versions()},
    }


def _program() -> str:
    """The command that starts this process."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    module = spec.name.removesuffix(".__main__") if spec is not None else ""
    tool = module.startswith("multi_dnn_ros.") and module != "multi_dnn_ros.cli.main"
    return f"python -m {module}" if tool else "multi-dnn"


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


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the same columns to a CSV file, as :func:`write_text` does."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0] if rows else (), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def write_figure(path: Path, figure: Figure) -> None:
    """Write a PNG atomically."""
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")


def with_change(value: float | None, first: float | None, digits: int = 3) -> str:
    """Table cell with a value and its relative change from the first row: `0.359 (-45.3%)`.

    value: None gives a dash. first: None for the first row itself. No change is shown for a first value of 0.
    """
    if value is None:
        return "-"
    return f"{value:.{digits}f}" + (f" ({rounded(value / first - 1, 3):+.1%})" if first else "")


def rounded(value: float, digits: int) -> float:
    """`value` rounded for display; never -0.0, which would be shown with its sign."""
    return round(value, digits) + 0.0


def three_digits(value: float) -> str:
    """Format with three significant digits, from 999.5 on as a whole number: 0.0123, 4.56, 789, 12346."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"


def counts_text(counts: Mapping[str, int]) -> str:
    """Counts as text, such as `3 overwritten, 1 engine_lost`; `none` if there are none."""
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |" for line in lines
    )


def replace_between_markers(document: str, begin: str, end: str, text: str) -> str:
    """Return `document` with the text between the two markers replaced by `text`.

    Raises ValueError if a marker is missing.
    """
    head, found_begin, rest = document.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"the document needs the markers {begin} and {end}, in this order")
    return f"{head}{begin}\n{text}\n{end}{tail}"


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


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
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
