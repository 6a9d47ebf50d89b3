"""Costs of a DNN on a device that need no measurement: they were measured earlier, or are predicted."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

import numpy as np
import torch

from multi_dnn_ros.common.file_lock import waiting_lock
from multi_dnn_ros.common.resources import cache_folder
from multi_dnn_ros.graph.live_memory import peak_bytes, weight_bytes
from multi_dnn_ros.graph.trace import trace
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.pipeline.choices import timing_target
from multi_dnn_ros.pipeline.measured_backend import UNNAMED, choices_digest, with_cached_backend
from multi_dnn_ros.planning.placement import Cost
from multi_dnn_ros.planning.predictor import read_predictor
from multi_dnn_ros.planning.service import predicted_services
from multi_dnn_ros.planning.timing import TimingCache
from multi_dnn_ros.settings.dnn_schema import OutputConfig
from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig
from multi_dnn_ros.settings.section import runtime_fields

log = logging.getLogger(__name__)

#: Parameters of a DNN, and of its outputs, that change neither its time nor its memory.
_IRRELEVANT = {"device", "cameras", "labels", "keep", "deadline_ms", "batch_delay_ms", "outputs"}
_IRRELEVANT_OF_OUTPUTS = {"labels", "keep"}
_BYTES_PER_MB = 1e6
#: Stored for a DNN whose use of memory is too small to be measured, because TimingCache holds only positive numbers.
_MIN_MB = 1e-3
_HEIGHT, _WIDTH = 480, 640
_BLOCK = 1 << 20


class CostCache:
    """Measured costs, stored under everything that they depend on: parameters, content of the model's files, device,
    backend, precision and versions. path: None: `placement.json` in the user's cache folder.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or cache_folder() / "placement.json"

    def get(self, key: str) -> Cost | None:
        """The cost; None if it was not measured yet."""
        times = TimingCache(self._path)
        ms, megabytes = times.get(f"{key} time"), times.get(f"{key} memory in MB")
        if ms is None or megabytes is None:
            return None
        return Cost(ms, 0 if megabytes <= _MIN_MB else round(megabytes * _BYTES_PER_MB), "measured earlier")

    def put(self, key: str, cost: Cost) -> None:
        """Store a cost. If the file cannot be written, a warning is logged."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            log.warning("costs of DNNs are not cached: %s cannot be written: %s", self._path, error)
            return
        megabytes = max(_MIN_MB, cost.memory_bytes / _BYTES_PER_MB)
        # Read again, and locked: processes of other devices write to the same file.
        with waiting_lock(self._path.with_suffix(".lock")):
            TimingCache(self._path).put({f"{key} time": cost.ms, f"{key} memory in MB": megabytes})


def cost_key(name: str, config: NodeConfig, device: torch.device) -> str:
    """Key of a DNN's cost on a device. Raises ConfigError if the backend cannot run there.

    With backend auto or measured the key changes with every cached choice of a backend, because the choice for this DNN
    is known only when it is loaded.
    """
    settings = config.dnns[name]
    parameters = settings.model_dump(mode="json", exclude={*_IRRELEVANT, *runtime_fields(DnnConfig)})
    of_outputs = {*_IRRELEVANT_OF_OUTPUTS, *runtime_fields(OutputConfig)}
    cameras = len(set(settings.cameras or config.cameras))
    target = timing_target(name, settings, device)
    parts = {
        "dnn": parameters,
        "outputs": {output: of.model_dump(mode="json", exclude=of_outputs) for output, of in settings.outputs.items()},
        "largest_batch": min(settings.max_batch, cameras),
        "files": {field: _digest(str(parameters[field])) for field in ("model", "weights")},
        "node": {
            "cpu_threads": config.cpu_threads,
            "workers": config.workers,
            "blocking_ms": config.blocking_ms,
            "device": config.device,
        },
        "target": target.name(),
        "backend": target.served_by,
        "choices": choices_digest() if settings.backend in UNNAMED else "",
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def predicted_cost(name: str, config: NodeConfig, device: torch.device) -> tuple[Cost | None, str]:
    """(cost, "") from the file of parameter `predictor`, or (None, the reason why it must be measured).

    The network's time is predicted; preprocessing and decoding are measured with a black image of 640 x 480 pixels. The
    memory is that of the weights and of the results that exist at the same time. Raises ProfileError for a file that
    is no predictor, and ModelError.
    """
    settings = config.dnns[name]
    predictor = read_predictor(Path(config.predictor))
    dnn = load_dnn(name, settings)
    settings = with_cached_backend(dnn, settings, device)
    target = timing_target(name, settings, device)
    image = np.zeros((*dnn.view.enlarge_to_min((_HEIGHT, _WIDTH)), 3), np.uint8)
    with torch.inference_mode():
        services, unpredicted = predicted_services({name: dnn}, predictor, {name: target}, 1, {name: image})
    if unpredicted:
        return None, unpredicted[0]
    graph_module = trace(dnn.module, dnn.example_inputs(), fold_batch_norm=True)
    scale = target.dtype.itemsize / torch.float32.itemsize
    return Cost(services[name].alone_ms, round(scale * (weight_bytes(graph_module) + peak_bytes(graph_module))),
                "predicted"), ""  # fmt: skip


def _digest(name: str) -> str:
    """SHA-256 of a file's content; "" if it is not the path of a file, such as `builtin:object`."""
    path = Path(name).expanduser()
    if not name or not path.is_file():
        return ""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
