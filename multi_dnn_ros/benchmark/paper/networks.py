"""The timed DNNs: random weights; decomposed ones by structure only, because times do not depend on values.

Given a folder of networks that were scored (see `evaluated`), these are used instead.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from multi_dnn_ros.benchmark.paper.conditions import PAPER_RANKS
from multi_dnn_ros.benchmark.paper.evaluated import evaluated_network, manifest
from multi_dnn_ros.benchmark.paper.sets import Network
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.compression.layers import list_layers
from multi_dnn_ros.compression.ranks import Ratio, Rounding
from multi_dnn_ros.graph.balance import balance, random_image
from multi_dnn_ros.models.decomposed import Plan, apply_plan
from multi_dnn_ros.models.sources import load_artifact, load_network

#: As in the paper, whose DNNs were trained on CIFAR-10.
CLASSES = 10
_ARTIFACTS = (".safetensors", ".pt2")


def make_network(
    network: Network,
    *,
    alignment: int | None = None,
    artifacts: Path | None = None,
    seed: int = 0,
    balanced: bool = True,
) -> nn.Module:
    """The network in eval mode on the CPU, fp32.

    alignment: None for the original; otherwise ranks are the network's ratio of the channels, rounded to multiples of
    `alignment`.
    artifacts: folder with outputs of `multi-dnn decompose`, `<builder>.safetensors` or `.pt2`, used instead of the
    ratio. The paper's own ranks always come from the ratio, unless the folder has networks that were scored: then all
    conditions run these, originals included. balanced: scale the weights so that activations stay
    finite. Raises CommandError if the folder lacks the network or its input size differs.
    """
    if artifacts is not None and (entries := manifest(artifacts)) is not None:
        return evaluated_network(network, artifacts, entries, decomposed=alignment is not None)
    if artifacts is not None and alignment not in (None, PAPER_RANKS):
        return _artifact(network, artifacts)
    module = load_network(f"torchvision:{network.builder}", weights="random", num_classes=CLASSES).module
    if alignment is not None:
        apply_plan(module, ratio_plan(module, network, alignment), f"--set {network.builder}")
    if balanced:
        balance(module, example_image(network, seed))
    return module.eval()


def example_image(network: Network, seed: int = 0) -> torch.Tensor:
    """Standard normal (1, 3, side, side) float32, the same for the same seed."""
    return random_image(network.side, network.side, seed)


def ratio_plan(module: nn.Module, network: Network, alignment: int) -> Plan:
    """The layers to decompose and their ranks; computes no decomposition."""
    policy = Ratio(network.ratio, Rounding(alignment=alignment, floor=alignment))
    choices = policy.choose(list_layers(module, (example_image(network),)))
    return {name: choice.plan for name, choice in choices.items() if choice.plan is not None}


def _artifact(network: Network, folder: Path) -> nn.Module:
    files = [folder / f"{network.builder}{suffix}" for suffix in _ARTIFACTS]
    found = [file for file in files if file.is_file()]
    if not found:
        raise CommandError(f"--artifacts {folder} lacks {network.builder}; expected {files[0].name} or {files[1].name}")
    module, description = load_artifact(found[0])
    size = tuple(description.input_size)
    if size != (network.side, network.side):
        raise CommandError(
            f"{found[0]} takes images of {size[0]} x {size[1]}; the set runs {network.builder} at "
            f"{network.side} x {network.side}"
        )
    return module
