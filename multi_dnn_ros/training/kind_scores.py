"""Calls the `score` of a result kind, which may be of another package, and checks what it returns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.training.metrics import NoTruth
from multi_dnn_ros.vision.result_kind import ResultKind


def scores_of(kind: ResultKind, pairs: Iterable[tuple[Any, Any]], labels: Sequence[str]) -> dict[str, float]:
    """The scores of pairs of result and ground truth, by name.

    Raises ExtensionError, which names the kind, for a kind without a score, for whatever its `score` raises, and for a
    score that is not a finite number; NoTruth, and what iterating over `pairs` raises, unchanged.
    """
    if kind.score is None:
        raise ExtensionError(f"results of kind '{kind.name}' cannot be scored")
    failures: list[Exception] = []

    def watched() -> Iterator[tuple[Any, Any]]:
        try:
            yield from pairs
        except Exception as error:
            failures.append(error)
            raise

    named = f"`score` of result kind '{kind.name}'"
    try:
        scores: Any = extensions.loaded(kind.score)(watched(), labels)
    except NoTruth:
        raise
    except Exception as error:  # whatever a module of another package raises
        if error in failures:  # of the network or the decoder
            raise
        raise ExtensionError(f"{named} raised {type(error).__name__}: {summarize_error(error)}") from error
    if not isinstance(scores, Mapping):
        raise ExtensionError(f"{named} returned {type(scores).__name__}; expected scores by name")
    for name, value in scores.items():
        if not isinstance(value, Real) or not math.isfinite(value):
            raise ExtensionError(f"{named} returned {value!r} as '{name}'; allowed: finite numbers")
    return {str(name): float(value) for name, value in scores.items()}
