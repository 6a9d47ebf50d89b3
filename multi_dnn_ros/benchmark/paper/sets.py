"""The sets of DNNs that run concurrently, as in the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from multi_dnn_ros.common.errors import UsageError


@dataclass(frozen=True)
class Network:
    """One DNN. builder: torchvision's. side: of its square input, pixels. label: the paper's name.

    ratio: ranks relative to channels, chosen so that the reduction of MACs is the paper's (0.35 if the paper states
    none).
    """

    builder: str
    label: str
    side: int = 224
    ratio: float = 0.35


@dataclass(frozen=True)
class DnnSet:
    """DNNs that run concurrently, each with its own weights. networks: equal ones must be adjacent."""

    name: str
    networks: tuple[Network, ...]

    def __post_init__(self) -> None:
        grouped = tuple(network for network, count in self.kinds.items() for _ in range(count))
        if grouped != self.networks:
            raise ValueError(f"set {self.name}: equal networks must be adjacent")

    @property
    def kinds(self) -> dict[Network, int]:
        """Number of DNNs of each network, in order."""
        return {network: self.networks.count(network) for network in dict.fromkeys(self.networks)}

    def describe(self) -> str:
        return " + ".join(f"{count} {network.builder}" for network, count in self.kinds.items())


_VGG = Network("vgg16", "VGG", ratio=0.328)
_RES = Network("resnet152", "Res", ratio=0.375)
_INCEPTION = Network("inception_v3", "Inception", side=299, ratio=0.312)
_REGY = Network("regnet_y_32gf", "RegY", ratio=0.4)
_ALEX = Network("alexnet", "Alex")
_SQUEEZE = Network("squeezenet1_0", "Squeeze")
_TINY_RES = Network("resnet18", "Res18", side=64, ratio=0.375)
_TINY_SQUEEZE = Network("squeezenet1_1", "Squeeze", side=64)


def _times(network: Network, count: int) -> DnnSet:
    return DnnSet(f"{network.builder}_x{count}", (network,) * count)


_ALL = (
    DnnSet("small", (_TINY_RES, _TINY_RES, _TINY_SQUEEZE)),
    _times(_VGG, 8),
    _times(_RES, 8),
    _times(_INCEPTION, 8),
    _times(_REGY, 7),
    DnnSet("mixed", (_VGG,) * 3 + (_RES,) + (_INCEPTION,) * 2 + (_REGY,) * 2),
    *(_times(network, count) for network in (_ALEX, _SQUEEZE, _VGG, _REGY) for count in (1, 6)),
)
SETS: dict[str, DnnSet] = {dnns.name: dnns for dnns in _ALL}
#: Names of the sets in figures and tables of the paper.
FIGURES: dict[str, tuple[str, ...]] = {
    "table1": tuple(dnns.name for dnns in _ALL if dnns.name.endswith(("_x1", "_x6"))),
    "fig5": ("vgg16_x8", "resnet152_x8", "inception_v3_x8", "regnet_y_32gf_x7"),
    "fig6": ("mixed",),
}


def choose_sets(names: Sequence[str]) -> list[DnnSet]:
    """The named sets, or those of a figure, without duplicates. Raises UsageError."""
    chosen: dict[str, DnnSet] = {}
    for name in names:
        if name not in SETS and name not in FIGURES:
            raise UsageError(f"--set is '{name}'; allowed: {', '.join((*FIGURES, *SETS))}")
        for set_name in FIGURES.get(name, (name,)):
            chosen[set_name] = SETS[set_name]
    return list(chosen.values())
