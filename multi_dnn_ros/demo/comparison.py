"""Compares the package's original and decomposed DNNs on the same generated road."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from multi_dnn_ros.common.reporting import provenance, table, write_json
from multi_dnn_ros.common.resources import config_file
from multi_dnn_ros.compression.macs import cost
from multi_dnn_ros.demo.drive import Demo
from multi_dnn_ros.demo.output_folder import check_output
from multi_dnn_ros.demo.report import counts_text, score_of
from multi_dnn_ros.models.sources import load_network, weights_file
from multi_dnn_ros.settings.params_file import read_params_file

#: The package's sets of DNNs -> their parameter files.
SETS = {"original": "multi_dnn.yaml", "decomposed": "multi_dnn_small.yaml"}
#: If a larger share of the images has no result, the machine is overloaded.
_MAX_MISSING = 0.05


def run_both(demo: Demo, run: Callable[[Demo], dict[str, Any]]) -> int:
    """Run `demo` with the original DNNs, then with the decomposed ones, into its folder and the subfolder
    ``decomposed``; print a table of both. Returns the exit code: 1 if a DNN published nothing.

    The drives run one after another, so that each set has the machine to itself. run: runs a demo and returns its
    summary.
    """
    folders = {"original": demo.output, "decomposed": demo.output / "decomposed"}
    for folder in folders.values():
        check_output(folder)
    figures: dict[str, dict[str, dict[str, Any]]] = {}
    summaries = []
    for name, file in SETS.items():
        print(f"drive {len(figures) + 1} of {len(SETS)}: the {name} DNNs ({file})", flush=True)
        path = config_file(file)
        summary = run(replace(demo, output=folders[name], params_file=path))
        dnns = read_params_file(path).dnns
        figures[name] = {dnn: _compared(dnns[dnn].model, each) for dnn, each in summary["dnns"].items()}
        summaries.append(summary)
    write_json(demo.output / "comparison.json", {**provenance(), "drive": summaries[0]["drive"], **figures})
    print(
        f"\nboth sets of DNNs on the same road, {demo.seconds:g} s each; the change from the original is in brackets:"
    )
    print(comparison_table(figures["original"], figures["decomposed"]))
    overloaded = False
    for dnn in summaries[0]["dnns"]:
        results = [summary["dnns"][dnn]["frames"] for summary in summaries]
        if min(results) < (1.0 - _MAX_MISSING) * demo.images:
            counts = counts_text(dict(zip(SETS, results, strict=True)))
            print(f"warning: of {demo.images} images, DNN {dnn} has a result for {counts}")
            overloaded = True
    if overloaded:
        print("If this machine is overloaded, the latencies say little about the DNNs: repeat with a lower --rate.")
    print(f"written to {demo.output / 'comparison.json'}")
    return 1 if any(summary["silent"] for summary in summaries) else 0


def comparison_table(originals: Mapping[str, Mapping[str, Any]], others: Mapping[str, Mapping[str, Any]]) -> str:
    """Two rows per DNN; the second shows the change from the first."""
    rows = []
    for dnn, first in originals.items():
        rows.append([dnn, *_cells(first, {})])
        rows.append(["", *_cells(others[dnn], first)])
    return table(["DNN", "model", "vs ground truth", "million MACs", "p50 ms", "p95 ms", "file MB"], rows)


def _cells(figures: Mapping[str, Any], first: Mapping[str, Any]) -> list[str]:
    """Cells of a row of the comparison. first: figures of the first row of the DNN; empty for that row itself."""
    score, reference = score_of(figures), score_of(first)
    change = rounded(score[1] - reference[1], 3) if score and reference else None
    shown = f"{score[0]} {score[1]:.3f}" if score else "nothing to compare"
    cells = [figures["model"], shown + ("" if change is None else f" ({change:+.3f})")]
    for name, unit, digits in (("macs", 1e6, 1), ("p50_ms", 1, 1), ("p95_ms", 1, 1), ("file_bytes", 1e6, 2)):
        value, before = (each.get(name) and each[name] / unit for each in (figures, first))
        cells.append(with_change(value, before, digits))
    return cells


def _compared(model: str, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Static figures of a DNN and those of its drive."""
    source, file = load_network(model), weights_file(model)
    width, height = source.input_size(model, None, "an input size")
    latency = measured.get("latency_ms", {})
    return {
        "model": model,
        "macs": cost(source.network, (torch.zeros(1, 3, height, width),)).macs,
        "file_bytes": file.stat().st_size if file is not None else None,
        **{f"{name}_ms": latency.get(name) for name in ("p50", "p95")},
        **{name: measured[name] for name in ("lane_f1", "map50") if name in measured},
    }


def with_change(value: float | None, first: float | None, digits: int = 3) -> str:
    """Table cell with a value and its relative change from the first row: `0.359 (-45.3%)`.

    value: None gives a dash. first: None for the first row itself. No change is shown for a first value of 0.
    """
    if value is None:
        return "-"
    return f"{value:.{digits}f}" + (f" ({rounded(value / first - 1, 3):+.1%})" if first else "")


def rounded(value: float, digits: int) -> float:
    """`value` rounded for display; never -0.0, which would be shown with its sign."""
    return round(value, digits) + 0.0
