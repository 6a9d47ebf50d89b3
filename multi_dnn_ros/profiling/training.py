"""Times of a distributed training step by layers: forward, backward and communication, from the profiler's traces of
DistributedDataParallel.

After Kim, Library-level Distributed Processing Method for CNN Training Using GPU Clusters (Seoul National University,
2020), who reports execution time and arithmetic intensity per layer.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.planning.clock import synchronize
from multi_dnn_ros.profiling.network import ReportProgress, load
from multi_dnn_ros.profiling.step_trace import OUTSIDE, StepTrace, layer_ranges, read_trace

_WARM_UP = 3
_LEARNING_RATE = 1e-6  # the values of the weights do not matter, but must stay finite
#: Sizes of the all-reduces that measure the link, and repeats of each.
_MESSAGE_BYTES, _REPEATS = (4 << 10, 64 << 20), 7
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Work:
    """flops: of convolutions and products. bytes: of tensors read and written, each once."""

    flops: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class TrainedLayer:
    """A module. all_reduce_ms: its share, by bytes, of the message that carries its gradients."""

    name: str
    kind: str
    parameters: int
    gradient_bytes: int
    forward: Work
    backward: Work
    forward_ms: float
    backward_ms: float
    all_reduce_ms: float


@dataclass(frozen=True)
class TrainingProfile:
    """Medians of process 0. step_ms: with DDP, without the profiler. alone_ms: without communication. exposed_ms: time
    in which the step only waited for messages. sum_ms: of layers, optimizer and exposed_ms, in the traced steps.

    latency_s, bytes_per_s: of the link, see all_reduce_s(); 0 for one process. unused: parameters without a gradient.
    """

    shape: tuple[int, ...]
    processes: int
    layers: tuple[TrainedLayer, ...]
    step_ms: float
    alone_ms: float
    optimizer_ms: float
    exposed_ms: float
    sum_ms: float
    messages: int
    latency_s: float
    bytes_per_s: float
    unused: tuple[str, ...]

    def all_reduce_s(self, size: float) -> float:
        """Duration of an all-reduce of `size` bytes alone: a latency, and 2 (N - 1) / N of them at the bandwidth."""
        return self.latency_s + _moved(size, self.processes) / self.bytes_per_s if self.bytes_per_s else 0.0


def measure_training(
    device: torch.device, progress: ReportProgress, *, model: str, size: tuple[int, int] | None, batch: int,
    precision: str, repeats: int, threads: int, bucket_mib: float,
) -> TrainingProfile:  # fmt: skip
    """What each process does; see processes.Work.

    size: (width, height), for models that do not define it. batch: images per process. precision: fp32, or that of
    autocast. repeats: steps of each kind. threads: of PyTorch per process. bucket_mib: size of DDP's buckets. Raises
    ModelError if the network cannot be trained.
    """
    if device.type == "cpu":
        torch.set_num_threads(threads)
    network = load(model, size=size)
    module = network.module.to(device)
    for part in module.modules():
        part.training = True  # train() raises for exported programs
    for parameter in module.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    generator = torch.Generator().manual_seed(dist.get_rank())
    images = torch.randn(batch, *network.shape[1:], generator=generator).to(device)
    labels = torch.randint(0, 1 << 30, (batch,), generator=generator).to(device)

    def forward(of: nn.Module) -> Tensor:
        on = precision != "fp32"
        with torch.autocast(device.type, _DTYPES.get(precision), enabled=on):
            outputs = of(images)
        return _loss(outputs, labels)

    work, unused = _count_work(model, module, lambda: forward(module))
    latency_s, bytes_per_s = _measure_link(device)
    buckets: list[list[nn.Parameter]] = []

    def reduce(state: object, bucket: Any) -> Any:
        """DDP's default reduction; remembers which parameters a message carries."""
        buckets.append(list(bucket.parameters()))
        return allreduce_hook(dist.group.WORLD, bucket)  # type: ignore[arg-type]

    reduce.__annotations__.clear()  # DDP compares annotations with types, but here they are strings
    ddp = DistributedDataParallel(module, bucket_cap_mb=bucket_mib, broadcast_buffers=False)
    ddp.register_comm_hook(None, reduce)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], _LEARNING_RATE, momentum=0.9)

    def step(reduced: bool = True) -> None:
        optimizer.zero_grad()
        with nullcontext() if reduced else ddp.no_sync():
            forward(ddp).backward()
        optimizer.step()

    steps, alone, traces = [], [], []
    total = _WARM_UP + repeats
    for turn in range(-_WARM_UP, repeats):  # in turns, so that a disturbance affects all alike
        progress(turn + _WARM_UP, total)
        alone.append(_wall_ms(lambda: step(reduced=False), device))
        steps.append(_wall_ms(step, device))
        buckets.clear()
        traces.append(_traced(step, module, device))
    progress(total, total)
    traces = traces[_WARM_UP:]
    layers = _layers(module, traces, work, buckets)
    return TrainingProfile(
        (batch, *network.shape[1:]), dist.get_world_size(), layers, statistics.median(steps[_WARM_UP:]),
        statistics.median(alone[_WARM_UP:]), statistics.median(trace.optimizer_ms for trace in traces),
        statistics.median(trace.exposed_ms for trace in traces), statistics.median(trace.sum_ms for trace in traces),
        len(traces[-1].messages), latency_s, bytes_per_s, tuple(unused),
    )  # fmt: skip


def _loss(outputs: Any, labels: Tensor) -> Tensor:
    """Cross-entropy for one (B, classes) output, otherwise the sum of the mean squares of all outputs."""
    leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if len(leaves) == 1 and leaves[0].dim() == 2 and len(leaves[0]) == len(labels):
        return functional.cross_entropy(leaves[0].float(), labels % leaves[0].shape[1])
    return torch.stack([leaf.float().square().mean() for leaf in leaves]).sum()


def _count_work(
    name: str, module: nn.Module, forward: Callable[[], Tensor]
) -> tuple[dict[int, tuple[Work, Work]], list[str]]:
    """Work of the forward and the backward pass by number of the module, and the names of parameters without a
    gradient, which are no longer trained.

    FLOPs of the forward pass by torch.utils.flop_counter; the backward pass needs as many for the gradients of the
    inputs, and as many for those of the parameters. (Its own FLOPs are counted for wrong modules where networks
    branch.) Bytes, of modules without submodules: the forward pass reads inputs and parameters and writes outputs; the
    backward pass reads these and the gradients of the outputs, and writes gradients of inputs and parameters. Raises
    ModelError if the network cannot be trained.
    """
    numbers = {part: number for number, part in enumerate(module.modules())}
    moved: dict[int, tuple[int, int]] = {}
    inner: set[int] = set()  # modules whose inputs need gradients

    def count(part: nn.Module, inputs: Any, outputs: Any) -> None:
        number = numbers[part]
        if any(leaf.requires_grad for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)):
            inner.add(number)
        if not any(part.children()):
            weights, written = sum(map(_size, part.parameters())), _bytes(outputs)
            read = _bytes(inputs) + weights
            gradients = weights + (_bytes(inputs) if number in inner else 0)
            forward_bytes, backward_bytes = moved.get(number, (0, 0))
            moved[number] = forward_bytes + read + written, backward_bytes + read + written + gradients

    handles = [part.register_forward_hook(count) for part in numbers]
    try:
        with FlopCounterMode(display=False) as counter:
            loss = forward()
        if loss.grad_fn is None:
            raise ModelError(f"{name} cannot be trained: its outputs do not depend on floating-point parameters")
        loss.backward()
    except (RuntimeError, ValueError, NotImplementedError) as error:
        if isinstance(error, ModelError):
            raise
        remedy = "; choose a smaller --batch" if is_out_of_memory(error) else ""
        raise ModelError(f"{name} cannot be trained: {summarize_error(error)}{remedy}") from error
    finally:
        for handle in handles:
            handle.remove()
    work = {}
    for path, part in module.named_modules():
        number, flops = numbers[part], _own_flops(counter, module, path, part)
        forward_bytes, backward_bytes = moved.get(number, (0, 0))
        own = list(part.parameters(recurse=False))  # without any, both factors of a product are inputs
        gradients = (number in inner) + (not own or any(parameter.requires_grad for parameter in own))
        work[number] = Work(flops, forward_bytes), Work(gradients * flops, backward_bytes)
    unused = [key for key, parameter in module.named_parameters() if parameter.requires_grad and parameter.grad is None]
    for key, parameter in module.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and key not in unused)
        parameter.grad = None
    return work, unused


def _own_flops(counter: FlopCounterMode, root: nn.Module, path: str, part: nn.Module) -> int:
    """FLOPs of a module without those of its submodules."""
    counts = counter.get_flop_counts()

    def total(path: str) -> int:
        return sum(counts.get(".".join(filter(None, (type(root).__name__, path))), {}).values())

    return total(path) - sum(total(".".join(filter(None, (path, child)))) for child, _ in part.named_children())


def _traced(step: Callable[[], None], module: nn.Module, device: torch.device) -> StepTrace:
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    dist.barrier()
    with layer_ranges(module), profile(activities=activities, acc_events=True) as profiler:
        step()
        synchronize(device)
    return read_trace(profiler.events(), on_gpu)


def _layers(
    module: nn.Module, traces: Sequence[StepTrace], work: dict[int, tuple[Work, Work]],
    buckets: Sequence[Sequence[nn.Parameter]],
) -> tuple[TrainedLayer, ...]:  # fmt: skip
    numbers = dict(enumerate(module.named_modules()))
    owner = {p: number for number, (_, part) in numbers.items() for p in part.parameters(recurse=False)}
    reduce_ms: dict[int, float] = dict.fromkeys(numbers, 0.0)
    for trace in traces:
        for parameters, (begin, end) in zip(buckets, trace.messages, strict=False):
            total = sum(map(_size, parameters))
            for parameter in parameters:
                reduce_ms[owner[parameter]] += (end - begin) * _size(parameter) / total / len(traces)
    found = []
    for number in (*numbers, OUTSIDE):
        name, part = numbers.get(number, ("(loss)", nn.Identity()))
        own = [p for p in part.parameters(recurse=False) if p.requires_grad]
        phases = ([trace.forward_ms for trace in traces], [trace.backward_ms for trace in traces])
        forward_ms, backward_ms = (statistics.median(ms.get(number, 0.0) for ms in phase) for phase in phases)
        forward, backward = work.get(number, (Work(), Work()))
        if forward_ms or backward_ms:
            found.append(TrainedLayer(
                name or "(network)", type(part).__name__ if number != OUTSIDE else "", sum(p.numel() for p in own),
                sum(map(_size, own)), forward, backward, forward_ms, backward_ms, reduce_ms.get(number, 0.0),
            ))  # fmt: skip
    return tuple(found)


def _measure_link(device: torch.device) -> tuple[float, float]:
    """(latency in seconds, bytes per second) of all-reduces: the time of a small one, and the rate of a large one
    without that time. 0 for one process.
    """
    if dist.get_world_size() < 2:
        return 0.0, 0.0
    small_s, large_s = (_all_reduce_s(size, device) for size in _MESSAGE_BYTES)
    return small_s, _moved(_MESSAGE_BYTES[1], dist.get_world_size()) / max(large_s - small_s, 1e-9)


def _all_reduce_s(size: int, device: torch.device) -> float:
    buffer = torch.zeros(size // 4, device=device)
    times = [_wall_ms(partial(dist.all_reduce, buffer), device) for _ in range(1 + _REPEATS)]
    return statistics.median(times[1:]) / 1e3


def _moved(size: float, processes: int) -> float:
    """Bytes that each process sends in a ring all-reduce (Thakur, Rabenseifner, Gropp 2005)."""
    return 2.0 * (processes - 1) / processes * size


def _wall_ms(work: Callable[[], object], device: torch.device) -> float:
    """Milliseconds by the host's clock; all processes begin together."""
    dist.barrier()
    synchronize(device)
    begin = time.perf_counter()
    work()
    synchronize(device)
    return (time.perf_counter() - begin) * 1e3


def _bytes(values: Any) -> int:
    return sum(_size(leaf) for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor))


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
