"""Ways to run the DNNs of a set concurrently: one table entry per condition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from multi_dnn_ros.common.errors import UsageError

if TYPE_CHECKING:
    import torch

#: processes: one per DNN. shared_queue: the paper's threads. engine: this package's.
Layout = Literal["processes", "shared_queue", "engine"]
BASELINE = "ori_mp"
#: Alignment of ranks: the paper uses the ranks that the ratio gives; ours are multiples suited to the arithmetic units.
PAPER_RANKS = 1


@dataclass(frozen=True)
class Condition:
    """One way to run a set.

    execution: `eager`; `compile`: torch.compile with reduce-overhead; `auto` or another backend of the engine.
    precision: for a GPU; a CPU computes in fp32. decomposed: alignment of the ranks; None: the original network.
    one_job: each DNN as a single job, instead of --jobs. batched: all DNNs of one network form one DNN with as many
    cameras, batched into one inference. optional: measured only on request.
    """

    name: str
    text: str
    layout: Layout
    execution: str = "eager"
    precision: str = "fp32"
    decomposed: int | None = None
    one_job: bool = False
    batched: bool = False
    optional: bool = False

    @property
    def cuda_only(self) -> bool:
        """Whether it is meaningful on a GPU only."""
        return self.layout == "engine" and (self.precision != "fp32" or self.execution == "inductor")


_BATCHED = "cameras share the weights of a network and run as one batch"
_ALL = (
    Condition(BASELINE, "the paper's baseline Ori.(MP): one process per DNN, eager", "processes"),
    Condition("dcomp_mp", "the paper's Dcomp.(MP): the same, decomposed", "processes", decomposed=PAPER_RANKS),
    Condition(
        "dcomp_mt", "the paper's proposal Dcomp.(MT) in Python: threads, a shared queue of jobs, eager, decomposed",
        "shared_queue", decomposed=PAPER_RANKS,
    ),
    Condition("ours", "this package's engine and backend", "engine", "auto"),
    Condition("ours_dcomp", "the same, decomposed", "engine", "auto", decomposed=8),
    Condition("ours_fp16", "this package's engine at fp16", "engine", "auto", "fp16"),
    Condition("ours_dcomp_fp16", "the same, decomposed", "engine", "auto", "fp16", 32),
    Condition("compile_mp", "one process per DNN, torch.compile with reduce-overhead, fp16", "processes", "compile",
              "fp16"),
    Condition("ours_one_job", "as ours, each DNN as a single job", "engine", "auto", one_job=True, optional=True),
    Condition("ours_fp16_one_job", "as ours_fp16, each DNN as a single job", "engine", "auto", "fp16", one_job=True,
              optional=True),
    Condition("ours_inductor", "with Inductor's kernels, fp16", "engine", "inductor", "fp16", optional=True),
    Condition("ours_batched_fp16", f"{_BATCHED}, fp16", "engine", "auto", "fp16", batched=True, optional=True),
    Condition("ours_batched_dcomp", f"{_BATCHED}, decomposed", "engine", "auto", "fp32", 8, batched=True,
              optional=True),
    Condition("ours_batched_inductor", f"{_BATCHED}, fp16, Inductor", "engine", "inductor", "fp16", batched=True,
              optional=True),
    Condition("ours_batched_inductor_dcomp", "the same, decomposed", "engine", "inductor", "fp16", 32, batched=True,
              optional=True),
)  # fmt: skip
CONDITIONS: dict[str, Condition] = {condition.name: condition for condition in _ALL}


def choose_conditions(names: Sequence[str], device: torch.device) -> list[Condition]:
    """The named conditions; by default those meaningful on the device, without the optional ones. Raises UsageError.

    On a CPU torch.compile is measured only on request: it needs a C++ compiler and takes minutes.
    """
    on_gpu = device.type == "cuda"
    for name in names:
        if name not in CONDITIONS:
            raise UsageError(f"--conditions has '{name}'; allowed: {', '.join(CONDITIONS)}")
        if CONDITIONS[name].cuda_only and not on_gpu:
            raise UsageError(f"--conditions has '{name}', which needs a GPU; the device is {device}")
    if names:
        return [CONDITIONS[name] for name in dict.fromkeys(names)]
    usual = [condition for condition in _ALL if not condition.optional]
    return [it for it in usual if on_gpu or not (it.cuda_only or it.execution == "compile")]


def precision_of(condition: Condition, device: torch.device) -> str:
    """The condition's precision on `device`. CPUs compute in fp32: half precision is not faster there."""
    return condition.precision if device.type == "cuda" else "fp32"
