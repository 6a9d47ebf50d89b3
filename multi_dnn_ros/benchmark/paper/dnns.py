"""The DNNs of one process: built, prepared for a condition, and put into the loop that runs them."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from multi_dnn_ros.backends import Shared, Stage, Tensors, green_contexts
from multi_dnn_ros.backends.batches import prepare_batches, repeat_inputs
from multi_dnn_ros.backends.precision import PRECISIONS
from multi_dnn_ros.benchmark.paper.loops import Loop, dnn_state, engine_loop, make_task, one_dnn_loop
from multi_dnn_ros.benchmark.paper.sets import Condition, DnnSet, Network
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.compression.layers import list_layers
from multi_dnn_ros.compression.ranks import Ratio, Rounding
from multi_dnn_ros.models.balance import balance, random_image
from multi_dnn_ros.models.cut import GraphStage, cut_module
from multi_dnn_ros.models.decomposed import apply_plan
from multi_dnn_ros.models.sources import load_network
from multi_dnn_ros.serving.choices import choose_backend

#: As in the paper, whose DNNs were trained on CIFAR-10.
CLASSES = 10
#: Calls before measuring: libraries select algorithms, compilers compile.
_WARM_UP_CALLS = 4


def check_partition(device: torch.device, sms: int | None) -> None:
    """Raise UsageError if the device cannot be partitioned into `sms` SMs."""
    if sms is not None and (problem := green_contexts.sms_problem(device, sms)):
        raise UsageError(f"--sms is {sms}; {problem}")


def make_network(network: Network, *, alignment: int | None = None, seed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    """The network in eval mode on the CPU, fp32, and an image for it, standard normal (1, 3, side, side) float32.

    Weights are random, because times do not depend on values. alignment: None for the original; otherwise ranks are the
    network's ratio of the channels, rounded to multiples of `alignment`.
    """
    module = load_network(f"torchvision:{network.builder}", weights="random", num_classes=CLASSES).module
    image = random_image(network.side, network.side, seed)
    if alignment is not None:
        rule = Ratio(network.ratio, Rounding(alignment=alignment, floor=alignment))
        choices = rule.choose(list_layers(module, (image,)))
        plan = {name: choice.plan for name, choice in choices.items() if choice.plan is not None}
        apply_plan(module, plan, f"--set {network.builder}")
    balance(module, image)
    return module.eval(), image


@dataclass(frozen=True)
class Work:
    """The work of one process; picklable.

    networks: its DNNs. device: PyTorch's name. sms: its share of the GPU. tf32: whether fp32 may be computed in TF32
    where PyTorch's defaults do so. jobs: number of jobs of each DNN, unless it runs as a whole. cpu_threads: per
    operation.
    """

    condition: Condition
    networks: DnnSet
    device: str
    sms: int | None = None
    tf32: bool = True
    jobs: int = 8
    seed: int = 0
    cpu_threads: int = 1


def make_loop(work: Work) -> Loop:
    """Build, move to the device, compile, capture, warm up. Sets PyTorch's threads and TF32 for the process."""
    torch.set_num_threads(work.cpu_threads)
    if not work.tf32:
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
    device = torch.device(work.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)  # its memory counts for every condition
    if work.condition.layout == "processes":
        return _one_dnn(work, device)
    cameras = iter(f"camera{number}" for number in range(len(work.networks)))
    tasks = []
    for number, dnn in enumerate(prepare_dnns(work, device)):
        served = [next(cameras) for _ in range(dnn.count)]
        tasks.append(make_task(f"dnn{number}", served, dnn.chains, dnn.inputs, dnn.state, sms=work.sms or 0))
    return engine_loop(tasks, device)


@dataclass(frozen=True)
class Prepared:
    """A DNN for `count` cameras. chains: its prepared stages by batch size. inputs: of one image, on the device.
    state: of the backend, see dnn_state().
    """

    count: int
    chains: dict[int, tuple[Stage, ...]]
    inputs: Tensors
    state: Shared


def prepare_dnns(work: Work, device: torch.device) -> list[Prepared]:
    """Each DNN with its own weights; with a batched condition one DNN for all that have the same network."""
    condition = work.condition
    kinds = [(network, work.networks.count(network)) for network in dict.fromkeys(work.networks)]
    if not condition.batched:
        kinds = [(network, 1) for network in work.networks]
    built = {network: _cut(work, network, count) for network, count in dict.fromkeys(kinds)}
    precision = condition.precision_on(device)
    # fp32 follows the process's TF32 setting, as in the conditions without a backend.
    precision = "auto" if precision == "fp32" else precision
    prepared: list[Prepared] = []
    with own_stream(work, device):
        for network, count in kinds:
            chains, image = copy.deepcopy(built[network])
            backend = choose_backend(condition.execution, device, precision, single_launch=True)
            state, tolerance = dnn_state(device), PRECISIONS[precision].tolerance(device)
            ready = prepare_batches(backend, chains, (image,), device, tolerance, state)
            prepared.append(Prepared(count, ready, (image.to(device),), state))
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
    return prepared


def _cut(work: Work, network: Network, count: int) -> tuple[dict[int, tuple[GraphStage, ...]], torch.Tensor]:
    """The jobs of a network by batch size, and its image."""
    module, image = make_network(network, alignment=work.condition.decomposed, seed=work.seed)
    chains = {
        size: tuple(cut_module(module, repeat_inputs((image,), size), work.jobs, fold_batch_norm=True))
        for size in sorted({1, count})
    }
    return chains, image


def own_stream(work: Work, device: torch.device) -> AbstractContextManager[Any]:
    """Context that computes on a new stream of the share; no effect on a CPU."""
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(green_contexts.make_stream(device, work.sms or 0))


def _one_dnn(work: Work, device: torch.device) -> Loop:
    """One DNN as one call, eager or compiled."""
    condition = work.condition
    module, image = make_network(work.networks[0], alignment=condition.decomposed, seed=work.seed)
    compiles = condition.execution == "compile"
    layout = torch.channels_last if compiles else torch.contiguous_format
    dtype = PRECISIONS[condition.precision_on(device)].dtype
    module = module.to(device, dtype).to(memory_format=layout)  # type: ignore[call-overload]
    image = image.to(device, dtype).to(memory_format=layout)
    call = torch.compile(module, mode="reduce-overhead") if compiles else module
    green_contexts.computing_on(device, work.sms or 0).__enter__()  # never exited: the only computing thread

    def infer() -> None:
        call(image)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()

    mode = torch.no_grad if compiles else torch.inference_mode  # reduce-overhead records under no_grad
    with mode():
        for _ in range(_WARM_UP_CALLS):
            infer()
    return one_dnn_loop(infer, mode)
