"""Cache of layer times that were measured while configuring, so that they need not be measured again."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from multi_dnn_ros.backends.machine_cache import Key, MachineCache
from multi_dnn_ros.backends.onnx_providers import hardware_facts
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.models.artifact import network_checksum
from multi_dnn_ros.planning.measure import Traced
from multi_dnn_ros.planning.timing import Target

log = logging.getLogger(__name__)

#: Layer times by network, target and machine.
LAYER_TIMES = MachineCache("layer_times", "layer times")


def read_layer_times(dnn: str, traced: Traced, target: Target, layers: int) -> list[float] | None:
    """The milliseconds of each layer that write_layer_times() stored for this network and target; None: there are none.

    dnn: name of the DNN, for the log. layers: their number. Invalid content is logged and ignored.
    """
    key = _key(dnn, traced, target)
    content = LAYER_TIMES.read(key)
    if content is None:
        return None
    try:
        ms = [float(layer_ms) for layer_ms in content["ms"]]
        if len(ms) != layers or not all(0.0 <= layer_ms < 1e9 for layer_ms in ms):
            raise ValueError("the times do not match the layers")
    except (ValueError, TypeError, KeyError) as error:
        log.warning("layer times in %s are not used: %s", LAYER_TIMES.folder / key.name, summarize_error(error))
        return None
    return ms


def write_layer_times(dnn: str, traced: Traced, target: Target, ms: Sequence[float]) -> None:
    """Store the milliseconds of each layer."""
    LAYER_TIMES.write(_key(dnn, traced, target), {"ms": list(ms)})


def _key(dnn: str, traced: Traced, target: Target) -> Key:
    setup = {
        "backend": target.backend,
        "precision": target.precision,
        "sms": str(target.sms),
        "threads": str(torch.get_num_threads()) if target.device.type == "cpu" else "",
        "inputs": ", ".join(f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in traced.inputs),
    }
    return Key(network_checksum(traced.graph_module), setup, hardware_facts(target.device), dnn)
