"""Plans how a DNN of PyTorch modules is cut into jobs of bounded duration, by the measured times of its layers.

The times are cached, so that they are measured once per network and machine.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from contextlib import nullcontext

import torch

from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.backends.machine_cache import Key, MachineCache
from multi_dnn_ros.backends.onnx_providers import hardware_facts
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.models.artifact import network_checksum
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.models.layers import Layer, node_costs
from multi_dnn_ros.planning.frame_times import HEIGHT, WIDTH
from multi_dnn_ros.planning.job_plan import JobPlan, fewest_jobs, preprocess_ms
from multi_dnn_ros.planning.layer_chain import Traced, make_layer_chain, trace_on_cpu
from multi_dnn_ros.planning.timing import Target

log = logging.getLogger(__name__)

#: Number of times that each layer is measured while configuring.
ROUNDS = 7
_WARM_UP_ROUNDS = 2
#: Layer times by network, target and machine.
LAYER_TIMES = MachineCache("layer_times", "layer times")


def plan_network(dnn: Dnn, jobs: int, bound_s: float, target: Target) -> JobPlan:
    """Plan the cut of a DNN. jobs: number of jobs, used if there is no bound. bound_s: maximum duration of a job; 0:
    none. target: device, backend and precision for measuring layers.

    If the layers cannot be timed, logs a warning and returns a plan without times. Raises the error of PyTorch if there
    is not enough memory.
    """
    if not bound_s:
        return JobPlan(jobs)
    device = target.device
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            traced = trace_on_cpu(dnn.module, tuple(torch.rand(each.shape) for each in dnn.example_inputs()))
            layers = traced.layers(target.dtype)
            if not layers:
                return JobPlan(jobs)
            ms = _layer_ms(dnn.name, traced, layers, target)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        log.warning(
            "dnn.%s: its layers cannot be timed, so it is cut into dnn.%s.jobs jobs by estimated costs: %s",
            dnn.name, dnn.name, summarize_error(error),
        )  # fmt: skip
        return JobPlan(jobs)
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()  # frees the memory of graphs captured for timing
    if device.type == "cpu":
        image = torch.zeros((*dnn.view.enlarge_to_min((HEIGHT, WIDTH)), 3), dtype=torch.uint8)
        with torch.inference_mode():
            ms[0] += preprocess_ms(lambda: dnn.inputs(image))
    names = [layer.module or layer.name for layer in layers]
    count = fewest_jobs(dnn.name, [own / 1e3 for own in ms], names, bound_s)
    return JobPlan(count, node_costs(zip(layers, ms, strict=True)), None, bound_s)


def _layer_ms(dnn: str, traced: Traced, layers: Sequence[Layer], target: Target) -> list[float]:
    """Milliseconds of each layer, from the cache or measured. Invalid content of the cache is ignored."""
    setup = {
        "backend": target.backend,
        "precision": target.precision,
        "sms": str(target.sms),
        "threads": str(torch.get_num_threads()) if target.device.type == "cpu" else "",
        "inputs": ", ".join(f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in traced.inputs),
    }
    key = Key(network_checksum(traced.graph_module), setup, hardware_facts(target.device), dnn)
    content = LAYER_TIMES.read(key)
    known = content.get("ms") if isinstance(content, dict) else None
    if isinstance(known, list) and len(known) == len(layers) and all(isinstance(own, float) for own in known):
        return known
    run = make_layer_chain(traced, target)
    rounds = [run() for _ in range(_WARM_UP_ROUNDS + target.rounds)][_WARM_UP_ROUNDS:]
    ms = [statistics.median(samples) for samples in zip(*rounds, strict=True)]
    LAYER_TIMES.write(key, {"ms": ms})
    return ms
