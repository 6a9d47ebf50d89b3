"""Checkpoints of a training run, written atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from multi_dnn_ros.common.atomic_files import atomic_write
from multi_dnn_ros.common.errors import error_and_causes, summarize_error

FORMAT = "multi_dnn_ros training 4"
#: Maximum number of characters shown of a value.
_SHOWN = 60


class TrainingError(ValueError):
    """Training cannot continue; the message says why. The last good checkpoint is unchanged."""


def save(path: Path, state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Write atomically, with fsync: a kill at any moment leaves the last complete checkpoint.

    identity: what defines the run (schedule, data, network, versions), as JSON values; checked when loading. Raises
    TrainingError if it cannot be written, for example on a full disk.
    """
    try:
        with atomic_write(path, to_disk=True) as temporary, temporary.open("wb") as file:
            torch.save({**state, "format": FORMAT, "identity": json.dumps(identity)}, file)
    except (OSError, RuntimeError) as error:
        # PyTorch's writer raises a RuntimeError about file positions on top of the system's error.
        reason = next((each for each in error_and_causes(error) if isinstance(each, OSError)), error)
        raise TrainingError(
            f"{path}: checkpoint cannot be written ({summarize_error(reason)}); the previous one is kept"
        ) from None


def load(path: Path, identity: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The state that was saved in the same run. Raises TrainingError for any other file, with the settings that differ;
    never executes code from the file.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        if state["format"] != FORMAT:
            raise ValueError(f"format is {state['format']!r}, expected {FORMAT!r}")
        before = _flat(json.loads(state["identity"]))
    except Exception as error:  # torch.load raises arbitrary errors for damaged bytes
        raise TrainingError(
            f"{path}: not a checkpoint of this loop ({type(error).__name__}: {summarize_error(error)})"
        ) from None
    now = _flat(json.loads(json.dumps(identity)))
    changed = [
        f"{name} is {str(before.get(name, 'not set'))[:_SHOWN]} there, {str(now.get(name, 'not set'))[:_SHOWN]} now"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if changed:
        raise TrainingError(
            f"{path}: checkpoint of another run: {'; '.join(changed[:5])}. Use the same settings, or remove the file"
        )
    return state


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under the names a.b."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found
