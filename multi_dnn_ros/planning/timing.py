"""Times modules on the target through the backend that will run them, alone or several at the same time."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from multi_dnn_ros.backends import Backend, Stage, run_stages
from multi_dnn_ros.backends.green_contexts import computing_on, make_stream
from multi_dnn_ros.backends.registry import BACKENDS, library_version
from multi_dnn_ros.common.reporting import cpu_model
from multi_dnn_ros.models.cut import cut_module, untraced_stage
from multi_dnn_ros.models.decomposed import SvdLinear, TuckerConv2d

_ROUNDS = 15
#: Duration of one module's calls in one round, long compared with clock resolution and thread wake-up.
_BLOCK_S = 0.004
_MAX_CALLS = 200
#: Modules that become a job without tracing.
_LAYERS = (nn.Conv2d, nn.Linear, TuckerConv2d, SvdLinear)


@dataclass(frozen=True)
class Target:
    """Where modules are timed.

    make_backend: returns a new backend with the precision. backend, precision: names, as in the node's parameters.
    batch: images per inference. rounds: timed rounds per module; the median counts. sms: number of SMs of the GPU to
    use; 0: all. served_by: the backend that will run the modules, if not the one used for timing.
    """

    device: torch.device
    backend: str
    make_backend: Callable[[], Backend]
    precision: str = "auto"
    batch: int = 1
    rounds: int = _ROUNDS
    sms: int = 0
    served_by: str = ""

    @property
    def dtype(self) -> torch.dtype:
        """dtype in which the layers compute."""
        return {"fp16": torch.float16, "bf16": torch.bfloat16}.get(self.precision, torch.float32)

    @property
    def device_name(self) -> str:
        """Processor, threads or SMs, and precision."""
        if self.device.type == "cuda":
            properties = torch.cuda.get_device_properties(self.device)
            share = f"{self.sms} of " if self.sms else ""
            device = f"{properties.name}, {share}{properties.multi_processor_count} SMs"
        else:
            device = f"{cpu_model()}, {torch.get_num_threads()} threads"
        return f"{device}; {self.precision}"

    def name(self) -> str:
        """Device, precision, backend and the versions that affect the times."""
        return f"{self.device_name}; {self.backend}; {self.versions()}"

    def versions(self) -> str:
        """The versions of libraries that affect the times."""
        if self.device.type == "cuda":
            return f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
        version = library_version(BACKENDS.get(self.backend))
        return f"torch {torch.__version__}" + (f", {version}" if version else "")


def compare(
    modules: Sequence[nn.Module], shape: tuple[int, ...], target: Target, counts: Sequence[int] = (1,)
) -> dict[int, list[float]]:
    """By count, the milliseconds of one inference of each module: medians over rounds that alternate between modules.

    shape: shape of the only input, with the batch axis to be replaced by the target's. counts: numbers of copies of a
    module that run at the same time, each in its own thread (on a GPU in its own CUDA stream); the time lasts until all
    have finished. The modules are not changed. Raises what cutting or the backend raises.
    """
    inputs = (torch.rand(target.batch, *shape[1:], generator=torch.Generator().manual_seed(0)),)
    jobs = [_one_job(module, inputs) for module in modules]
    return {count: _compare_copies(jobs, inputs, target, count) for count in dict.fromkeys(counts)}


def prepared(module: nn.Module, inputs: tuple[torch.Tensor, ...], target: Target) -> tuple[Stage, ...]:
    """A copy of a CPU module as the node serves it in one job, prepared by the target's backend.

    inputs: example inputs. The stages run on the calling thread's current stream. Raises what cutting or the backend
    raises.
    """
    return _ready(_one_job(module, inputs), inputs, target)


def _compare_copies(
    jobs: Sequence[nn.Module], inputs: tuple[torch.Tensor, ...], target: Target, count: int
) -> list[float]:
    given = tuple(tensor.to(target.device) for tensor in inputs)
    streams = [make_stream(target.device, target.sms) if target.device.type == "cuda" else None for _ in range(count)]
    threads = torch.get_num_threads()
    if target.device.type == "cpu":
        torch.set_num_threads(max(1, threads // count))
    try:
        copies = [[_ready(copy.deepcopy(job), inputs, target) for _ in range(count)] for job in jobs]
        with ThreadPoolExecutor(count, thread_name_prefix="timing") as pool:

            def seconds(chains: Sequence[Sequence[Stage]], calls: int = 1) -> float:
                """Of one inference of all copies, averaged over a block of calls."""
                begin = time.perf_counter()
                list(pool.map(partial(_repeat, calls, given), chains, streams))
                return (time.perf_counter() - begin) / calls

            # The first call warms up; the fastest of three chooses how many make a block long enough for the clock.
            fastest_s = [min([seconds(chains) for _ in range(4)][1:]) for chains in copies]
            calls = [max(1, min(_MAX_CALLS, round(_BLOCK_S / max(call_s, 1e-9)))) for call_s in fastest_s]
            rounds = [[*map(seconds, copies, calls)] for _ in range(target.rounds)]
    finally:
        torch.set_num_threads(threads)
    return [1e3 * statistics.median(samples) for samples in zip(*rounds, strict=True)]


def _repeat(
    calls: int, inputs: tuple[torch.Tensor, ...], chain: Sequence[Stage], stream: torch.cuda.Stream | None
) -> None:
    with torch.inference_mode(), torch.cuda.stream(stream):
        for _ in range(calls):
            run_stages(chain, inputs)
        if stream is not None:
            stream.synchronize()


def _ready(job: nn.Module, inputs: tuple[torch.Tensor, ...], target: Target) -> tuple[Stage, ...]:
    with computing_on(target.device, target.sms):
        return target.make_backend().prepare([job], inputs, target.device)


def _one_job(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> nn.Module:
    """A copy of a CPU module as the node serves it in one job, batch norms folded. Raises what cutting raises.

    A single layer is not traced, because tracing would take longer than timing it.
    """
    copied = copy.deepcopy(module)
    if isinstance(copied, _LAYERS):
        return untraced_stage(copied.eval())
    for part in copied.modules():
        part.training = False  # eval() raises for exported programs
    (job,) = cut_module(copied, inputs, 1, fold_batch_norm=True)
    return job
