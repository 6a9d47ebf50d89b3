"""The timed DNNs: random weights; decomposed ones by structure only, because times do not depend on values.

Given a folder of networks that were scored, these are used instead: other weights of the same structure take the same
time, but other ranks do not, so a table of speeds beside a table of accuracies is measured with the same files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from multi_dnn_ros.benchmark.paper.sets import Network
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.compression.layers import list_layers
from multi_dnn_ros.compression.ranks import Ratio, Rounding
from multi_dnn_ros.graph.balance import balance, random_image
from multi_dnn_ros.models.decomposed import apply_plan
from multi_dnn_ros.models.sources import load_artifact, load_network

#: As in the paper, whose DNNs were trained on CIFAR-10.
CLASSES = 10
#: Lists the files of a folder: {builder: {"original" | "decomposed": {"file": name, "sha256": checksum}}}.
MANIFEST = "networks.json"
RANDOM = "random weights"


def make_network(
    network: Network, *, alignment: int | None = None, artifacts: Path | None = None, seed: int = 0
) -> nn.Module:
    """The network in eval mode on the CPU, fp32.

    alignment: None for the original; otherwise ranks are the network's ratio of the channels, rounded to multiples of
    `alignment`. artifacts: folder with MANIFEST, whose files all conditions run. Raises CommandError if a file is
    missing, has changed, or holds another network.
    """
    if artifacts is not None:
        return _scored_network(network, artifacts, "original" if alignment is None else "decomposed")
    module = load_network(f"torchvision:{network.builder}", weights="random", num_classes=CLASSES).module
    image = example_image(network, seed)
    if alignment is not None:
        choices = Ratio(network.ratio, Rounding(alignment=alignment, floor=alignment)).choose(
            list_layers(module, (example_image(network),))
        )
        plan = {name: choice.plan for name, choice in choices.items() if choice.plan is not None}
        apply_plan(module, plan, f"--set {network.builder}")
    balance(module, image)
    return module.eval()


def example_image(network: Network, seed: int = 0) -> torch.Tensor:
    """Standard normal (1, 3, side, side) float32, the same for the same seed."""
    return random_image(network.side, network.side, seed)


def files_of(networks: Iterable[Network], folder: Path | None) -> dict[str, Any]:
    """For the results, by builder: the manifest's entry with files, checksums and scores; RANDOM without a folder.

    Raises CommandError for a folder without a manifest, or one that lacks a network.
    """
    if folder is None:
        return {network.builder: RANDOM for network in networks}
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(f"--artifacts {folder}: {MANIFEST} cannot be read: {error}") from None
    found = {}
    for network in networks:
        if not isinstance(content, dict) or network.builder not in content:
            raise CommandError(f"{path} lacks {network.builder}")
        found[network.builder] = content[network.builder]
    return found


def _scored_network(network: Network, folder: Path, role: str) -> nn.Module:
    entry = files_of([network], folder)[network.builder]
    try:
        path, expected = folder / entry[role]["file"], entry[role]["sha256"]
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except (KeyError, TypeError, OSError) as error:
        raise CommandError(f"{folder / MANIFEST}: {network.builder}, {role}: {error!r}") from None
    if found != expected:
        raise CommandError(f"{path}: SHA-256 is {found[:12]}..., that of the scored network {expected[:12]}...")
    module, description = load_artifact(path)
    if description.model != f"torchvision:{network.builder}" or bool(description.plan) != (role == "decomposed"):
        raise CommandError(f"{path}: holds {description.model}; expected {role} torchvision:{network.builder}")
    return module.eval()
