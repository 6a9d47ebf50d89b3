"""Builds what the engine runs: loads each DNN, cuts it into jobs and prepares them for the device."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from multi_dnn_ros.backends import Backend, Tensors
from multi_dnn_ros.backends.device_errors import is_out_of_memory, memory_shortage
from multi_dnn_ros.backends.host import set_threads
from multi_dnn_ros.backends.registry import BACKENDS
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.models.builtin import builtin_notice
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.models.onnx_network import OnnxNetwork
from multi_dnn_ros.planning.job_plan import JobPlan, plan_graph
from multi_dnn_ros.serving.choices import (
    ConfigError,
    backend_name,
    choose_backend,
    device_of,
    workers_and_threads,
)
from multi_dnn_ros.serving.sample_images import ImagesError, calibration_inputs
from multi_dnn_ros.serving.settings_check import check_settings
from multi_dnn_ros.serving.tasks import Pipeline, make_onnx_task, share_inputs
from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig

if TYPE_CHECKING:
    import torch


def build(config: NodeConfig, progress: Callable[[str], None] = lambda text: None) -> Pipeline:
    """Build the pipeline of `config`. progress: called with one line per step.

    Sets the number of CPU threads of an operation for the whole process. There are two steps: check the
    parameters and load all DNNs; prepare them, which takes the most time. Each raises ConfigError; that of the first
    step lists all problems.
    """
    unit, dnns = check_settings(config)
    device = device_of(unit)
    workers, threads = workers_and_threads(config, unit)
    set_threads(threads)
    # With fewer workers than DNNs, a whole network in one call would occupy a worker for longer than blocking_ms.
    single_launch = not (config.blocking_ms and device.type == "cpu" and workers < len(config.dnns))
    builder = _Builder(config, device, single_launch, progress)
    tasks: list[DnnTask] = []
    shortage = ""
    if notice := builtin_notice(config.dnns):
        progress(notice)
    for number, (name, settings) in enumerate(config.dnns.items(), start=1):
        begin, allocated = time.perf_counter(), _allocated_bytes(device)
        progress(f"preparing DNN {number} of {len(config.dnns)}: {name} ({settings.model})")
        try:
            tasks.append(builder.prepared(dnns[name], settings))
        except ExtensionError as error:
            raise ConfigError(f"dnn.{name}: {error}") from error
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            shortage = (
                f"dnn.{name}: {settings.model} does not fit into the memory of {device}: "
                f"{memory_shortage(error, device, allocated)}; use fewer DNNs (parameter dnns), a smaller input or "
                f"dnn.{name}.precision fp16"
            )
            break
        batches = f", for batches of up to {tasks[-1].max_batch} images," if tasks[-1].max_batch > 1 else ""
        progress(
            f"DNN {number} of {len(config.dnns)}: {name} ({settings.model}) ready on {device} as {tasks[-1].jobs} "
            f"jobs{batches} after {time.perf_counter() - begin:.1f} s"
        )
    _finish_backends(config.dnns, device)
    if shortage:  # raised only here, because inside the except block the traceback would keep the memory allocated
        dnns.clear()
        tasks.clear()
        gc.collect()
        if device.type == "cuda":
            sys.modules["torch"].cuda.empty_cache()
        raise ConfigError(shortage)
    return Pipeline(device, workers, share_inputs(tasks, dnns, device), dnns)


class _Builder:
    """Prepares single DNNs. single_launch: whether also as one call. See build() for the other arguments."""

    def __init__(
        self, config: NodeConfig, device: torch.device, single_launch: bool, progress: Callable[[str], None]
    ) -> None:
        self._config, self._device = config, device
        self._single_launch, self._progress = single_launch, progress

    def prepared(self, dnn: Dnn, settings: DnnConfig) -> DnnTask:
        """What the engine runs. Raises ConfigError."""
        cameras = tuple(dict.fromkeys(settings.cameras or self._config.cameras))
        backend = choose_backend(
            settings.backend, self._device, settings.precision, dnn=dnn.name, progress=self._progress,
            calibration=lambda: _calibration(dnn, settings), single_launch=self._single_launch,
            branches=settings.branches, providers=settings.providers,
        )  # fmt: skip
        bound_s = self._config.blocking_ms / 1e3
        if isinstance(dnn.module, OnnxNetwork):
            plan = plan_graph(dnn, settings.jobs, bound_s)
            task = make_onnx_task(dnn, settings, cameras, backend, plan)
        else:
            from multi_dnn_ros.serving.torch_task import plan_and_make_torch_task

            plan, task = plan_and_make_torch_task(dnn, settings, cameras, backend, self._device, bound_s)
        if task.remaining_ns is not None and len(task.remaining_ns) == task.jobs:
            self._progress(plan.summary(dnn.name, task.remaining_ns))
        return task


def make_task(
    dnn: Dnn, settings: DnnConfig, cameras: tuple[str, ...], backend: Backend, device: torch.device
) -> DnnTask:
    """Cut one DNN into `settings.jobs` jobs by estimated costs and prepare them, for all batch sizes that its
    parameters and cameras allow. Raises ConfigError.
    """
    plan = JobPlan(settings.jobs)
    if isinstance(dnn.module, OnnxNetwork):
        return make_onnx_task(dnn, settings, cameras, backend, plan)
    from multi_dnn_ros.serving.torch_task import make_torch_task

    return make_torch_task(dnn, settings, cameras, backend, device, plan)


def _finish_backends(dnns: Mapping[str, DnnConfig], device: torch.device) -> None:
    for backend in sorted({backend_name(dnn.backend, device, name, dnn.precision) for name, dnn in dnns.items()}):
        finish = BACKENDS.get(backend).finish
        if finish is not None:
            finish()


def _calibration(dnn: Dnn, settings: DnnConfig) -> list[Tensors]:
    """The DNN's inputs for int8 calibration, one per calibration image. Raises ConfigError."""
    try:
        return [*calibration_inputs(settings.calibration_images, dnn.array_inputs, dnn.view.enlarge_to_min)]
    except ImagesError as error:
        where = f"parameter dnn.{dnn.name}.calibration_images is '{settings.calibration_images}'"
        raise ConfigError(f"{where}: {error}") from None


def _allocated_bytes(device: torch.device) -> int:
    """Bytes that this process has allocated on a GPU; 0 on a CPU."""
    return sys.modules["torch"].cuda.memory_allocated(device) if device.type == "cuda" else 0
