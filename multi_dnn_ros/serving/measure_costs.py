"""Finds what each DNN costs on a device (time of a frame, memory), in an engine process that ends afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import psutil
import torch

from multi_dnn_ros.backends.device_errors import is_device_failure
from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.memory import release_memory
from multi_dnn_ros.pipeline.devices import torch_device, unit_of, workers_and_threads
from multi_dnn_ros.planning.placement import Cost
from multi_dnn_ros.serving import default_build
from multi_dnn_ros.serving.host import Build, DeviceCosts, Progress
from multi_dnn_ros.serving.warm_up import time_on_black_ms, warm_up
from multi_dnn_ros.settings.schema import NodeConfig

if TYPE_CHECKING:
    from multi_dnn_ros.pipeline.pipeline import Pipeline

log = logging.getLogger(__name__)

#: Share of the free memory that the DNNs of a device may use; the rest is for intermediate results of concurrent DNNs.
_MEMORY_SHARE = 0.9


def measure_costs(config: NodeConfig, build: Build, report: Callable[[Progress], None]) -> DeviceCosts:
    """The costs of each DNN of `config` on its only device.

    Costs of an earlier configure are used if nothing that they depend on has changed. Otherwise they are predicted if
    parameter `predictor` has a file for this device and backend that knows the DNN's layers. Otherwise the DNN is built
    alone, timed on a black image of 640 x 480 pixels, and freed. A DNN that cannot be built or run there is
    `impossible`. Raises RuntimeError after a failure of the device.
    """
    device = torch_device(unit_of(config.device, "device"))
    limit = round(_MEMORY_SHARE * _free_bytes(device))
    costs: dict[str, Cost] = {}
    impossible: dict[str, str] = {}

    def progress(text: str) -> None:
        report(Progress(f"measuring: {text}", 0, len(config.dnns)))

    for name in config.dnns:
        try:
            costs[name] = _find_cost(name, config, build, device, progress)
        except Exception as error:  # whatever a model raises on this device
            if is_device_failure(error):
                raise
            impossible[name] = summarize_error(error)
        release_memory(device)
    return DeviceCosts(costs, impossible, limit)


def _find_cost(
    name: str, config: NodeConfig, build: Build, device: torch.device, progress: Callable[[str], None]
) -> Cost:
    if build is not default_build.build:  # it is not known how another build uses the parameters
        return _measure_cost(name, config, build, device, progress)
    from multi_dnn_ros.pipeline.known_costs import CostCache, cost_key, predicted_cost

    alone = config.model_copy(update={"dnns": {name: config.dnns[name]}})
    torch.set_num_threads(workers_and_threads(alone, unit_of(config.device, "device"))[1])  # as when it is built
    cache, key = CostCache(), cost_key(name, config, device)
    if (found := cache.get(key)) is not None:
        progress(f"DNN {name}: {found.ms:.2f} ms per frame, measured earlier")
        return found
    if config.predictor:
        predicted, reason = predicted_cost(name, config, device)
        if predicted is not None:
            progress(f"DNN {name}: {predicted.ms:.2f} ms per frame, predicted")
            return predicted
        log.warning(
            "dnn.%s is measured on %s, because the predictor %s does not cover it: %s",
            name, config.device, config.predictor, reason,
        )  # fmt: skip
    cost = _measure_cost(name, config, build, device, progress)
    cache.put(cost_key(name, config, device), cost)  # not `key`: it changes once backend measured has made a choice
    return cost


def _measure_cost(
    name: str, config: NodeConfig, build: Build, device: torch.device, progress: Callable[[str], None]
) -> Cost:
    before = _used_bytes(device)
    pipeline: Pipeline = build(config.model_copy(update={"dnns": {name: config.dnns[name]}}), progress)
    (task,) = pipeline.tasks
    warm_up([task], device, progress)
    ms = time_on_black_ms(task, device)
    progress(f"DNN {name}: {ms:.2f} ms per frame")
    return Cost(ms, max(0, _used_bytes(device) - before))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(psutil.virtual_memory().available)


def _used_bytes(device: torch.device) -> int:
    """Memory in use: on a CPU by this process, on a GPU by all processes."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return total - free
    return int(psutil.Process().memory_info().rss)
