"""Checkpoints of a training run, written atomically."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from multi_dnn_ros.common.error_text import summarize_error

FORMAT = "multi_dnn_ros training 1"


class TrainingError(ValueError):
    """Training cannot continue; the message says why. The last good checkpoint is unchanged."""


def save(path: Path, state: dict[str, Any], identity: str) -> None:
    """Write atomically, with fsync: a kill at any moment leaves the last complete checkpoint.

    identity: identifies the run (schedule, data, network) and is checked when loading. Raises TrainingError if it
    cannot be written, for example on a full disk.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            torch.save({**state, "format": FORMAT, "identity": identity}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        temporary.unlink(missing_ok=True)
        raise TrainingError(
            f"{path}: checkpoint cannot be written ({summarize_error(error)}); the last one is kept"
        ) from None


def load(path: Path, network: nn.Module, identity: str) -> dict[str, Any]:
    """The state of an earlier moment of the same run. Raises TrainingError for any other file;
    executes nothing in it.
    """
    device = next(network.parameters()).device
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        written, stored = state["identity"], state["network"]
        if state["format"] != FORMAT:
            raise ValueError(f"format is {state['format']!r}")
    except Exception as error:  # torch.load raises arbitrary errors for damaged bytes
        raise TrainingError(
            f"{path}: not a checkpoint of this loop ({type(error).__name__}: {summarize_error(error)})"
        ) from None
    shapes = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in stored.items()}
    if shapes != found:
        different = sorted(name for name in shapes.keys() | found.keys() if shapes.get(name) != found.get(name))
        raise TrainingError(f"{path}: checkpoint of another network: {different[0]} differs, {len(different)} in all")
    if written != identity:
        raise TrainingError(f"{path}: made with another schedule or data: {written}; remove it or use those")
    return state


def weights(network: nn.Module) -> dict[str, Tensor]:
    """A copy of the state dict."""
    return {name: value.detach().clone() for name, value in network.state_dict().items()}
