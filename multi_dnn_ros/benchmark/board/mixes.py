"""The mixes of DNNs with which a board is measured, and whether a mix fits the board."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import get_model

from multi_dnn_ros.benchmark.board.time_plan import Demand
from multi_dnn_ros.benchmark.paper.networks import CLASSES, example_image, make_network
from multi_dnn_ros.benchmark.paper.sets import SETS, DnnSet, Network
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.common.resources import config_file
from multi_dnn_ros.pipeline.choices import choose_backend, choose_device
from multi_dnn_ros.planning.timing import Target
from multi_dnn_ros.profiling.limits import measure_limits
from multi_dnn_ros.settings.options import with_options
from multi_dnn_ros.settings.params_file import read_params_file
from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig

BUILTIN, HEAVY = "builtin", "heavy_gpu"
_PRESETS = {
    BUILTIN: "the three built-in DNNs (config/multi_dnn.yaml)",
    HEAVY: "SSD300, RetinaNet and DeepLabV3 in fp16 (config/heavy_gpu.yaml)",
}
#: In order of importance: what comes last is left out first if there is no time for it.
DEFAULT = (BUILTIN, HEAVY, "small", "mixed", "vgg16_x8", "resnet152_x8", "inception_v3_x8", "regnet_y_32gf_x7")
#: Share of a device's measured throughput that the networks reach, to estimate the time of a frame. A low estimate,
#: because a set that is given time and then fails costs more than a set that is left out.
_REACHED_SHARE = 0.3
#: Memory in multiples of the weights, for each DNN and for the one that is being prepared (docs/measured.md); memory of
#: a DNN's activations; and memory of the processes.
_COPIES_CPU, _COPIES_GPU, _PREPARING, _ACTIVATIONS_BYTES, _PROCESS_BYTES = 3.0, 2.0, 10.0, 200 << 20, 1 << 30
#: Estimated seconds until the node is active: the process, and each DNN.
_START_S = {"cpu": (10.0, 2.0), "cuda": (20.0, 8.0)}


@dataclass(frozen=True)
class Mix:
    """One mix. dnns: a set of the paper; None for the preset or the parameter file that `name` then names."""

    name: str
    text: str
    dnns: DnnSet | None = None


@dataclass(frozen=True)
class Cost:
    """Cost of a set of the paper. flops: per frame, for all DNNs. parameters: number in all DNNs. stored: the same, but
    with equal networks counted once. largest: number in the largest network.
    """

    flops: float
    parameters: int
    stored: int
    largest: int
    dnns: int


def choose_mixes(names: Sequence[str]) -> list[Mix]:
    """The mixes of these names, without duplicates; those of DEFAULT if there are no names.

    Raises UsageError for an unknown name.
    """
    chosen = []
    for name in dict.fromkeys(names or DEFAULT):
        if name in SETS:
            chosen.append(Mix(name, f"set {name} of the paper: {SETS[name].describe()}", SETS[name]))
        elif name in _PRESETS:
            chosen.append(Mix(name, _PRESETS[name]))
        elif Path(name).is_file():
            chosen.append(Mix(name, f"parameter file {Path(name).name}"))
        else:
            allowed = ", ".join((*_PRESETS, *SETS))
            raise UsageError(f"--mixes {name}: no such mix and no such file; allowed: {allowed}, or a parameter file")
    return chosen


def cost_of(dnns: DnnSet) -> Cost:
    """The cost of a set, counted on networks without weights."""
    flops = parameters = stored = largest = 0
    for network, count in dnns.kinds.items():
        module = _without_weights(network)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            module(torch.empty(1, 3, network.side, network.side, device="meta"))
        size = sum(parameter.numel() for parameter in module.parameters())
        flops += count * counter.get_total_flops()
        parameters += count * size
        stored += size
        largest = max(largest, size)
    return Cost(flops, parameters, stored, largest, len(dnns.networks))


def _without_weights(network: Network) -> nn.Module:
    options = {"init_weights": False} if network.builder.startswith("inception") else {}
    make = partial(get_model, network.builder, weights=None, num_classes=CLASSES, **options)
    try:
        with torch.device("meta"):
            module: nn.Module = make()
    except NotImplementedError:  # the builder reads values of tensors, as that of RegNet does
        module = make().to("meta")
    return module.eval()


def flops_per_s(device: torch.device) -> float:
    """Measured throughput of the device at the precision of the sets; takes a second."""
    precision = _precision(device)
    backend = partial(choose_backend, "eager", device, precision)
    return measure_limits(Target(device, "eager", backend, precision)).flops_per_s


def demand_of(mix: Mix, device: torch.device, cost: Cost | None, throughput: float | None) -> Demand:
    """The estimated time that the mix needs. cost, throughput: None if unknown."""
    process_s, dnn_s = _START_S[device.type]
    frame_s = cost.flops / (_REACHED_SHARE * throughput) if cost is not None and throughput is not None else None
    return Demand(process_s + dnn_s * (cost.dnns if cost is not None else 3), frame_s)


def obstacle(mix: Mix, device: torch.device, cost: Cost | None, folder: Path) -> str:
    """Why the mix cannot run here; empty if it can, as far as is known beforehand."""
    if mix.name == HEAVY and device.type != "cuda":
        return "needs a GPU"
    if cost is None:
        return ""
    on_gpu = device.type == "cuda"
    need = 4.0 * (cost.largest * _PREPARING + cost.parameters * (1.0 if on_gpu else _COPIES_CPU)) + _PROCESS_BYTES
    need += 0 if on_gpu else cost.dnns * _ACTIVATIONS_BYTES
    checks = [("memory", need, float(psutil.virtual_memory().available))]
    if on_gpu:
        need = 2.0 * cost.parameters * _COPIES_GPU + cost.dnns * _ACTIVATIONS_BYTES + _PROCESS_BYTES
        checks.append(("GPU memory", need, float(torch.cuda.mem_get_info(device)[0])))
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    checks.append((f"disk space in {existing}", 4.2 * cost.stored, float(shutil.disk_usage(existing).free)))
    for what, needed, free in checks:
        if needed > free:
            return f"needs about {needed / 2**30:.1f} GiB of {what}; {free / 2**30:.1f} GiB are free"
    return ""


def chosen_device(name: str | None) -> torch.device:
    """The device of --device, without a number of threads. Raises ConfigError if there is no such device."""
    return choose_device(re.sub("^cpu:[1-9][0-9]{0,3}$", "cpu", name or "auto"), "--device is")


def mix_config(mix: Mix, device: str | None, resolved: torch.device, folder: Path) -> NodeConfig:
    """The node's parameters. device: --device, replaces the preset's. folder: for the networks of the paper."""
    if mix.dnns is None:
        return _config_of(mix.name, device)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {network: folder / f"{network.builder}.pt2" for network in mix.dnns.kinds}
    for network, path in paths.items():
        if not path.exists():
            _write(network, path)
    dnns = {}
    for number, network in enumerate(mix.dnns.networks):
        dnns[f"dnn{number}_{network.builder}"] = DnnConfig(
            role="object", model=str(paths[network]), decoder="yolo", labels=["nothing"], resize="stretch",
            precision=_precision(resolved),
        )  # fmt: skip
    return NodeConfig.model_validate({**_config_of(BUILTIN, device or str(resolved)).model_dump(), "dnns": {
        name: dnn.model_dump() for name, dnn in dnns.items()}})  # fmt: skip


def _config_of(name: str, device: str | None) -> NodeConfig:
    """The parameters of a preset or a parameter file. device: replaces theirs, if given."""
    files = {BUILTIN: "multi_dnn.yaml", HEAVY: "heavy_gpu.yaml"}
    config = read_params_file(config_file(files[name]) if name in files else Path(name))
    return with_options(config, device=device) if device else config


def dnn_texts(mix: Mix, config: NodeConfig) -> dict[str, str]:
    """The model of each DNN, as text that is the same on every computer."""
    if mix.dnns is None:
        return {name: dnn.model for name, dnn in config.dnns.items()}
    return {
        name: f"torchvision:{network.builder} {network.side}x{network.side}"
        for name, network in zip(config.dnns, mix.dnns.networks, strict=True)
    }


def _precision(device: torch.device) -> str:
    return "fp16" if device.type == "cuda" else "auto"


class _WithoutDetections(nn.Module):
    """A classifier whose output has the form of a detector's, with one box whose score is 0."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.classifier(image)
        return scores[:, :5, None] * 0.0


def _write(network: Network, path: Path) -> None:
    module = _WithoutDetections(make_network(network)).eval()
    torch.export.save(torch.export.export(module, (example_image(network),)), path)
