"""Chooses between variants of a stage, such as numbers of streams for its branches: by measurement, cached on disk."""

from __future__ import annotations

import hashlib
import json
import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.backends.agreement import noise_like
from multi_dnn_ros.common.atomic_files import atomic_write
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.resources import cache_folder

log = logging.getLogger(__name__)

#: Numbers of streams that are tried in addition to 1 if the parameter `dnn.<dnn>.branches` is 0.
TRIED = (2, 4, 8)

#: Largest time relative to choice 1 at which another one is used: smaller gains may be noise.
_MAX_RELATIVE_TIME = 0.98
_ROUNDS = 9
#: Comparisons of two runs with the same input, each after a run with another input.
_REPEATS = 8


def check_repeatable(stage: Callable[[Tensors], Tensors], inputs: Tensors) -> None:
    """Raise ValueError unless runs with the same input give bit-equal results, with other inputs in between.

    inputs: example inputs; noise of their shapes is used. An operation that overwrites memory which another branch
    still reads would show here.
    """
    image = noise_like(inputs)
    other = tuple(-2.0 * tensor if tensor.is_floating_point() else tensor for tensor in image)
    expected = tuple(tensor.clone() for tensor in stage(image))
    for _ in range(_REPEATS):
        stage(other)
        for index, (result, right) in enumerate(zip(stage(image), expected, strict=True)):
            if not _same_bits(result, right):
                raise ValueError(f"result {index} differs between two runs with the same input")


def choose_fastest(times: Mapping[int, Sequence[float]]) -> int:
    """The choice with the smallest median time; 1 unless another one is clearly faster.

    times: milliseconds by choice, such as the number of streams; choice 1 is the unchanged stage. At equal times the
    smallest choice is returned.
    """
    medians = {choice: statistics.median(ms) for choice, ms in times.items()}
    best = min(medians, key=lambda choice: (medians[choice], choice))
    return best if medians[best] <= _MAX_RELATIVE_TIME * medians[1] else 1


def measure_in_turn(
    candidates: Mapping[int, Callable[[], object]], ms: Callable[[Callable[[], object]], float], rounds: int = _ROUNDS
) -> dict[int, list[float]]:
    """Milliseconds of each candidate, by choice, in each round; `ms` measures every candidate once per round."""
    times: dict[int, list[float]] = {choice: [] for choice in candidates}
    for _ in range(rounds):
        for choice, call in candidates.items():
            times[choice].append(ms(call))
    return times


class ChoiceCache:
    """Choices by stage and device, such as the number of streams: a file for each in `folder`.

    folder: None: `kind` in the user's cache folder. allowed: choices that a file may contain. A file that is invalid or
    cannot be read or written is logged and ignored.
    """

    def __init__(
        self, folder: Path | None = None, kind: str = "branches", allowed: Sequence[int] = (1, *TRIED)
    ) -> None:
        self._folder = folder or cache_folder() / kind
        self._format = f"multi_dnn_ros {kind} 1"
        self._allowed = tuple(allowed)

    def get(self, key: str) -> int | None:
        """The choice for a key of choice_key(); None if there is none."""
        path = self._folder / f"{key}.json"
        try:
            content: Any = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(content, dict) or content.get("format") != self._format:
                raise ValueError(f"it is not of format '{self._format}'")
            choice, allowed = content["choice"], self._allowed
            if choice not in allowed:
                raise ValueError(f"choice is {choice}; allowed: {', '.join(map(str, allowed))}")
            return int(choice)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("the cached choice in %s is not used, and is measured again: %s", path, summarize_error(error))
            return None

    def put(self, key: str, choice: int, times: Mapping[int, Sequence[float]]) -> None:
        """Store a choice with the median times that it is based on."""
        medians = {str(each): statistics.median(ms) for each, ms in times.items()}
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(self._folder / f"{key}.json") as temporary:
                text = json.dumps({"format": self._format, "choice": choice, "ms": medians}, indent=1)
                temporary.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            log.warning("the choice is not cached: %s cannot be written: %s", self._folder, error)


def choice_key(graph: Sequence[str], inputs: Tensors, device: str) -> str:
    """Key of a choice. graph: from graph_key(). device: its name, SMs and whatever else determines the times."""
    shapes = [(tuple(tensor.shape), tensor.stride(), str(tensor.dtype)) for tensor in inputs]
    text = "\n".join((*graph, str(shapes), device, torch.__version__))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _same_bits(result: torch.Tensor, expected: torch.Tensor) -> bool:
    if (result.shape, result.dtype) != (expected.shape, expected.dtype):
        return False
    left, right = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (result, expected))
    return torch.equal(left, right)
