"""The bound by which plans of several streams are judged."""

from __future__ import annotations

from collections.abc import Sequence

from multi_dnn_ros.graph.branches import DeviceOperation, readers, remaining_s


def critical_path(operations: Sequence[DeviceOperation]) -> tuple[tuple[str, ...], float]:
    """The longest chain of dependent operations, and its seconds; no number of streams is faster."""
    if not operations:
        return (), 0.0
    remaining, after = remaining_s(operations), readers(operations)
    first = max(operations, key=lambda operation: remaining[operation.name]).name
    chain = [first]
    while after[chain[-1]]:
        chain.append(max(after[chain[-1]], key=remaining.__getitem__))
    return tuple(chain), remaining[first]
