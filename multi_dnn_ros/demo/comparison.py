"""Compares the package's original and decomposed DNNs on the same generated road."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from multi_dnn_ros.common.reporting import provenance, rounded, table, with_change, write_json
from multi_dnn_ros.common.resources import config_file
from multi_dnn_ros.compression.macs import cost
from multi_dnn_ros.demo.output_folder import check_output
from multi_dnn_ros.demo.report import Outcome
from multi_dnn_ros.demo.run import Demo
from multi_dnn_ros.models.sources import load_network, weights_file
from multi_dnn_ros.settings.params_file import read_params_file

#: The package's sets of DNNs -> their parameter files.
SETS = {"original": "multi_dnn.yaml", "decomposed": "multi_dnn_small.yaml"}
_SCORES = {"lane_f1": "lane F1", "map50": "mAP@0.5"}
#: If a larger share of the images has no result, the machine is overloaded.
_MAX_MISSING = 0.05


@dataclass(frozen=True)
class Figures:
    """Figures of one DNN of one set. scores: those in the drive's summary. p50_ms, p95_ms: None without a result."""

    model: str
    macs: int
    file_bytes: int | None
    scores: Mapping[str, float] = field(default_factory=dict)
    p50_ms: float | None = None
    p95_ms: float | None = None


def run_both(demo: Demo, run: Callable[[Demo], Outcome] = Demo.run) -> int:
    """Run `demo` with the original DNNs, then with the decomposed ones, into its folder and the subfolder
    ``decomposed``; print a table of both. Returns the exit code: 1 if a DNN published nothing.

    The drives run one after another, so that each set has the machine to itself. run: replaced in tests. Raises
    what Demo.run raises, and models.errors.ModelError.
    """
    folders = {"original": demo.output, "decomposed": demo.output / "decomposed"}
    for folder in folders.values():
        check_output(folder)
    paths = {name: config_file(file) for name, file in SETS.items()}
    figures = {name: networks_of(path) for name, path in paths.items()}
    outcomes = []
    for number, (name, path) in enumerate(paths.items(), start=1):
        print(f"drive {number} of {len(SETS)}: the {name} DNNs ({path.name})", flush=True)
        outcomes.append(run(replace(demo, output=folders[name], params_file=path)))
        figures[name] = driven(figures[name], outcomes[-1].summary)
    content = {
        **provenance(),
        "drive": outcomes[0].summary["drive"],
        **{name: {dnn: vars(each) for dnn, each in of_set.items()} for name, of_set in figures.items()},
    }
    write_json(demo.output / "comparison.json", content)
    print(
        f"\nboth sets of DNNs on the same road, {demo.seconds:g} s each; the change from the original is in brackets:"
    )
    print(comparison_table(figures["original"], figures["decomposed"]))
    for line in _overload(demo, [outcome.summary for outcome in outcomes]):
        print(line)
    print(f"written to {demo.output / 'comparison.json'}")
    return max(outcome.exit_code for outcome in outcomes)


def networks_of(params_file: Path) -> dict[str, Figures]:
    """Static figures of each DNN. Raises ModelError if one cannot be loaded."""
    figures = {}
    for name, settings in read_params_file(params_file).dnns.items():
        source = load_network(settings.model)
        width, height = source.input_size(settings.model, None, "an input size")
        file = weights_file(settings.model)
        figures[name] = Figures(
            model=settings.model,
            macs=cost(source.network, (torch.zeros(1, 3, height, width),)).macs,
            file_bytes=file.stat().st_size if file is not None else None,
        )
    return figures


def driven(networks: Mapping[str, Figures], summary: Mapping[str, Any]) -> dict[str, Figures]:
    """`networks` with the figures of a drive. summary: the summary of that drive."""
    figures = {}
    for name, network in networks.items():
        measured = summary["dnns"][name]
        latency = measured.get("latency_ms", {})
        scores = {score: measured[score] for score in _SCORES if score in measured}
        figures[name] = replace(network, scores=scores, p50_ms=latency.get("p50"), p95_ms=latency.get("p95"))
    return figures


def comparison_table(originals: Mapping[str, Figures], others: Mapping[str, Figures]) -> str:
    """Two rows per DNN; the second shows the change from the first."""
    rows = []
    for dnn, first in originals.items():
        for figures in (first, others[dnn]):
            compared = figures is not first
            rows.append(
                [
                    dnn if not compared else "",
                    figures.model,
                    _score(figures, first, compared),
                    *(
                        with_change(value, of_first if compared else None, digits)
                        for value, of_first, digits in (
                            (figures.macs / 1e6, first.macs / 1e6, 1),
                            (figures.p50_ms, first.p50_ms, 1),
                            (figures.p95_ms, first.p95_ms, 1),
                            (_megabytes(figures.file_bytes), _megabytes(first.file_bytes), 2),
                        )
                    ),
                ]
            )
    return table(["DNN", "model", "vs ground truth", "million MACs", "p50 ms", "p95 ms", "file MB"], rows)


def _overload(demo: Demo, summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """A warning if a DNN has no result for more than _MAX_MISSING of the images of a drive."""
    images = demo.images
    found = []
    for dnn in summaries[0]["dnns"]:
        results = [summary["dnns"][dnn]["frames"] for summary in summaries]
        if min(results) < (1.0 - _MAX_MISSING) * images:
            counts = ", ".join(f"{count} ({name})" for count, name in zip(results, SETS, strict=True))
            found.append(f"warning: of {images} images, DNN {dnn} has a result for {counts}")
    if found:
        found.append(
            "If this machine is overloaded, the latencies say little about the DNNs: repeat with a lower --rate."
        )
    return found


def _score(figures: Figures, first: Figures, compared: bool) -> str:
    for score, name in _SCORES.items():
        if score in figures.scores:
            shown = ""
            if compared and score in first.scores:
                shown = f" ({rounded(figures.scores[score] - first.scores[score], 3):+.3f})"
            return f"{name} {figures.scores[score]:.3f}{shown}"
    return "nothing to compare"


def _megabytes(count: int | None) -> float | None:
    return None if count is None else count / 1e6
