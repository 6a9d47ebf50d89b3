"""The figures of ``multi-dnn benchmark host`` as a table and as stacked bars, alone or against a baseline."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import provenance, table, write_figure

_MIB = 1 << 20
#: Groups below this share of the largest bar are one colour.
_SMALL = 0.01
#: With a baseline: figures whose ratio to it is shown.
_COMPARED = ("results_hz", "cpu_ms_per_result", "cpu_ms_per_frame")


def read_baseline(path: Path) -> dict[str, Any]:
    """A file that the benchmark wrote. UsageError when it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--baseline {path}: {error}") from None
    if not isinstance(content, dict) or content.get("scenario") != "host" or not content.get("cases"):
        raise UsageError(f"--baseline {path}: not written by `multi-dnn benchmark host --output`")
    return content


def check_common(cases: Collection[str], baseline: Mapping[str, Any]) -> None:
    """UsageError when none of the cases, given by their names, is in the baseline."""
    if not any(name in baseline["cases"] for name in cases):
        raise UsageError(
            f"--baseline: no case in common; it has {', '.join(baseline['cases'])}; this run has {', '.join(cases)}"
        )


def compare(figures: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, Any]:
    """Where the baseline comes from, the ratios to it of every case that both have, and the conditions that differ."""
    ratios = {}
    for name, of in figures["cases"].items():
        before = baseline["cases"].get(name)
        if before is None:
            continue
        ratios[name] = {key: of[key] / before[key] for key in _COMPARED if of.get(key) and before.get(key)}
        if of["latency_ms"] and before["latency_ms"]:
            ratios[name]["latency_p99"] = of["latency_ms"]["p99"] / before["latency_ms"]["p99"]
    return {
        "command": baseline["command"],
        "versions": baseline["versions"],
        "machine": baseline["machine"],
        "cases": {name: baseline["cases"][name] for name in ratios},
        "ratios": ratios,
        "different": _differences(figures, baseline),
    }


def _differences(figures: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[str]:
    """Conditions, besides the versions, under which the baseline was measured and this run was not."""
    before, now = (
        {"runtime": of.get("runtime"), "seconds": of.get("seconds"), **machine}
        for of, machine in ((baseline, baseline["machine"]), (figures, provenance()["machine"]))
    )
    return [f"{name} was {before.get(name)} and is {value}" for name, value in now.items() if before.get(name) != value]


def host_table(figures: Mapping[str, Any]) -> str:
    """For the terminal: a row per case, then one per process and thread group."""
    rows, parts = [], []
    for name, of in figures["cases"].items():
        latency = of["latency_ms"]
        offered = of["offered_results_hz"]
        memory = sum(it["memory_bytes"] for process, it in of["processes"].items() if not process.startswith("camera"))
        rows.append([
            name,
            f"{of['results_hz']:.1f} of {offered:g}" if offered else "-",
            " / ".join(f"{latency[key]:.1f}" for key in ("p50", "p99", "max")) if latency else "-",
            _cell(of["cpu_ms_per_result"]),
            _cell(of["cpu_ms_per_frame"]),
            f"{memory / _MIB:.0f}",
        ])  # fmt: skip
        for process, it in of["processes"].items():
            for group, used in it["groups"].items():
                parts.append([
                    name, process, group, _cell(used["cpu_ms_per_result"]), _cell(used["cpu_ms_per_frame"]),
                    f"{used['context_switches_hz']:.0f}", f"{used['preemptions_hz']:.0f}",
                    f"{used['page_faults_per_frame']:.0f}",
                ])  # fmt: skip
    text = [
        table(
            ["case", "results/s", "p50 / p99 / max ms", "CPU ms per result", "CPU ms per frame", "memory MiB"], rows
        ),
        "",
        table(
            ["case", "process", "threads", "CPU ms per result", "per frame", "switches/s", "preemptions/s",
             "page faults per frame"],
            parts,
        ),
        f"CPU and memory of a case are without the cameras; {figures['runtime']} runtime",
    ]  # fmt: skip
    if ratios := figures.get("baseline", {}).get("ratios"):
        keys = [*_COMPARED, "latency_p99"]
        body = [[name, *(_cell(of.get(key), 3) for key in keys)] for name, of in ratios.items()]
        text += ["", table(["this run / baseline", *keys], body)]
        if different := figures["baseline"]["different"]:
            text.append(f"the baseline was measured under other conditions: {'; '.join(different)}")
    return "\n".join(text)


def plot_host(figures: Mapping[str, Any], path: Path) -> None:
    """Write a PNG: per case CPU ms per frame, stacked by process and thread group; the baseline's bar is pale."""
    with optional("a picture"):
        from matplotlib import colormaps
        from matplotlib.figure import Figure

    bars = []
    for name, of in figures["cases"].items():
        before = figures.get("baseline", {}).get("cases", {}).get(name)
        if before is not None:
            bars.append((f"{name}, baseline", _stack(before), 0.5))
        bars.append((name, _stack(of), 1.0))
    longest = max(sum(stack.values()) for _, stack, _ in bars)
    shown = {
        part: None for _, stack, _ in bars for part, value in stack.items() if value >= _SMALL * longest
    }  # in the order of the first case
    colors = {part: colormaps["tab20"](place % 20) for place, part in enumerate(shown)}
    colors["rest"] = (0.6, 0.6, 0.6, 1.0)
    figure = Figure(figsize=(11, 1.5 + 0.4 * len(bars)), layout="constrained")
    axes = figure.subplots()
    for place, (_, stack, alpha) in enumerate(bars):
        begin = 0.0
        rest = sum(value for part, value in stack.items() if part not in shown)
        for part, value in [*((part, stack.get(part, 0.0)) for part in shown), ("rest", rest)]:
            axes.barh(place, value, left=begin, color=colors[part], alpha=alpha)
            begin += value
    for part, color in colors.items():
        axes.barh(0, 0, color=color, label=part)
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars])
    axes.invert_yaxis()
    axes.set(xlabel="CPU ms per frame, cameras left out")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    write_figure(path, figure)


def _stack(of: Mapping[str, Any]) -> dict[str, float]:
    """CPU ms per frame of each process's groups; processes of one kind together."""
    stack: dict[str, float] = {}
    for process, it in of["processes"].items():
        kind = process.split()[0]
        if kind != "camera":
            for group, used in it["groups"].items():
                part = f"{kind}: {group}"
                stack[part] = stack.get(part, 0.0) + used["cpu_ms_per_frame"]
    return stack


def _cell(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
