"""Ways to run the DNNs of a set concurrently: one table entry per condition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from multi_dnn_ros.common.errors import UsageError

if TYPE_CHECKING:
    import torch

#: processes: one per DNN. shared_queue: the paper's threads. engine: this package's. in_turn: one thread for all.
Layout = Literal["processes", "shared_queue", "engine", "in_turn"]
BASELINE = "ori_mp"
ALTERNATIVE = "compile_mp"

#: Alignment of ranks: the paper uses the ranks that the ratio gives; ours are multiples suited to the arithmetic units.
PAPER_RANKS = 1


@dataclass(frozen=True)
class Condition:
    """One way to run a set.

    execution: `eager`; `compile`: torch.compile with reduce-overhead; `auto` or another backend of the engine.
    precision, channels_last: for a GPU; a CPU computes in fp32. The engine's backends choose the memory format
    themselves.
    decomposed: alignment of the ranks; None: the original network. jobs: jobs per DNN; 0: the value of --jobs.
    batched: all DNNs of one network form one DNN with as many cameras, batched into one inference.
    ordered: the shorter a DNN's operations, the higher its priority and that of its CUDA stream.
    cuda_only: meaningful on a GPU only. optional: measured only on request.
    """

    name: str
    label: str
    text: str
    layout: Layout
    execution: str = "eager"
    precision: str = "fp32"
    channels_last: bool = False
    decomposed: int | None = None
    jobs: int = 1
    batched: bool = False
    ordered: bool = False
    cuda_only: bool = False
    optional: bool = False


_ALL = (
    Condition(BASELINE, "Ori.(MP)", "the paper's baseline: one process per DNN, eager", "processes"),
    Condition("dcomp_mp", "Dcomp.(MP)", "one process per DNN, eager, decomposed", "processes", decomposed=PAPER_RANKS),
    Condition(
        "dcomp_mt",
        "Dcomp.(MT)",
        "the paper's proposal as Python code: threads, a shared queue of jobs, eager, decomposed",
        "shared_queue",
        decomposed=PAPER_RANKS,
        jobs=0,
    ),
    Condition("ours", "ours", "this package's engine and backend", "engine", "auto", jobs=0),
    Condition("ours_one_job", "ours, 1 job", "the same, each DNN as a single job", "engine", "auto"),
    Condition(
        "ours_dcomp", "ours, Dcomp.", "this package's engine, decomposed", "engine", "auto", decomposed=8, jobs=0
    ),
    Condition(
        "ours_fp16",
        "ours fp16",
        "this package's engine at fp16",
        "engine",
        "auto",
        "fp16",
        jobs=0,
        cuda_only=True,
    ),
    Condition(
        "ours_fp16_one_job",
        "ours fp16, 1 job",
        "the same, each DNN as a single job",
        "engine",
        "auto",
        "fp16",
        cuda_only=True,
    ),
    Condition(
        "ours_dcomp_fp16",
        "ours fp16, Dcomp.",
        "this package's engine at fp16, decomposed",
        "engine",
        "auto",
        "fp16",
        decomposed=32,
        jobs=0,
        cuda_only=True,
    ),
    Condition(
        "ours_inductor",
        "ours Inductor fp16",
        "this package's engine with Inductor's kernels at fp16",
        "engine",
        "inductor",
        "fp16",
        jobs=0,
        cuda_only=True,
        optional=True,
    ),
    Condition(
        "ours_batched_fp16",
        "ours batched fp16",
        "this package's engine at fp16; DNNs of one network share its weights and run as one batch",
        "engine",
        "auto",
        "fp16",
        jobs=0,
        batched=True,
        cuda_only=True,
        optional=True,
    ),
    Condition(
        "ours_batched_dcomp",
        "ours batched, Dcomp.",
        "the same at fp32, decomposed",
        "engine",
        "auto",
        decomposed=8,
        jobs=0,
        batched=True,
        optional=True,
    ),
    Condition(
        "ours_batched_dcomp_inductor",
        "ours batched Inductor, Dcomp.",
        "the same with Inductor's kernels",
        "engine",
        "inductor",
        decomposed=8,
        jobs=0,
        batched=True,
        cuda_only=True,
        optional=True,
    ),
    Condition(
        "ours_batched_inductor",
        "ours batched Inductor fp16",
        "shared weights and batches with Inductor's kernels at fp16",
        "engine",
        "inductor",
        "fp16",
        jobs=0,
        batched=True,
        cuda_only=True,
        optional=True,
    ),
    Condition(
        "ours_batched_inductor_dcomp",
        "ours batched Inductor fp16, Dcomp.",
        "the same, decomposed, which is faster for batches, whose layers are larger than those of single images",
        "engine",
        "inductor",
        "fp16",
        decomposed=32,
        jobs=0,
        batched=True,
        cuda_only=True,
        optional=True,
    ),
    Condition(
        "ours_tuned",
        "ours tuned",
        "shared weights, batches and Inductor at fp16; DNNs with short operations have priority on the GPU",
        "engine",
        "inductor",
        "fp16",
        jobs=0,
        batched=True,
        ordered=True,
        cuda_only=True,
        optional=True,
    ),
    Condition(
        "ours_tuned_dcomp",
        "ours tuned, Dcomp.",
        "the same, decomposed",
        "engine",
        "inductor",
        "fp16",
        decomposed=32,
        jobs=0,
        batched=True,
        ordered=True,
        cuda_only=True,
        optional=True,
    ),
    Condition(
        ALTERNATIVE,
        "compile(MP)",
        "the usual alternative: one process per DNN, torch.compile with reduce-overhead, fp16",
        "processes",
        "compile",
        "fp16",
        channels_last=True,
    ),
    Condition("one_thread", "one thread", "all DNNs one after another in one thread, eager", "in_turn"),
    Condition(
        "one_thread_graph",
        "one thread, graph",
        "the same, each DNN as one job of the default backend",
        "in_turn",
        "auto",
    ),
    Condition(
        "one_thread_graph_fp16",
        "one thread, graph fp16",
        "the same at fp16",
        "in_turn",
        "auto",
        "fp16",
        cuda_only=True,
        optional=True,
    ),
)
CONDITIONS: dict[str, Condition] = {condition.name: condition for condition in _ALL}


def choose_conditions(names: Sequence[str], device: torch.device) -> list[Condition]:
    """The named conditions; by default those meaningful on the device. Raises UsageError.

    On a CPU torch.compile is measured only on request: it needs a C++ compiler and takes minutes. The same holds for
    Inductor with freezing on any device.
    """
    for name in names:
        if name not in CONDITIONS:
            raise UsageError(f"--conditions has '{name}'; allowed: {', '.join(CONDITIONS)}")
        if CONDITIONS[name].cuda_only and device.type != "cuda":
            raise UsageError(f"--conditions has '{name}', which needs a GPU; the device is {device}")
    if names:
        return [CONDITIONS[name] for name in dict.fromkeys(names)]
    return [
        condition
        for condition in _ALL
        if not condition.optional
        and (device.type == "cuda" or not (condition.cuda_only or condition.execution == "compile"))
    ]


def precision_of(condition: Condition, device: torch.device) -> str:
    """The condition's precision on `device`. CPUs compute in fp32: half precision is not faster there."""
    return condition.precision if device.type == "cuda" else "fp32"
