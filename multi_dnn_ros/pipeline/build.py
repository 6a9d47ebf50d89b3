"""Builds what the engine runs: loads each DNN, cuts it into jobs and prepares them for the device."""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from multi_dnn_ros.backends import Backend, Shared, Tensors, run_stages
from multi_dnn_ros.backends.device_errors import is_out_of_memory, memory_shortage
from multi_dnn_ros.backends.host import set_threads
from multi_dnn_ros.backends.registry import BACKENDS
from multi_dnn_ros.backends.static_stages import single_launches
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.common.extras import MissingExtra
from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.models.builtin import builtin_notice
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.models.onnx_network import OnnxNetwork
from multi_dnn_ros.pipeline.calibration import CalibrationError, calibration_inputs
from multi_dnn_ros.pipeline.choices import ConfigError, backend_name, choose_backend, timing_target
from multi_dnn_ros.pipeline.devices import device_of, devices_in_use, workers_and_threads
from multi_dnn_ros.pipeline.image_check import checked_on_images, on_cpu
from multi_dnn_ros.pipeline.pipeline import Pipeline, batch_error, plain_task
from multi_dnn_ros.pipeline.progress_lines import DnnReady
from multi_dnn_ros.pipeline.settings_check import check_settings
from multi_dnn_ros.pipeline.shared_inputs import share_inputs
from multi_dnn_ros.planning.batch_units import Unit
from multi_dnn_ros.planning.graph_plan import JobPlan, plan_graph
from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.planning.job_plan import JobPlanner
    from multi_dnn_ros.planning.predictor import Predictor

log = logging.getLogger(__name__)

#: Largest difference of a result in a batch, relative to the results' scale; int8 rounds differently.
_BATCH_TOLERANCE = 8e-2


def build(config: NodeConfig, progress: Callable[[str], None] = lambda text: None) -> Pipeline:
    """Build the pipeline of `config`. progress: called with one line per step.

    Sets the number of CPU threads of an operation for the whole process. There are two steps: check the
    parameters and load all DNNs; prepare them, which takes the most time. Each raises ConfigError; that of the first
    step lists all problems.
    """
    findings = check_settings(config)
    if findings.problems:
        raise ConfigError("\n".join(findings.problems))
    for warning in findings.warnings:
        log.warning("%s", warning)
    unit, predictor = _only_device(findings.units), findings.predictor
    device = device_of(unit)
    workers, threads = workers_and_threads(config, unit)
    set_threads(threads)
    dnns = findings.dnns
    tasks: list[DnnTask] = []
    # With fewer workers than DNNs, a whole network in one call would occupy a worker for longer than blocking_ms.
    single_launch = not (config.blocking_ms and device.type == "cpu" and workers < len(config.dnns))
    builder = _Builder(config, device, predictor, single_launch, progress)
    shortage = ""
    if notice := builtin_notice(config.dnns):
        progress(notice)
    for number, (name, settings) in enumerate(config.dnns.items(), start=1):
        begin, allocated = time.perf_counter(), _allocated_bytes(device)
        progress(f"preparing {name} ({settings.model})")
        try:
            plan, task = builder.prepared(dnns[name], settings)
            if settings.check_images:
                task = checked_on_images(
                    dnns[name], settings, task, device, progress, partial(builder.in_float32, dnns[name], settings)
                )
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
        if device.type == "cuda":
            sys.modules["torch"].cuda.empty_cache()
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


class _Builder:
    """Prepares single DNNs. single_launch: whether also as one call. See build() for the other arguments."""

    def __init__(
        self,
        config: NodeConfig,
        device: torch.device,
        predictor: Predictor | None,
        single_launch: bool,
        progress: Callable[[str], None],
    ) -> None:
        self._config, self._device, self._predictor = config, device, predictor
        self._single_launch, self._progress = single_launch, progress
        self._torch_planner: JobPlanner | None = None

    def prepared(self, dnn: Dnn, settings: DnnConfig) -> tuple[JobPlan, DnnTask]:
        """How the DNN was cut, and what the engine runs. Raises ConfigError."""
        cameras = tuple(dict.fromkeys(settings.cameras or self._config.cameras))
        backend = choose_backend(
            settings.backend, self._device, settings.precision, dnn=dnn.name, progress=self._progress,
            calibration=lambda: _calibration(dnn, settings), single_launch=self._single_launch,
            branches=str(settings.branches or "auto"), providers=settings.providers,
        )  # fmt: skip
        if isinstance(dnn.module, OnnxNetwork):
            predicted = None if self._predictor is None else lambda: self._predicted_ms(dnn, settings)
            plan = plan_graph(dnn, settings.jobs, self._config.blocking_ms / 1e3, predicted)
            return plan, make_task(dnn, settings, cameras, backend, self._device, plan)
        from multi_dnn_ros.pipeline.torch_task import plan_and_make_torch_task

        return plan_and_make_torch_task(self._planner(), dnn, settings, cameras, backend, self._device)

    def in_float32(self, dnn: Dnn, settings: DnnConfig) -> DnnTask:
        """The DNN prepared again with precision auto."""
        return self.prepared(on_cpu(dnn), settings.model_copy(update={"precision": "auto"}))[1]

    def _predicted_ms(self, dnn: Dnn, settings: DnnConfig) -> float | None:
        target = timing_target(dnn.name, settings, self._device)
        return self._planner().predicted_ms(replace(dnn, module=dnn.module.to_torch()), target)

    def _planner(self) -> JobPlanner:
        from multi_dnn_ros.planning.job_plan import JobPlanner

        if self._torch_planner is None:
            config = self._config
            self._torch_planner = JobPlanner(self._predictor, config.predictor, config.blocking_ms / 1e3, keep=True)
        return self._torch_planner


def _finish_backends(dnns: Mapping[str, DnnConfig], device: torch.device) -> None:
    for backend in sorted({backend_name(dnn.backend, device, name, dnn.precision) for name, dnn in dnns.items()}):
        finish = BACKENDS.get(backend).finish
        if finish is not None:
            finish()


def _calibration(dnn: Dnn, settings: DnnConfig) -> list[Tensors]:
    """The DNN's inputs for int8 calibration, one per calibration image. Raises ConfigError."""
    try:
        return [*calibration_inputs(settings.calibration_images, dnn.array_inputs, dnn.view.enlarge_to_min)]
    except CalibrationError as error:
        where = f"parameter dnn.{dnn.name}.calibration_images is '{settings.calibration_images}'"
        raise ConfigError(f"{where}: {error}") from None


def make_task(
    dnn: Dnn,
    settings: DnnConfig,
    cameras: tuple[str, ...],
    backend: Backend,
    device: torch.device,
    plan: JobPlan | None = None,
) -> DnnTask:
    """Cut one DNN into jobs and prepare them, for all batch sizes that its parameters and cameras allow.

    plan: how to cut the DNN; None: into `settings.jobs` jobs by estimated costs. Raises ConfigError.
    """
    plan = plan or JobPlan(settings.jobs)
    if isinstance(dnn.module, OnnxNetwork):
        return _make_onnx_task(dnn, settings, cameras, backend, plan)
    from multi_dnn_ros.pipeline.torch_task import make_torch_task

    return make_torch_task(dnn, settings, cameras, backend, device, plan)


def _make_onnx_task(dnn: Dnn, settings: DnnConfig, cameras: tuple[str, ...], backend: Any, plan: JobPlan) -> DnnTask:
    """A task of a DNN that is an ONNX graph. backend: with a method `prepare_graph`."""
    shared, ready = Shared(), {}
    for size in range(1, min(settings.max_batch, len(cameras)) + 1):
        try:
            model = dnn.module.model if size == 1 else dnn.module.for_images(size)
            ready[size] = backend.prepare_graph(model, plan.jobs, plan.node_costs_s, plan.limit_s, shared)
            if size > 1:
                compare_batch(ready[1], ready[size], size, (3, dnn.preprocess.height, dnn.preprocess.width))
        except Exception as error:
            if size == 1 or is_out_of_memory(error):
                raise
            if isinstance(error.__cause__, MissingExtra):
                raise ConfigError(str(error)) from None
            raise batch_error(dnn, settings, f"with {size} images, {summarize_error(error)}") from None
    return replace(
        plain_task(dnn, settings, cameras, dnn.array_inputs), arrays=True, stages=ready[1],
        batches={size: chain for size, chain in ready.items() if size > 1}, single_launch=single_launches(ready),
        remaining_ns=plan.remaining_ns(ready[1]),
    )  # fmt: skip


def compare_batch(alone: Any, together: Any, images: int, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless each image of a batch of noise has the results that it has alone."""
    given = np.random.default_rng(0).standard_normal((images, *shape)).astype(np.float32)
    results = run_stages(together, (given,))
    for index, result in enumerate(results):
        if not result.ndim or len(result) != images:
            raise ValueError(f"output {index} of a batch of {images} images has shape {result.shape}")
    for row in range(images):
        for found, right in zip(results, run_stages(alone, (given[row : row + 1],)), strict=True):
            scale = 0.1 + float(np.abs(right.astype(np.float64)).max(initial=0.0))
            if np.abs(found[row : row + 1].astype(np.float64) - right).max(initial=0.0) > _BATCH_TOLERANCE * scale:
                raise ValueError(f"image {row + 1} of a batch of {images} has a different result when it runs alone")


def _batch_text(task: DnnTask) -> str:
    return f", for batches of up to {task.max_batch} images," if task.max_batch > 1 else ""


def _allocated_bytes(device: torch.device) -> int:
    """Bytes that this process has allocated on a GPU; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    import torch

    return torch.cuda.memory_allocated(device)
