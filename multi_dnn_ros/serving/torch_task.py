"""A DNN as PyTorch modules: traced, cut into jobs and prepared by a backend, for GPUs and for PyTorch on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from multi_dnn_ros.backends import Backend, Shared
from multi_dnn_ros.backends.batches import BatchError, prepare_batches, repeat_inputs, sizes_to_prepare
from multi_dnn_ros.backends.capture import capture_on
from multi_dnn_ros.backends.captured_network import CapturedNetwork, Network, as_network
from multi_dnn_ros.backends.cuda_driver import enqueue_on
from multi_dnn_ros.backends.gates import Gate
from multi_dnn_ros.backends.gpu_time import gpu_ms
from multi_dnn_ros.backends.green_contexts import computing_on, with_own_cudnn_plans
from multi_dnn_ros.backends.host import as_torch
from multi_dnn_ros.backends.precision import PRECISIONS
from multi_dnn_ros.backends.preprocess_graph import PreprocessGraph
from multi_dnn_ros.backends.static_stages import single_launches
from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.models.cut import cut_graph, cut_module
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.models.trace import TraceError, trace
from multi_dnn_ros.planning.job_plan import JobPlan
from multi_dnn_ros.planning.layer_plan import plan_network
from multi_dnn_ros.serving.choices import ConfigError, timing_target
from multi_dnn_ros.serving.tasks import batch_error, plain_task
from multi_dnn_ros.settings.schema import DnnConfig


def plan_and_make_torch_task(
    dnn: Dnn, settings: DnnConfig, cameras: tuple[str, ...], backend: Backend, device: torch.device, bound_s: float
) -> tuple[JobPlan, DnnTask]:
    """Plan the cut of a DNN and prepare it, on its share of the SMs. bound_s: see plan_network. Raises ConfigError."""
    device = as_torch(device)

    def prepare() -> tuple[JobPlan, DnnTask]:
        with computing_on(device, settings.sms):
            plan = plan_network(dnn, settings.jobs, bound_s, timing_target(dnn.name, settings, device))
        return plan, make_torch_task(dnn, settings, cameras, backend, device, plan)

    return with_own_cudnn_plans(settings.sms, prepare)


def make_torch_task(
    dnn: Dnn, settings: DnnConfig, cameras: tuple[str, ...], backend: Backend, device: torch.device, plan: JobPlan
) -> DnnTask:
    """Cut one DNN into jobs and prepare them, for all batch sizes that its parameters and cameras allow.

    plan: how to cut the DNN; for a batch into as many stages, by estimated costs. Raises ConfigError.
    """
    device, example = as_torch(device), dnn.example_inputs()
    try:
        traced = trace(dnn.module, example, fold_batch_norm=True)
    except TraceError as error:
        raise ConfigError(f"dnn.{dnn.name}: {settings.model} cannot be cut into jobs: {error}") from error
    stages = cut_graph(traced, plan.jobs, costs=plan.costs, limit_s=plan.limit_s)
    chains: dict[int, Sequence[torch.nn.Module]] = {1: stages}
    for size in sizes_to_prepare(min(settings.max_batch, len(cameras)), device)[1:]:
        try:
            chains[size] = cut_module(dnn.module, repeat_inputs(example, size), len(stages), fold_batch_norm=True)
        except TraceError as error:
            raise batch_error(dnn, settings, f"with {size} images, {error}") from None
    parts = dnn.results.in_two_parts() if device.type == "cuda" else None
    gate = Gate() if device.type == "cuda" else None
    reduce = None if parts is None else parts.condense
    shared = Shared(gate=gate, reduce=reduce)
    task = replace(plain_task(dnn, settings, cameras, dnn.inputs), gate=gate)
    if parts is not None:
        task = replace(task, decode=parts.decode)
    tolerance = PRECISIONS[settings.precision].tolerance(device)
    with computing_on(device, settings.sms):
        if len(chains) == 1:
            ready = {1: backend.prepare(stages, example, device, shared)}
        else:
            try:
                ready = prepare_batches(backend, chains, example, device, tolerance, shared)
            except BatchError as error:
                raise batch_error(dnn, settings, str(error)) from None
        if device.type != "cuda":
            return replace(
                task, stages=ready[1], batches={size: chain for size, chain in ready.items() if size > 1},
                single_launch=single_launches(ready), remaining_ns=plan.remaining_ns(stages),
            )  # fmt: skip
        networks = {size: as_network(chain, size, reduce) for size, chain in ready.items()}
        graph = _preprocess_graph(dnn, settings, networks[1])
        inputs = tuple(tensor.to(device) for tensor in example)
        with torch.inference_mode():
            took_ms = gpu_ms(lambda: networks[1].launch(inputs))
    return replace(
        task, networks=networks, remaining_ns=(round(took_ms * 1e6),), preprocess=graph or dnn.inputs,
        specialize=graph.specialize if graph else None,
        from_host=graph.from_host if graph else None,
    )  # fmt: skip


def _preprocess_graph(dnn: Dnn, settings: DnnConfig, network: Network) -> PreprocessGraph | None:
    """Captured preprocessing, if `capture_preprocess` is set and the network is a CUDA graph."""
    if not settings.capture_preprocess or not isinstance(network, CapturedNetwork):
        return None
    device = network.inputs[0].device
    enqueue = enqueue_on(device)
    return PreprocessGraph(dnn.inputs, network.inputs, capture_on(device), enqueue.copy, enqueue.copy_from_host)
