"""Networks whose accuracy was measured: the files of `python -m multi_dnn_ros.training controlled`.

Other weights of the same structure take the same time, but another structure or other ranks do not. A table of speeds
next to a table of accuracies is therefore measured with these files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from multi_dnn_ros.benchmark.paper.sets import Network
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.models.sources import load_artifact

MANIFEST = "networks.json"
_ROLES = ("original", "decomposed")
RANDOM = "random weights"


def manifest(folder: Path | None) -> dict[str, Any] | None:
    """The manifest's entries by builder; None if the folder has none. Raises CommandError for a damaged file."""
    if folder is None or not (folder / MANIFEST).is_file():
        return None
    path = folder / MANIFEST
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for entry in content.values():
            for role in _ROLES:
                str(entry[role]["file"]), str(entry[role]["sha256"])
    except (ValueError, OSError, KeyError, TypeError, AttributeError) as error:
        raise CommandError(
            f"{path}: not written by `python -m multi_dnn_ros.training controlled` ({type(error).__name__}: {error})"
        ) from None
    return content


def evaluated_network(network: Network, folder: Path, entries: Mapping[str, Any], *, decomposed: bool) -> nn.Module:
    """The network from the file that was scored, in eval mode on the CPU.

    Raises CommandError if there is no such file, or if it has changed since.
    """
    entry = entries.get(network.builder)
    if entry is None:
        raise CommandError(f"{folder / MANIFEST} lacks {network.builder}; it has {', '.join(entries)}")
    role = _ROLES[decomposed]
    path = folder / str(entry[role]["file"])
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise CommandError(f"{path}: {error}; {MANIFEST} names it") from None
    if found != entry[role]["sha256"]:
        raise CommandError(
            f"{path}: SHA-256 is {found[:12]}..., that of the scored network {entry[role]['sha256'][:12]}..."
        )
    module, description = load_artifact(path)
    if description.model != f"torchvision:{network.builder}" or bool(description.plan) != decomposed:
        kind = "decomposed" if description.plan else "original"
        raise CommandError(f"{path}: holds {kind} {description.model}; expected {role} torchvision:{network.builder}")
    return module.eval()


def files_of(networks: Iterable[Network], folder: Path | None) -> dict[str, Any]:
    """For the results, by builder: the files of the original and the decomposed network, their checksums and scores.

    RANDOM where weights are random. In a folder of `multi-dnn decompose` only the decomposed networks are files.
    """
    entries = manifest(folder)
    if entries is not None:
        return {network.builder: entries.get(network.builder, RANDOM) for network in networks}
    found: dict[str, Any] = {}
    for network in networks:
        paths = [] if folder is None else [folder / f"{network.builder}{suffix}" for suffix in (".safetensors", ".pt2")]
        file = next((path for path in paths if path.is_file()), None)
        found[network.builder] = RANDOM if file is None else {
            "original": {"file": RANDOM, "sha256": RANDOM},
            "decomposed": {"file": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()},
        }  # fmt: skip
    return found


def remarks(networks: Mapping[str, Any]) -> list[str]:
    """Which network each builder of a set stands for, one line each."""
    lines = []
    for builder, entry in networks.items():
        if entry == RANDOM:
            lines.append(f"{builder}: {RANDOM}")
            continue
        parts = [f"{role} {_short(entry[role])}" for role in _ROLES]
        where = f", scored on {entry['data']} at {entry['size'][0]} px" if "size" in entry else ""
        lines.append(f"{builder}: {', '.join(parts)}{where}")
    return lines


def _short(file: Mapping[str, Any]) -> str:
    if file["file"] == RANDOM:
        return RANDOM
    score = f", top-1 {file['scores']['top1']:.4f}" if "scores" in file else ", not scored"
    return f"{file['file']} ({file['sha256'][:12]}{score})"


def mixed(sets: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Builders that stand for different networks in these sets of results: other files, or random weights."""
    known: dict[str, tuple[str, Any]] = {}
    found = []
    for name, set_results in sets.items():
        # Results from before files were recorded have random weights.
        files = set_results.get("networks") or dict.fromkeys(set_results["dnns"], RANDOM)
        for builder, entry in files.items():
            key = entry if isinstance(entry, str) else {role: entry.get(role, {}).get("sha256") for role in _ROLES}
            first_set, first_key = known.setdefault(builder, (name, key))
            if first_key != key:
                found.append(f"{builder} is not the same network in {first_set} and {name}")
    return found
