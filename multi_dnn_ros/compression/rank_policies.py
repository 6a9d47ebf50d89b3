"""The policies of ``multi-dnn decompose --ranks`` that need only the weights: one table with names, help and options.

This module imports neither PyTorch nor SciPy, so that the command line can read the table for its help. The policy
`measured` is not in the table: it starts from the ranks of one of these and needs a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multi_dnn_ros.compression.ranks import RankPolicy, Rounding


@dataclass(frozen=True)
class Fraction:
    """The option of a policy: a number above 0, up to 1.

    name: of the option, with `_` for `-`, and of the value in reports. help: without the range and the default.
    """

    name: str
    default: float
    help: str


@dataclass(frozen=True)
class RankRequest:
    """What a policy is created for. fraction: value of its option; 1 without one. total_macs: of the whole network."""

    rounding: Rounding
    total_macs: int
    fraction: float = 1.0


@dataclass(frozen=True)
class RankPolicySpec:
    """One policy. summary: how it chooses the ranks, for the help. make: creates it. option: None: it has none."""

    summary: str
    make: Callable[[RankRequest], RankPolicy]
    option: Fraction | None = None


def _ratio(request: RankRequest) -> RankPolicy:
    from multi_dnn_ros.compression.ranks import Ratio

    return Ratio(request.fraction, request.rounding)


def _energy(request: RankRequest) -> RankPolicy:
    from multi_dnn_ros.compression.ranks import Energy

    return Energy(request.fraction, request.rounding)


def _evbmf(request: RankRequest) -> RankPolicy:
    from multi_dnn_ros.compression.ranks import Evbmf

    return Evbmf(request.rounding)


def _budget(request: RankRequest) -> RankPolicy:
    from multi_dnn_ros.compression.ranks import Budget

    return Budget(request.fraction, request.total_macs, request.rounding)


#: By value of --ranks. docs/decomposition.md has a row for each; a test compares them.
RANK_POLICIES: Mapping[str, RankPolicySpec] = {
    "ratio": RankPolicySpec(
        "the same fraction of the channels in every layer (--ratio)",
        _ratio,
        Fraction("ratio", 0.5, "rank divided by channels"),
    ),
    "energy": RankPolicySpec(
        "the ranks that keep a fraction of the sum of squared singular values (--energy)",
        _energy,
        Fraction("energy", 0.9, "fraction to keep"),
    ),
    "evbmf": RankPolicySpec(
        "the ranks that variational Bayesian matrix factorization finds above the noise; no option to set", _evbmf
    ),
    "budget": RankPolicySpec(
        "a given reduction of the network's MACs (--macs-cut), distributed so that the error is smallest",
        _budget,
        Fraction("macs_cut", 0.4, "fraction of the MACs to remove"),
    ),
}
