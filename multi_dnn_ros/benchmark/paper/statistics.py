"""Figures of one run, and of all runs of a condition relative to the other conditions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from multi_dnn_ros.benchmark.paper.conditions import ALTERNATIVE, BASELINE
from multi_dnn_ros.benchmark.paper.process_group import Report
from multi_dnn_ros.common.reporting import distribution

_PERCENTILES = ("p50", "p95", "p99")


def run_figures(reports: Sequence[Report], ticker_reports: Sequence[Report], seconds: float) -> dict[str, Any]:
    """Figures of one run over `seconds`, and of the run with the 1 kHz thread, which gave `ticker_reports`.

    ms: time of one inference while all run, by network, over all its DNNs. mean_ms: the DNNs' medians, averaged.
    stall_ms: delay of the 1 kHz thread.
    """
    dnns = [dnn for report in reports for dnn in report.dnns]
    names = list(dict.fromkeys(dnn.network for dnn in dnns))
    return {
        "ms": {
            name: distribution([ms for dnn in dnns if dnn.network == name for ms in dnn.latencies_ms]) for name in names
        },
        "mean_ms": statistics.fmean(statistics.median(dnn.latencies_ms) for dnn in dnns),
        "inferences_per_s": sum(dnn.completed for dnn in dnns) / seconds,
        "host_us_per_job": statistics.fmean(dnn.host_us_per_job for dnn in dnns),
        "stall_ms": distribution([late for report in ticker_reports for late in report.late_ms]),
    }


def summarize(conditions: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each condition with runs: medians over its runs, and ratios within each block.

    samples: number in all runs together. stall_ms: maximum of all runs. of_<condition>: inference time relative to that
    condition in the same block, median over the blocks; also by network.
    """
    return {name: _summary(condition, conditions) for name, condition in conditions.items() if condition.get("runs")}


def _summary(condition: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    runs = condition["runs"]
    mean_ms = statistics.median(run["mean_ms"] for run in runs)
    summary: dict[str, Any] = {
        "ms": {
            network: {
                **{name: statistics.median(run["ms"][network][name] for run in runs) for name in _PERCENTILES},
                "samples": sum(run["ms"][network]["samples"] for run in runs),
            }
            for network in runs[0]["ms"]
        },
        "mean_ms": mean_ms,
        "inferences_per_s": statistics.median(run["inferences_per_s"] for run in runs),
        "host_us_per_job": statistics.median(run["host_us_per_job"] for run in runs),
        "stall_ms": max(run["stall_ms"]["max"] for run in runs),
    }
    if "floor" in condition:
        summary["of_floor"] = mean_ms / condition["floor"]["ms"]
    for other in (BASELINE, ALTERNATIVE):
        reference = conditions.get(other, {})
        if reference.get("runs"):
            summary[f"of_{other}"] = _ratios(runs, reference["runs"])
            if condition.get("memory_bytes") and reference.get("memory_bytes"):
                summary[f"memory_of_{other}"] = condition["memory_bytes"] / reference["memory_bytes"]
    return summary


def _ratios(runs: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Ratios by network; `all`: that of the mean over the DNNs."""
    by_block = {other["block"]: other for other in others}
    pairs = [(run, by_block[run["block"]]) for run in runs if run["block"] in by_block]
    if not pairs:
        return {}
    ratios = {
        network: statistics.median(run["ms"][network]["p50"] / other["ms"][network]["p50"] for run, other in pairs)
        for network in runs[0]["ms"]
    }
    return {**ratios, "all": statistics.median(run["mean_ms"] / other["mean_ms"] for run, other in pairs)}
