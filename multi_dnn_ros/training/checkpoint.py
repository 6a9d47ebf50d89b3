"""Checkpoints of a training run, written atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from multi_dnn_ros.common.error_causes import error_and_causes
from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.file_lock import lock_file

FORMAT = "multi_dnn_ros training 2"
#: Text for a setting that is missing on one side; maximum number of characters shown of a value.
_NONE, _SHOWN = "not set", 60


class TrainingError(ValueError):
    """Training cannot continue; the message says why. The last good checkpoint is unchanged."""


def save(path: Path, state: dict[str, Any], identity: Mapping[str, Any]) -> None:
    """Write atomically, with fsync: a kill at any moment leaves the last complete checkpoint.

    identity: what defines the run (schedule, data, network, versions), as JSON values; checked when loading. Raises
    TrainingError if it cannot be written, for example on a full disk.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            torch.save({**state, "format": FORMAT, "identity": json.dumps(identity, sort_keys=True)}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        with suppress(OSError):  # a file system that became read-only refuses this, too
            temporary.unlink(missing_ok=True)
        # PyTorch's writer raises a RuntimeError about file positions on top of the system's error.
        reason = next((each for each in error_and_causes(error) if isinstance(each, OSError)), error)
        raise TrainingError(
            f"{path}: checkpoint cannot be written ({summarize_error(reason)}); the previous one is kept"
        ) from None


def lock(path: Path) -> ExitStack:
    """Lock a checkpoint, by a file beside it, until the returned stack is closed or this process ends.

    Raises CommandError if another training writes it, OSError if the lock cannot be written.
    """
    return lock_file(
        path.with_name(path.name + ".lock"),
        taken=f"{path} is written by another training; end it first, or give another --checkpoint",
    )


def load(path: Path, network: nn.Module, identity: Mapping[str, Any]) -> dict[str, Any]:
    """The state that was saved in the same run. Raises TrainingError for any other file, with the settings that differ;
    never executes code from the file.
    """
    device = next(network.parameters()).device
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        if state["format"] != FORMAT:
            raise ValueError(f"format is {state['format']!r}, expected {FORMAT!r}")
        written, stored = json.loads(state["identity"]), state["network"]
    except Exception as error:  # torch.load raises arbitrary errors for damaged bytes
        raise TrainingError(
            f"{path}: not a checkpoint of this loop ({type(error).__name__}: {summarize_error(error)})"
        ) from None
    shapes = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in stored.items()}
    if shapes != found:
        different = sorted(name for name in shapes.keys() | found.keys() if shapes.get(name) != found.get(name))
        raise TrainingError(f"{path}: checkpoint of another network: {different[0]} differs, {len(different)} in all")
    changed = differences(written, json.loads(json.dumps(identity)))
    if changed:
        raise TrainingError(
            f"{path}: checkpoint of another run: {'; '.join(changed)}. Use the same settings, or remove the file"
        )
    return state


def differences(stored: Any, current: Any, name: str = "") -> list[str]:
    """One text per setting whose stored value differs from the current one; nested settings are named a.b."""
    if isinstance(stored, dict) and isinstance(current, dict):
        keys = sorted(stored.keys() | current.keys())
        return [
            text
            for key in keys
            for text in differences(stored.get(key, _NONE), current.get(key, _NONE), f"{name}.{key}" if name else key)
        ]
    return [] if stored == current else [f"{name} is {_short(stored)} there, {_short(current)} now"]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def weights(network: nn.Module) -> dict[str, Tensor]:
    """A copy of the state dict."""
    return {name: value.detach().clone() for name, value in network.state_dict().items()}
