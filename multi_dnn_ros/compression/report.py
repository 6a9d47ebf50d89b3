"""Report of a decomposition: totals and each layer, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from multi_dnn_ros.compression.decompose import Outcome
from multi_dnn_ros.compression.macs import Cost


def summary(
    outcomes: Sequence[Outcome],
    costs: tuple[Cost, Cost],
    file_bytes: tuple[int, int],
    latency: Sequence[Mapping[str, Any]],
    **origin: Any,
) -> dict[str, Any]:
    """Content of the report.

    costs, file_bytes: before and after. latency: one entry per number of concurrent instances, with `instances`,
    `original_ms`, `decomposed_ms` from the same run; empty if nothing was timed. origin: command, machine, versions,
    model, policy and so on, copied unchanged.
    """
    before, after = costs
    return {
        **origin,
        "macs": _change(before.macs, after.macs),
        "parameters": _change(before.parameters, after.parameters),
        "file_bytes": _change(*file_bytes),
        "latency_ms": list(latency),
        "layers": [
            {
                "name": outcome.name,
                "layer": outcome.layer,
                "fate": "decomposed" if outcome.plan is not None else "kept",
                "plan": outcome.plan.model_dump(mode="json") if outcome.plan is not None else None,
                "reason": outcome.reason,
                "relative_error": outcome.error,
                "macs": _change(*outcome.macs),
                "parameters": _change(*outcome.parameters),
                "measured": outcome.details,
            }
            for outcome in outcomes
        ],
    }


def totals(content: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """(quantity, before, after, change) of the network, as text."""
    rows = []
    for key, name, scale, unit in (
        ("macs", "MACs", 1e9, "G"),
        ("parameters", "parameters", 1e6, "M"),
        ("file_bytes", "file", 1e6, "MB"),
    ):
        before, after, cut = content[key].values()
        rows.append((name, f"{before / scale:.3f} {unit}", f"{after / scale:.3f} {unit}", f"{-cut:+.1%}"))
    for entry in content["latency_ms"]:
        before, after = entry["original_ms"], entry["decomposed_ms"]
        name = "latency, alone" if entry["instances"] == 1 else f"latency, {entry['instances']} at once"
        rows.append((name, f"{before:.3f} ms", f"{after:.3f} ms", f"{after / before - 1:+.1%}"))
    return rows


def _change(before: int, after: int) -> dict[str, float]:
    return {"before": before, "after": after, "cut": 1.0 - after / before if before else 0.0}
