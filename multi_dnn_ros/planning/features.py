"""Layers, settings and loads as feature vectors for the linear model and the trees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from multi_dnn_ros.graph.operations import KINDS
from multi_dnn_ros.planning.samples import LOAD_KINDS, LayerCounts, Load, Setting

Matrix = NDArray[np.float64]
Question = tuple[LayerCounts, Setting, Load]

#: Features of the trees, in order; all are known before a layer runs.
TREE_FEATURES = (
    "arithmetic", "parameters", "bytes read", "bytes written", "intensity", "window", "groups",
    "input channels", "output channels", "pixels", "SMs", "load level", "oversubscription", "compute load",
    "memory load", "DNN load",
)  # fmt: skip
#: Base features of the linear model: milliseconds of arithmetic and of memory traffic at the device's limits, and one
#: launch.
_BASE = ("arithmetic at peak", "bytes at bandwidth", "launch")
#: Factors on each base feature: 1, and the two kinds of pressure of each kind of load.
_LOADS = ("alone", *(f"{kind} {how}" for kind in LOAD_KINDS[1:] for how in ("parallel", "oversubscribed")))
LINEAR_FEATURES = tuple(f"{base}, {load}" for load in _LOADS for base in _BASE)
#: Approximate minimum time of a layer; keeps the trees' target finite.
_FLOOR_MS = 1e-3


def linear_features(questions: Sequence[Question]) -> Matrix:
    """(len(questions), len(LINEAR_FEATURES)) matrix, nonnegative: base features times load factors."""
    base = np.array([[*_ideal(counts, setting), 1.0] for counts, setting, _ in questions]).reshape(-1, len(_BASE))
    factors = np.array([_load_factors(setting, load) for _, setting, load in questions]).reshape(-1, len(_LOADS))
    return np.asarray((factors[:, :, None] * base[:, None, :]).reshape(len(questions), -1))


def tree_features(questions: Sequence[Question], *, kinds: bool = True) -> Matrix:
    """(len(questions), len(TREE_FEATURES) + len(KINDS)) matrix.

    kinds: False omits the one-hot columns of the layer kinds.
    """
    rows = []
    for counts, setting, load in questions:
        moved = counts.bytes_read + counts.bytes_written
        row = [
            counts.flops, counts.parameters, counts.bytes_read, counts.bytes_written,
            counts.flops / moved if moved else 0.0, counts.window, counts.groups, counts.channels_in,
            counts.channels_out, counts.pixels, setting.sms, load.level, pressure(setting, load)[1],
            *(float(load.kind == kind and load.level > 0) for kind in LOAD_KINDS[1:]),
        ]  # fmt: skip
        rows.append(row + ([float(counts.kind == kind) for kind in KINDS] if kinds else []))
    return np.array(rows, dtype=np.float64).reshape(len(questions), -1)


def ideal_ms(questions: Sequence[Question]) -> Matrix:
    """(len(questions),) milliseconds at the device's limits; the trees predict the ratio of the real time to this."""
    return np.array([sum(_ideal(counts, setting)) + _FLOOR_MS for counts, setting, _ in questions])


def pressure(setting: Setting, load: Load) -> tuple[float, float]:
    """(load threads on free cores, load threads in excess of the cores), each divided by the number of cores.

    On a GPU: (1 if there is another stream, number of streams beyond that one). The kernels of a stream run one after
    another, and a layer's launch starts when one of them ends. With two or more other streams, another kernel is always
    waiting by then, so each further stream delays every launch by one more kernel: an additive cost, not a factor.
    """
    if not setting.cores:
        return float(min(load.level, 1)), float(max(0, load.level - 1))
    free = max(0, setting.cores - setting.threads)
    return min(load.level, free) / setting.cores, max(0, load.level - free) / setting.cores


def _ideal(counts: LayerCounts, setting: Setting) -> tuple[float, float]:
    moved = counts.bytes_read + counts.bytes_written
    return 1e3 * counts.flops / setting.flops_per_s, 1e3 * moved / setting.bytes_per_s


def _load_factors(setting: Setting, load: Load) -> list[float]:
    parallel, oversubscribed = pressure(setting, load)
    factors = [1.0]
    for kind in LOAD_KINDS[1:]:
        factors += [parallel, oversubscribed] if load.kind == kind else [0.0, 0.0]
    return factors
