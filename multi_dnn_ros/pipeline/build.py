"""Builds what the engine runs: loads each DNN, cuts it into jobs and prepares them for the device."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from multi_dnn_ros.backends import Backend, Shared, Stage, Tensors
from multi_dnn_ros.backends.batches import (
    BatchError,
    compare_batch,
    prepare_batches,
    repeat_inputs,
    sizes_to_prepare,
)
from multi_dnn_ros.backends.capture import capture_on
from multi_dnn_ros.backends.captured_network import CapturedNetwork, Network, as_network
from multi_dnn_ros.backends.cuda_driver import enqueue_on
from multi_dnn_ros.backends.device_errors import is_out_of_memory, memory_shortage
from multi_dnn_ros.backends.gates import Gate
from multi_dnn_ros.backends.gpu_time import gpu_ms
from multi_dnn_ros.backends.green_contexts import computing_on, with_own_cudnn_plans
from multi_dnn_ros.backends.precision import PRECISIONS
from multi_dnn_ros.backends.preprocess_graph import PreprocessGraph
from multi_dnn_ros.backends.registry import BACKENDS
from multi_dnn_ros.backends.static_stages import single_launches
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.graph.cut import cut_graph, cut_module
from multi_dnn_ros.graph.trace import TraceError, trace
from multi_dnn_ros.models.builtin import builtin_notice
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.models.onnx_network import OnnxNetwork
from multi_dnn_ros.pipeline.calibration import CalibrationError, calibration_inputs
from multi_dnn_ros.pipeline.choices import ConfigError, backend_name, choose_backend, takes_onnx, timing_target
from multi_dnn_ros.pipeline.devices import devices_in_use, torch_device, workers_and_threads
from multi_dnn_ros.pipeline.image_check import checked_on_images, on_cpu
from multi_dnn_ros.pipeline.pipeline import Pipeline
from multi_dnn_ros.pipeline.progress_lines import DnnReady
from multi_dnn_ros.pipeline.settings_check import check_settings
from multi_dnn_ros.pipeline.shared_inputs import share_inputs
from multi_dnn_ros.planning.batch_units import Unit
from multi_dnn_ros.planning.job_plan import JobPlan, JobPlanner
from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig

log = logging.getLogger(__name__)


def build(config: NodeConfig, progress: Callable[[str], None] = lambda text: None) -> Pipeline:
    """Build the pipeline of `config`. progress: called with one line per step.

    Sets PyTorch's number of CPU threads for the whole process. There are three steps: check the parameters and the
    headers of the model files; load all DNNs; prepare them, which takes the most time. An error in the first step is a
    ConfigError, one in the second a ModelError; each lists all problems of its step. The third step raises ConfigError.
    """
    findings = check_settings(config)
    if findings.problems:
        raise ConfigError("\n".join(findings.problems))
    for warning in findings.warnings:
        log.warning("%s", warning)
    unit, predictor = _only_device(findings.units), findings.predictor
    device = torch_device(unit)
    workers, threads = workers_and_threads(config, unit)
    torch.set_num_threads(threads)
    dnns = _load_all(config, device)
    tasks: list[DnnTask] = []
    planner = JobPlanner(predictor, config.predictor, config.blocking_ms / 1e3, keep=True)
    # With fewer workers than DNNs, a whole network in one call would occupy a worker for longer than blocking_ms.
    single_launch = not (config.blocking_ms and device.type == "cpu" and workers < len(config.dnns))
    shortage = ""
    if notice := builtin_notice(config.dnns):
        progress(notice)
    for number, (name, settings) in enumerate(config.dnns.items(), start=1):
        begin, allocated = time.perf_counter(), _allocated_bytes(device)
        progress(f"preparing {name} ({settings.model})")
        cameras = tuple(dict.fromkeys(settings.cameras or config.cameras))
        try:
            backend = _backend(dnns[name], settings, device, progress, single_launch)
            plan, task = with_own_cudnn_plans(
                settings.sms,
                partial(_plan_and_make_task, planner, dnns[name], settings, cameras, backend, device),
            )
            if settings.check_images:
                in_float32 = settings.model_copy(update={"precision": "auto"})
                task = checked_on_images(
                    dnns[name], settings, task, device, progress,
                    partial(_rebuilt, planner, dnns[name], in_float32, cameras, device, progress, single_launch),
                )  # fmt: skip
            tasks.append(task)
            if task.remaining_ns is not None and len(task.remaining_ns) == task.jobs:
                progress(plan.summary(name, task.remaining_ns))
        except Exception as error:
            if not is_out_of_memory(error):
                if isinstance(error, ExtensionError):
                    raise ConfigError(f"dnn.{name}: {error}") from error
                raise
            shortage = (
                f"dnn.{name}: {settings.model} does not fit into the memory of {device}: "
                f"{memory_shortage(error, device, allocated)}; use fewer DNNs (parameter dnns), a smaller input or "
                f"dnn.{name}.precision fp16"
            )
            break
        line = (
            f"DNN {number} of {len(config.dnns)}: {name} ({settings.model}) ready on {device} as "
            f"{tasks[-1].jobs} jobs{_batch_text(tasks[-1])} after {time.perf_counter() - begin:.1f} s"
        )
        progress(DnnReady(line))
    _finish_backends(config.dnns, device)
    if shortage:  # raised only here, because inside the except block the traceback would keep the memory allocated
        dnns.clear()
        tasks.clear()
        gc.collect()
        torch.cuda.empty_cache()
        raise ConfigError(shortage)
    return Pipeline(device, workers, share_inputs(tasks, dnns, device), dnns, predictor)


def _only_device(units: Mapping[str, Unit]) -> Unit:
    """The device of all DNNs. Raises ConfigError if there are several."""
    devices = devices_in_use(units)
    if len(devices) > 1:
        raise ConfigError(
            f"the DNNs run on {', '.join(unit.name for unit in devices)} (parameters dnn.<dnn>.device), "
            "but one process runs the DNNs of one device; allowed here: the same device for all of them"
        )
    return devices[0]


def _finish_backends(dnns: Mapping[str, DnnConfig], device: torch.device) -> None:
    for backend in sorted({backend_name(dnn.backend, device, name, dnn.precision) for name, dnn in dnns.items()}):
        finish = BACKENDS.get(backend).finish
        if finish is not None:
            finish()


def _backend(
    dnn: Dnn, settings: DnnConfig, device: torch.device, progress: Callable[[str], None], single_launch: bool
) -> Backend:
    return choose_backend(
        settings.backend,
        device,
        settings.precision,
        dnn=dnn.name,
        progress=progress,
        calibration=partial(_calibration, dnn, settings),
        single_launch=single_launch,
        branches=str(settings.branches or "auto"),
        providers=settings.providers,
    )


def _calibration(dnn: Dnn, settings: DnnConfig) -> list[Tensors]:
    """The DNN's inputs for int8 calibration, one per calibration image. Raises ConfigError."""
    try:
        return [*calibration_inputs(settings.calibration_images, dnn.inputs, dnn.view.enlarge_to_min)]
    except CalibrationError as error:
        where = f"parameter dnn.{dnn.name}.calibration_images is '{settings.calibration_images}'"
        raise ConfigError(f"{where}: {error}") from None


def _load_all(config: NodeConfig, device: torch.device) -> dict[str, Dnn]:
    """All DNNs with their weights, on the CPU. Raises one ModelError with the problems of all of them."""
    dnns: dict[str, Dnn] = {}
    problems: list[str] = []
    for name, settings in config.dnns.items():
        try:
            dnns[name] = load_dnn(name, settings, onnx=takes_onnx(settings, device, name))
        except ModelError as error:
            problems.append(str(error))
    if problems:
        raise ModelError("\n".join(problems))
    return dnns


def _plan_and_make_task(
    planner: JobPlanner, dnn: Dnn, settings: DnnConfig, cameras: tuple[str, ...], backend: Backend,
    device: torch.device,
) -> tuple[JobPlan, DnnTask]:  # fmt: skip
    with computing_on(device, settings.sms):
        plan = planner.plan(dnn, settings.jobs, timing_target(dnn.name, settings, device))
    return plan, make_task(dnn, settings, cameras, backend, device, plan)


def _rebuilt(
    planner: JobPlanner, dnn: Dnn, settings: DnnConfig, cameras: tuple[str, ...], device: torch.device,
    progress: Callable[[str], None], single_launch: bool,
) -> DnnTask:  # fmt: skip
    """Prepare a DNN again, with other settings."""
    backend = _backend(dnn, settings, device, progress, single_launch)
    _, task = with_own_cudnn_plans(
        settings.sms, partial(_plan_and_make_task, planner, on_cpu(dnn), settings, cameras, backend, device)
    )
    return task


def make_task(
    dnn: Dnn,
    settings: DnnConfig,
    cameras: tuple[str, ...],
    backend: Backend,
    device: torch.device,
    plan: JobPlan | None = None,
    traced: torch.fx.GraphModule | None = None,
) -> DnnTask:
    """Cut one DNN into jobs and prepare them, for all batch sizes that its parameters and cameras allow.

    plan: how to cut the DNN; None: into `settings.jobs` jobs by estimated costs. traced: its graph with batch norms
    folded, for one image, which is not changed; None: trace it. Raises ConfigError.
    """
    plan = plan or JobPlan(settings.jobs)
    if isinstance(dnn.module, OnnxNetwork):
        return _make_onnx_task(dnn, settings, cameras, backend, plan)
    if traced is None:
        traced = _traced(dnn, settings)
    stages = cut_graph(traced, plan.jobs, costs=plan.costs, limit_s=plan.limit_s)
    chains: dict[int, Sequence[torch.nn.Module]] = {1: stages}
    for size in sizes_to_prepare(min(settings.max_batch, len(cameras)), device)[1:]:
        chains[size] = _cut_for_batch(dnn, settings, size, len(stages))
    parts = dnn.results.in_two_parts() if device.type == "cuda" else None
    gate = Gate() if device.type == "cuda" else None
    reduce = None if parts is None else parts.condense
    shared = Shared(gate=gate, reduce=reduce)
    task = replace(_task(dnn, settings, cameras), gate=gate)
    if parts is not None:
        task = replace(task, decode=parts.decode)
    with computing_on(device, settings.sms):
        ready = _prepare(dnn, settings, chains, backend, device, shared)
        if device.type != "cuda":
            return replace(
                task, stages=ready[1], batches={size: chain for size, chain in ready.items() if size > 1},
                single_launch=single_launches(ready), remaining_ns=plan.remaining_ns(stages),
            )  # fmt: skip
        networks = {size: as_network(chain, size, reduce) for size, chain in ready.items()}
        graph = _preprocess_graph(dnn, settings, networks[1], device)
        inputs = tuple(tensor.to(device) for tensor in dnn.example_inputs())
        with torch.inference_mode():
            took_ms = gpu_ms(lambda: networks[1].launch(inputs))
    return replace(
        task, networks=networks, remaining_ns=(round(took_ms * 1e6),), preprocess=graph or dnn.inputs,
        specialize=graph.specialize if graph else None,
        from_host=graph.from_host if graph else None,
    )  # fmt: skip


def _task(dnn: Dnn, settings: DnnConfig, cameras: tuple[str, ...]) -> DnnTask:
    """The task without stages."""
    return DnnTask(
        name=dnn.name,
        cameras=cameras,
        preprocess=dnn.inputs,
        stages=(),
        decode=dnn.results,
        priority=settings.priority,
        sms=settings.sms,
        deadline_ns=round(settings.deadline_ms * 1e6) or None,
        max_age_ns=round(settings.max_age_ms * 1e6) or None,
        batch_delay_ns=round(settings.batch_delay_ms * 1e6),
        min_size=dnn.view.min_size,
    )


def _make_onnx_task(dnn: Dnn, settings: DnnConfig, cameras: tuple[str, ...], backend: Any, plan: JobPlan) -> DnnTask:
    """A task of a DNN that is an ONNX graph. backend: with a method `prepare_graph`."""
    shared, ready = Shared(), {}
    for size in sizes_to_prepare(min(settings.max_batch, len(cameras)), torch.device("cpu")):
        try:
            model = dnn.module.model if size == 1 else dnn.module.for_images(size)
            ready[size] = backend.prepare_graph(model, plan.jobs, plan.node_costs_s, plan.limit_s, shared)
            if size > 1:
                compare_batch(ready[1], ready[size], repeat_inputs(dnn.example_inputs(), size))
        except Exception as error:
            if size == 1 or is_out_of_memory(error):
                raise
            raise _batch_error(dnn, settings, f"with {size} images, {summarize_error(error)}") from None
    return replace(
        _task(dnn, settings, cameras), stages=ready[1],
        batches={size: chain for size, chain in ready.items() if size > 1}, single_launch=single_launches(ready),
        remaining_ns=plan.remaining_ns(ready[1]),
    )  # fmt: skip


def _traced(dnn: Dnn, settings: DnnConfig) -> torch.fx.GraphModule:
    try:
        return trace(dnn.module, dnn.example_inputs(), fold_batch_norm=True)
    except TraceError as error:
        raise ConfigError(f"dnn.{dnn.name}: {settings.model} cannot be cut into jobs: {error}") from error


def _cut_for_batch(dnn: Dnn, settings: DnnConfig, images: int, jobs: int) -> Sequence[torch.nn.Module]:
    """The stages for a batch: as many as for one image, cut by estimated costs."""
    try:
        return cut_module(dnn.module, repeat_inputs(dnn.example_inputs(), images), jobs, fold_batch_norm=True)
    except TraceError as error:
        raise _batch_error(dnn, settings, f"with {images} images, {error}") from None


def _prepare(
    dnn: Dnn,
    settings: DnnConfig,
    chains: Mapping[int, Sequence[torch.nn.Module]],
    backend: Backend,
    device: torch.device,
    shared: Shared,
) -> dict[int, tuple[Stage, ...]]:
    """The prepared stages by batch size."""
    inputs = dnn.example_inputs()
    if len(chains) == 1:
        return {1: backend.prepare(chains[1], inputs, device, shared)}
    tolerance = PRECISIONS[settings.precision].tolerance(device)
    try:
        return prepare_batches(backend, chains, inputs, device, tolerance, shared)
    except BatchError as error:
        raise _batch_error(dnn, settings, str(error)) from None


def _batch_text(task: DnnTask) -> str:
    return f", for batches of up to {task.max_batch} images," if task.max_batch > 1 else ""


def _batch_error(dnn: Dnn, settings: DnnConfig, reason: str) -> ConfigError:
    return ConfigError(
        f"parameter dnn.{dnn.name}.max_batch is {settings.max_batch}, but {settings.model} takes one image at a time: "
        f"{reason}; allowed: 1"
    )


def _preprocess_graph(dnn: Dnn, settings: DnnConfig, network: Network, device: torch.device) -> PreprocessGraph | None:
    """Captured preprocessing, if `capture_preprocess` is set and the network is a CUDA graph."""
    if not settings.capture_preprocess or not isinstance(network, CapturedNetwork):
        return None
    enqueue = enqueue_on(network.inputs[0].device)
    return PreprocessGraph(dnn.inputs, network.inputs, capture_on(device), enqueue.copy, enqueue.copy_from_host)


def _allocated_bytes(device: torch.device) -> int:
    """Bytes that this process has allocated on a GPU; 0 on a CPU."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
