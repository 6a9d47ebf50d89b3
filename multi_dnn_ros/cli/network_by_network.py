"""Scenarios of ``multi-dnn benchmark`` that measure one network after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from multi_dnn_ros.common.errors import CommandError, UsageError


def measure_each(
    names: Iterable[str],
    measure: Callable[[str], dict[str, Any]],
    keep: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Measure the networks: `networks`, the figures of each, and `failed`, by name why a network has none.

    A network that cannot be measured is named with its error, and the next one follows. keep: called after each network
    with what there is so far, unless there are no figures yet: a file of an earlier run then stays. Raises CommandError
    if no network could be measured.
    """
    import torch

    figures: dict[str, Any] = {"networks": [], "failed": {}}
    for name in names:
        try:
            figures["networks"].append(measure(name))
        except (UsageError, ValueError, RuntimeError) as error:  # all errors of models, graphs and backends are these
            figures["failed"][name] = str(error)
            print(f"{name} is not measured: {error}", flush=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if figures["networks"]:
            keep(figures)
    if not figures["networks"]:
        raise CommandError("no network could be measured")
    return figures
