"""Tables with given times."""

from __future__ import annotations

from collections.abc import Mapping

from multi_dnn_ros.partition.tables import BatchTable, Row


def table(unit: str, total_ms: Mapping[int, float], **fields: object) -> BatchTable:
    """A table of a unit with these total times by batch size; fields: others than those of an example."""
    rows = tuple(
        Row(batch=batch, samples=1, input_ms=0, compute_ms=ms, output_ms=0, total_ms=ms, spread_ms=0)
        for batch, ms in sorted(total_ms.items())
    )
    example = {"model": "net", "precision": "auto", "shape": (3, 8, 8), "parameters": 3, "device": "a device"}
    return BatchTable(**{**example, "unit": unit, "rows": rows, **fields})  # type: ignore[arg-type]


def linear(unit: str, ms: float, max_batch: int) -> BatchTable:
    """A table of a unit that takes `ms` per image."""
    return table(unit, {1: ms, max_batch: ms * max_batch})
