"""The sets of DNNs that run concurrently, as in the paper, and the conditions: the ways to run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from multi_dnn_ros.common.errors import UsageError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Network:
    """One DNN. builder: torchvision's. side: of its square input, pixels. ratio: ranks relative to channels, chosen so
    that the reduction of MACs is the paper's (0.35 if the paper states none).
    """

    builder: str
    side: int = 224
    ratio: float = 0.35


#: DNNs that run concurrently, each with its own weights; equal ones are adjacent.
DnnSet = tuple[Network, ...]

_VGG = Network("vgg16", ratio=0.328)
_RES = Network("resnet152", ratio=0.375)
_INCEPTION = Network("inception_v3", side=299, ratio=0.312)
_REGY = Network("regnet_y_32gf", ratio=0.4)
_SMALL_RES, _SMALL_SQUEEZE = Network("resnet18", side=64, ratio=0.375), Network("squeezenet1_1", side=64)
_TABLE1 = (Network("alexnet"), Network("squeezenet1_0"), _VGG, _REGY)
SETS: dict[str, DnnSet] = {
    "small": (_SMALL_RES, _SMALL_RES, _SMALL_SQUEEZE),
    "vgg16_x8": (_VGG,) * 8,
    "resnet152_x8": (_RES,) * 8,
    "inception_v3_x8": (_INCEPTION,) * 8,
    "regnet_y_32gf_x7": (_REGY,) * 7,
    "background": (_RES,) * 3 + (_VGG,) * 3,
    "mixed": (_VGG,) * 3 + (_RES,) + (_INCEPTION,) * 2 + (_REGY,) * 2,
    **{f"{network.builder}_x{count}": (network,) * count for network in _TABLE1 for count in (1, 6)},
}
#: The important DNNs of `--important`.
IMPORTANT = {network.builder: network for network in (_RES, Network("resnet50"), _VGG, _SMALL_RES)}
#: Names of the sets in figures and tables of the paper.
FIGURES: dict[str, tuple[str, ...]] = {
    "table1": tuple(f"{network.builder}_x{count}" for network in _TABLE1 for count in (1, 6)),
    "fig5": ("vgg16_x8", "resnet152_x8", "inception_v3_x8", "regnet_y_32gf_x7"),
    "fig6": ("mixed",),
}


def choose_sets(names: Sequence[str]) -> dict[str, DnnSet]:
    """The sets of these names of SETS and FIGURES, by name."""
    return {chosen: SETS[chosen] for name in names for chosen in FIGURES.get(name, (name,))}


#: processes: one per DNN. engine: this package's.
Layout = Literal["processes", "engine"]
BASELINE = "ori_mp"
#: Alignment of ranks: the paper uses the ranks that the ratio gives; ours are multiples suited to the arithmetic units.
PAPER_RANKS = 1


@dataclass(frozen=True)
class Condition:
    """One way to run a set.

    execution: `eager`; `compile`: torch.compile with reduce-overhead; `auto` or another backend of the engine.
    precision: for a GPU; a CPU computes in fp32. decomposed: alignment of the ranks; None: the original network.
    batched: all DNNs of one network form one DNN with as many cameras, batched into one inference. optional: measured
    only on request.
    """

    name: str
    text: str
    layout: Layout
    execution: str = "eager"
    precision: str = "fp32"
    decomposed: int | None = None
    batched: bool = False
    optional: bool = False

    @property
    def cuda_only(self) -> bool:
        """Whether it is meaningful on a GPU only."""
        return self.layout == "engine" and (self.precision != "fp32" or self.execution == "inductor")

    def precision_on(self, device: torch.device) -> str:
        """Its precision on `device`. CPUs compute in fp32: half precision is not faster there."""
        return self.precision if device.type == "cuda" else "fp32"


_BATCHED = "cameras share the weights of a network and run as one batch"
_ALL = (
    Condition(BASELINE, "the paper's baseline Ori.(MP): one process per DNN, eager", "processes"),
    Condition("dcomp_mp", "the paper's Dcomp.(MP): the same, decomposed", "processes", decomposed=PAPER_RANKS),
    Condition("ours", "this package's engine and backend", "engine", "auto"),
    Condition("ours_dcomp", "the same, decomposed", "engine", "auto", decomposed=8),
    Condition("ours_fp16", "this package's engine at fp16", "engine", "auto", "fp16"),
    Condition("ours_dcomp_fp16", "the same, decomposed", "engine", "auto", "fp16", 32),
    Condition("compile_mp", "one process per DNN, torch.compile with reduce-overhead, fp16", "processes", "compile",
              "fp16"),
    Condition("ours_inductor", "with Inductor's kernels, fp16", "engine", "inductor", "fp16", optional=True),
    Condition("ours_batched_fp16", f"{_BATCHED}, fp16", "engine", "auto", "fp16", batched=True, optional=True),
    Condition("ours_batched_dcomp", f"{_BATCHED}, decomposed", "engine", "auto", "fp32", 8, batched=True,
              optional=True),
    Condition("ours_batched_inductor", f"{_BATCHED}, fp16, Inductor", "engine", "inductor", "fp16", batched=True,
              optional=True),
)  # fmt: skip
CONDITIONS: dict[str, Condition] = {condition.name: condition for condition in _ALL}


def choose_conditions(names: Sequence[str], device: torch.device, sms: int | None = None) -> list[Condition]:
    """The conditions of these names of CONDITIONS; by default those that are meaningful on the device and not optional.
    Raises UsageError.

    On a CPU torch.compile is measured only on request: it needs a C++ compiler and takes minutes. On a share of the SMs
    it cannot be: reduce-overhead captures on streams of its own.
    """
    on_gpu = device.type == "cuda"
    for name in names:
        if CONDITIONS[name].cuda_only and not on_gpu:
            raise UsageError(f"--conditions has '{name}', which needs a GPU; the device is {device}")
        if CONDITIONS[name].execution == "compile" and sms is not None:
            raise UsageError(f"--conditions has '{name}', which runs on a whole GPU only; --sms is {sms}")
    if names:
        return [CONDITIONS[name] for name in dict.fromkeys(names)]
    compiles = on_gpu and sms is None
    usual = [it for it in _ALL if not it.optional and (on_gpu or not it.cuda_only)]
    return [it for it in usual if compiles or it.execution != "compile"]
