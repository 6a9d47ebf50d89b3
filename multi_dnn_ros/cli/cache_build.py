"""Fills the caches that configuring reads: configures the DNNs as the node does, and then again from the caches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from multi_dnn_ros.backends.inductor import cache_directory
from multi_dnn_ros.backends.onnx_providers import COMPILED
from multi_dnn_ros.common.resources import cache_folder
from multi_dnn_ros.pipeline.measured_backend import CHOICES, MEASURED
from multi_dnn_ros.planning.layer_times import LAYER_TIMES
from multi_dnn_ros.serving.host import Host, Progress
from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig

#: Time and size of a file, by path.
Snapshot = Mapping[Path, tuple[int, int]]


@dataclass(frozen=True)
class CacheKind:
    """One cache. what: its content. path: its folder, or its file."""

    what: str
    path: Path


@dataclass(frozen=True)
class Made:
    """One cache after the build. files, size_bytes: number and size of the files it wrote. total_bytes: size of the
    whole cache.
    """

    kind: CacheKind
    files: int
    size_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Built:
    """Result of build_caches(). first_s, again_s: times to configure, before and after the caches are filled.

    by_dnn_s: the same two times for each DNN, summed over its devices, without the start of the processes and without
    work that is done once for all DNNs of a device. caches: in the order of kinds().
    """

    first_s: float
    again_s: float
    by_dnn_s: Mapping[str, tuple[float, float]]
    caches: tuple[Made, ...]


def kinds() -> tuple[CacheKind, ...]:
    """The caches that configuring reads and writes."""
    folder = cache_folder()
    return (
        CacheKind("durations of configuring, for the progress", folder / "configure"),
        CacheKind("int8 networks (calibration)", folder / "int8"),
        CacheKind("checks of .onnx files", folder / "onnx"),
        CacheKind("numbers of streams (branches)", folder / "branches"),
        CacheKind("measured siblings (merge_siblings)", folder / "siblings"),
        CacheKind("layer times (blocking_ms)", LAYER_TIMES.folder),
        CacheKind("measured backends", CHOICES.folder),
        CacheKind("networks compiled by execution providers (TensorRT engines, OpenVINO)", COMPILED.folder),
        CacheKind("kernels compiled by Inductor and Triton", cache_directory()),
    )


def build_caches(
    config: NodeConfig, make_host: Callable[[], Host], report: Callable[[str], None], clock: Callable[[], float]
) -> Built:
    """Configure twice, each time in new processes: first with the backends of DNNs with `auto` measured, then reading
    the choice, as the node will. Raises what Host.configure raises.

    make_host: a host for `config`. report: called with a line per step. clock: seconds.
    """
    before = {kind.path: snapshot(kind.path) for kind in kinds()}
    measured = config.model_copy(update={"dnns": {name: _measured(dnn) for name, dnn in config.dnns.items()}})
    first_s, first = _configure(measured, make_host, report, clock)
    made = tuple(_made(kind, before[kind.path]) for kind in kinds())
    report("configuring again, from the caches")
    again_s, again = _configure(config, make_host, lambda line: None, clock)
    by_dnn = {name: (first[name], again.get(name, 0.0)) for name in first}
    return Built(first_s, again_s, by_dnn, made)


def _measured(settings: DnnConfig) -> DnnConfig:
    return settings.model_copy(update={"backend": MEASURED}) if settings.backend == "auto" else settings


def _configure(
    config: NodeConfig, make_host: Callable[[], Host], report: Callable[[str], None], clock: Callable[[], float]
) -> tuple[float, dict[str, float]]:
    """Configure once. Returns the seconds in total and by DNN."""
    begin = clock()
    by_dnn_s: dict[str, float] = {}
    last, last_s = "", begin  # DNN and time of the latest step

    def progress(step: Progress) -> None:
        nonlocal last, last_s
        now = clock()
        report(f"{now - begin:7.1f} s  {step.text}")
        if step.dnn:  # the time since the latest step, unless this is the first step of its device
            by_dnn_s[step.dnn] = by_dnn_s.get(step.dnn, 0.0) + (now - last_s if last else 0.0)
        last, last_s = step.dnn, now

    host = make_host()
    try:
        host.configure(config, progress)
        taken_s = clock() - begin
    finally:
        host.close()
    return taken_s, {name: by_dnn_s[name] for name in config.dnns if name in by_dnn_s}


def snapshot(path: Path) -> Snapshot:
    """Time and size of the file, or of all files below the folder; `path` need not exist."""
    found = {}
    for file in path.rglob("*") if path.is_dir() else (path,):
        try:
            status = file.stat()
        except OSError:  # removed meanwhile
            continue
        if file.is_file():
            found[file] = (status.st_mtime_ns, status.st_size)
    return found


def _made(kind: CacheKind, before: Snapshot) -> Made:
    after = snapshot(kind.path)
    fresh = [size for file, (changed, size) in after.items() if before.get(file) != (changed, size)]
    total = sum(size for _, size in after.values())
    return Made(kind, len(fresh), sum(fresh), total)


def seconds() -> float:
    """The clock of build_caches()."""
    return time.perf_counter()
