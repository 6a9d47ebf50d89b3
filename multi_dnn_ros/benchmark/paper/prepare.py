"""Prepares the DNNs of one process for a condition and returns the loop that runs them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from multi_dnn_ros.backends import Backend, Shared, Stage, Tensors
from multi_dnn_ros.backends.batches import prepare_batches, repeat_inputs
from multi_dnn_ros.backends.gates import Gate
from multi_dnn_ros.backends.precision import PRECISIONS
from multi_dnn_ros.benchmark.paper.conditions import Condition, precision_of
from multi_dnn_ros.benchmark.paper.loops import (
    EngineLoop,
    Loop,
    OneDnnLoop,
    SharedQueueLoop,
    make_batched_task,
    make_task,
    no_outputs,
)
from multi_dnn_ros.benchmark.paper.networks import example_image, make_network
from multi_dnn_ros.benchmark.paper.partition import Partition
from multi_dnn_ros.benchmark.paper.sets import Network
from multi_dnn_ros.common.reporting import cpu_count
from multi_dnn_ros.engine import DnnTask
from multi_dnn_ros.graph.cut import cut_module
from multi_dnn_ros.pipeline.choices import choose_backend

#: Calls before measuring: libraries select algorithms, compilers compile.
_WARM_UP_CALLS = 4


@dataclass(frozen=True)
class Work:
    """The work of one process; picklable.

    networks: its DNNs. device: PyTorch's name. sms: its share of the GPU. tf32: whether fp32 may be computed in TF32
    where PyTorch's defaults do so. jobs: used if the condition leaves the number open. cpu_threads: per operation.
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


@dataclass(frozen=True)
class Built:
    """One network before it is moved to the device. count: how many DNNs with this network the process runs.

    module, inputs: on the CPU; float32 if a backend will cast them, otherwise in the condition's precision. chains: by
    batch size, the module cut into jobs; empty if it runs as a whole.
    """

    network: Network
    count: int
    module: nn.Module
    inputs: Tensors
    chains: dict[int, tuple[nn.Module, ...]]


def build(work: Work) -> list[Built]:
    """All preparation that needs no device, in one thread, because many processes do it at the same time. Raises
    CommandError.
    """
    torch.set_num_threads(1)
    return [_build(network, work) for network in dict.fromkeys(work.networks)]


def make_loop(work: Work, built: Sequence[Built]) -> Loop:
    """Move to the device, compile, capture, warm up. Sets PyTorch's threads and TF32 for the process."""
    torch.set_num_threads(work.cpu_threads if work.condition.layout == "processes" else cpu_count())
    if not work.tf32:
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
    partition = Partition(torch.device(work.device), work.sms)
    if work.condition.layout == "processes":
        loop: Loop = _one_dnn(work, built[0], partition)
    elif work.condition.layout == "shared_queue":
        loop = SharedQueueLoop(*_make_chains(work, built, partition), partition)
    else:
        loop = EngineLoop(_tasks(work, built, partition), partition)
    torch.set_num_threads(work.cpu_threads)
    return loop


def _make_chains(
    work: Work, built: Sequence[Built], partition: Partition
) -> tuple[list[tuple[Stage, ...]], list[Tensors]]:
    """The prepared stages of each DNN and its input on the device, in the order of `built`."""
    chains: list[tuple[Stage, ...]] = []
    inputs: list[Tensors] = []
    with partition.own_stream():
        for each in built:
            for _ in range(each.count):
                chains.append(_prepared(work, each, partition.device))
                inputs.append(tuple(tensor.to(partition.device) for tensor in each.inputs))
        partition.synchronize()
    return chains, inputs


def _tasks(work: Work, built: Sequence[Built], partition: Partition) -> list[DnnTask]:
    """One DNN per camera, or one DNN per network for all cameras."""
    names = [f"dnn{number}" for number in range(len(work.networks))]
    tasks = []
    if not work.condition.batched:
        for each in built:
            for _ in range(each.count):
                shared = _shared(partition)
                with partition.own_stream():
                    chain = _prepared(work, each, partition.device, shared)
                    inputs = tuple(tensor.to(partition.device) for tensor in each.inputs)
                    partition.synchronize()
                tasks.append(make_task(names.pop(0), {1: chain}, inputs, partition, shared.gate))
        return tasks
    for each in built:
        cameras, names = names[: each.count], names[each.count :]
        backend, tolerance = _backend(work, partition.device)
        shared = _shared(partition)
        with partition.own_stream():
            ready = prepare_batches(backend, each.chains, each.inputs, partition.device, tolerance, shared)
            inputs = tuple(tensor.to(partition.device) for tensor in each.inputs)
            partition.synchronize()
        tasks.append(make_batched_task(each.network.builder, cameras, ready, inputs, partition, shared.gate))
    return tasks


def _build(network: Network, work: Work) -> Built:
    condition = work.condition
    module = make_network(network, alignment=condition.decomposed, artifacts=work.artifacts, seed=work.seed)
    image = example_image(network, work.seed)
    as_a_whole = condition.layout == "processes"
    if as_a_whole:
        dtype = PRECISIONS[precision_of(condition, torch.device(work.device))].dtype
        layout = torch.channels_last if condition.execution == "compile" else torch.contiguous_format
        module = module.to(dtype).to(memory_format=layout)  # type: ignore[call-overload]
        image = image.to(dtype).to(memory_format=layout)
    count = work.networks.count(network)
    chains: dict[int, tuple[nn.Module, ...]] = {}
    if not as_a_whole:
        jobs, fold = 1 if condition.one_job else work.jobs, condition.execution != "eager"
        for size in sorted({1, count if condition.batched else 1}):
            chains[size] = tuple(cut_module(module, repeat_inputs((image,), size), jobs, fold_batch_norm=fold))
    return Built(network, count, module, (image,), chains)


def _shared(partition: Partition) -> Shared:
    """For one DNN of the engine."""
    return Shared(gate=Gate(), reduce=no_outputs) if partition.device.type == "cuda" else Shared()


def _prepared(work: Work, built: Built, device: torch.device, shared: Shared | None = None) -> tuple[Stage, ...]:
    """One DNN with its own weights, prepared by the condition's backend. shared: of a DNN of the engine."""
    backend, _ = _backend(work, device, single_launch=shared is not None)
    return backend.prepare(copy.deepcopy(built.chains[1]), built.inputs, device, shared)


def _backend(work: Work, device: torch.device, *, single_launch: bool = True) -> tuple[Backend, float]:
    """The condition's backend, and the tolerance of its precision."""
    execution = work.condition.execution
    # fp32 follows the process's TF32 setting, as in the conditions without a backend.
    precision = precision_of(work.condition, device)
    name = "auto" if precision == "fp32" or execution == "eager" else precision
    return choose_backend(execution, device, name, single_launch=single_launch), PRECISIONS[name].tolerance(device)


def _one_dnn(work: Work, built: Built, partition: Partition) -> Loop:
    """One DNN as one call, eager or compiled."""
    condition = work.condition
    streams = partition.main_stream()
    streams.__enter__()  # never exited: the only computing thread of this process
    call = _one_call(work, built, partition)
    # reduce-overhead graphs were recorded under no_grad; our graphs write into inference tensors.
    mode = torch.no_grad if condition.execution == "compile" and partition.sms is None else torch.inference_mode
    with mode():
        for _ in range(_WARM_UP_CALLS):
            call()
            partition.synchronize()
    return OneDnnLoop(call, partition.synchronize, mode)


def _one_call(work: Work, built: Built, partition: Partition) -> Callable[[], object]:
    """A call that issues an inference.

    reduce-overhead captures on its own streams, outside of any share of the SMs. On a share, compile and then capture
    on a stream of the share instead.
    """
    device, execution = partition.device, work.condition.execution
    inputs = tuple(tensor.to(device) for tensor in built.inputs)
    module = copy.deepcopy(built.module).to(device)
    if execution == "compile" and partition.sms is not None:
        (stage,) = choose_backend("auto", device).prepare([_Compiled(module)], inputs, device)
        return lambda: stage(inputs)
    whole = torch.compile(module, mode="reduce-overhead") if execution == "compile" else module
    return lambda: whole(*inputs)


class _Compiled(nn.Module):
    """A compiled module as a stage."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = torch.compile(module)

    def forward(self, carried: Tensors) -> Tensors:
        return (self.module(*carried),)
