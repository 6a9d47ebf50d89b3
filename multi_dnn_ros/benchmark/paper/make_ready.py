"""From a condition and the DNNs of one process to a loop that runs them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.backends.precision import PRECISIONS
from multi_dnn_ros.benchmark.paper.conditions import Condition, precision_of
from multi_dnn_ros.benchmark.paper.loops import InTurn, Loop, ThroughEngine
from multi_dnn_ros.benchmark.paper.networks import example_image, make_network
from multi_dnn_ros.benchmark.paper.partition import Partition
from multi_dnn_ros.benchmark.paper.sets import Network
from multi_dnn_ros.benchmark.paper.shared_queue import SharedQueue
from multi_dnn_ros.models.cut import cut
from multi_dnn_ros.pipeline import choose_backend, cpu_count

#: Calls before anything is measured: libraries choose algorithms, compilers compile.
_WARM_UP_CALLS = 4
#: Ways to run that no backend of the engine makes ready, and that no backend casts to a precision.
_WITHOUT_BACKEND = ("eager", "compile")


@dataclass(frozen=True)
class Work:
    """What one process gets to do; everything in it can be sent to another process.

    networks: its DNNs. device: PyTorch's name. sms: its share of the GPU. tf32: whether fp32 may be computed in TF32
    where PyTorch's defaults do so. jobs: where the condition leaves their number open. cpu_threads: of one operation.
    """

    condition: Condition
    networks: tuple[Network, ...]
    device: str
    sms: int | None = None
    tf32: bool = True
    jobs: int = 8
    artifacts: Path | None = None
    seed: int = 0
    cpu_threads: int = 1


def make_loop(work: Work) -> Loop:
    """Build, compile, capture, warm up. Sets PyTorch's threads and TF32 for the process."""
    torch.set_num_threads(work.cpu_threads if work.condition.layout == "processes" else cpu_count())  # to build with
    if not work.tf32:
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
    partition = Partition(torch.device(work.device), work.sms)
    loop = _make[work.condition.layout](work, partition)
    torch.set_num_threads(work.cpu_threads)
    return loop


def dnn_of(network: Network, work: Work) -> tuple[nn.Module, Tensors]:
    """The module and its input on the CPU: float32 where a backend will cast them, else as the condition wants them."""
    condition = work.condition
    module = make_network(network, alignment=condition.decomposed, artifacts=work.artifacts, seed=work.seed)
    image = example_image(network, work.seed)
    if condition.execution not in _WITHOUT_BACKEND:
        return module, (image,)
    dtype = PRECISIONS[precision_of(condition, torch.device(work.device))].dtype
    layout = torch.channels_last if condition.channels_last else torch.contiguous_format
    cast = module.to(dtype).to(memory_format=layout)  # type: ignore[call-overload]
    return cast, (image.to(dtype).to(memory_format=layout),)


def _in_turn(work: Work, partition: Partition) -> Loop:
    """One thread: each DNN as one call, eager, compiled or made ready by a backend."""
    device, condition = partition.device, work.condition
    streams = partition.main_stream()
    streams.__enter__()  # for the rest of this thread's life: it is the process's only one that computes
    calls: list[Callable[[], object]] = []
    for network in work.networks:
        module, inputs = dnn_of(network, work)
        inputs = tuple(tensor.to(device) for tensor in inputs)
        if condition.execution == "eager":
            calls.append(_call(module.to(device), inputs))
        elif condition.execution == "compile" and partition.sms is None:
            calls.append(_call(torch.compile(module.to(device), mode="reduce-overhead"), inputs))
        else:
            calls.append(_stage_call(_whole(module, work, inputs, device), inputs))
    # The graphs of reduce-overhead were measured under no_grad; ours write into tensors of inference mode.
    mode = torch.no_grad if condition.execution == "compile" and partition.sms is None else torch.inference_mode
    with mode():
        for call in calls:
            for _ in range(_WARM_UP_CALLS):
                call()
                partition.synchronize()
    return InTurn(calls, partition.synchronize, mode)


def _call(module: Callable[..., object], inputs: Tensors) -> Callable[[], object]:
    return lambda: module(*inputs)


def _stage_call(stage: Stage, inputs: Tensors) -> Callable[[], object]:
    return lambda: stage(inputs)


def _whole(module: nn.Module, work: Work, inputs: Tensors, device: torch.device) -> Stage:
    """The DNN as one stage.

    reduce-overhead captures on streams of its own, outside of any share of the SMs; on a share the same is done by
    hand: compile, then capture on a stream of the share.
    """
    if work.condition.execution == "compile":
        (stage,) = choose_backend("auto", device).prepare([_Compiled(module.to(device))], inputs, device)
        return stage
    ((stage,),) = _instances(module, 1, work, inputs, device, jobs=1)
    return stage


class _Compiled(nn.Module):
    """A compiled module as a stage."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = torch.compile(module)

    def forward(self, carried: Tensors) -> Tensors:
        return (self.module(*carried),)


def _shared_queue(work: Work, partition: Partition) -> Loop:
    return SharedQueue(*make_chains(work, partition), partition)


def _engine(work: Work, partition: Partition) -> Loop:
    return ThroughEngine(*make_chains(work, partition), partition)


def make_chains(work: Work, partition: Partition) -> tuple[list[tuple[Stage, ...]], list[Tensors]]:
    """The stages of each DNN, made ready serially, and its input on the device.

    A network is built and cut once; each of its instances gets weights of its own. Same networks come one after
    another, in the order of their first.
    """
    device = partition.device
    chains: list[tuple[Stage, ...]] = []
    inputs: list[Tensors] = []
    with partition.own_stream():
        for network in dict.fromkeys(work.networks):
            module, image = dnn_of(network, work)
            count = work.networks.count(network)
            of_network = _instances(module, count, work, image, device, jobs=work.condition.jobs or work.jobs)
            chains.extend(of_network)
            inputs.extend(tuple(tensor.to(device) for tensor in image) for _ in of_network)
        partition.synchronize()
    return chains, inputs


def _instances(
    module: nn.Module, count: int, work: Work, inputs: Tensors, device: torch.device, *, jobs: int
) -> list[tuple[Stage, ...]]:
    """The network `count` times, cut into jobs and made ready by the condition's backend."""
    execution = work.condition.execution
    stages = cut(module, inputs, jobs, fold_batch_norm=execution != "eager")
    # fp32 is what the process is set to, with TF32 or without, as for the conditions that have no backend.
    precision = precision_of(work.condition, device)
    backend = choose_backend(execution, device, "auto" if precision == "fp32" or execution == "eager" else precision)
    return [backend.prepare(copy.deepcopy(stages), inputs, device) for _ in range(count)]


_make: dict[str, Callable[[Work, Partition], Loop]] = {
    "processes": _in_turn,
    "in_turn": _in_turn,
    "shared_queue": _shared_queue,
    "engine": _engine,
}
