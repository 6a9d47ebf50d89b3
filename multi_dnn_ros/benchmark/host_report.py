"""The figures of ``multi-dnn benchmark host`` as a table and as stacked bars, alone or compared with a baseline."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.json_files import read_json_object
from multi_dnn_ros.common.reporting import provenance, table, write_figure

_MIB = 1 << 20
#: Groups below this share of the longest bar are drawn together as `rest`.
_SMALL = 0.01
#: Figures whose ratio to a baseline is shown.
_COMPARED = ("results_hz", "cpu_ms_per_result", "cpu_ms_per_frame")


def read_baseline(path: Path) -> dict[str, Any]:
    """Read a file that the benchmark wrote. Raises UsageError for any other file."""
    content = read_json_object(path, "figures of `multi-dnn benchmark host --output`", UsageError)
    if content.get("scenario") != "host" or not content.get("cases"):
        raise UsageError(f"--baseline {path}: not written by `multi-dnn benchmark host --output`")
    return content


def check_common(cases: Collection[str], baseline: Mapping[str, Any]) -> None:
    """Raise UsageError if none of the cases, given by their names, is in the baseline."""
    if not any(name in baseline["cases"] for name in cases):
        raise UsageError(
            f"--baseline: no case in common; it has {', '.join(baseline['cases'])}; this run has {', '.join(cases)}"
        )


def compare(figures: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, Any]:
    """The baseline's origin, the ratios to it for every case that both have, and the conditions that differ."""
    ratios = {}
    for name, case in figures["cases"].items():
        before = baseline["cases"].get(name)
        if before is None:
            continue
        ratios[name] = {key: case[key] / before[key] for key in _COMPARED if case.get(key) and before.get(key)}
        if case["latency_ms"] and before["latency_ms"]:
            ratios[name]["latency_p99"] = case["latency_ms"]["p99"] / before["latency_ms"]["p99"]
    return {
        "command": baseline["command"],
        "versions": baseline["versions"],
        "machine": baseline["machine"],
        "cases": {name: baseline["cases"][name] for name in ratios},
        "ratios": ratios,
        "different": _differences(figures, baseline),
    }


def _differences(figures: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[str]:
    """Conditions, apart from the versions, that differ between the baseline and this run."""
    before, now = (
        {"runtime": run.get("runtime"), "seconds": run.get("seconds"), **machine}
        for run, machine in ((baseline, baseline["machine"]), (figures, provenance()["machine"]))
    )
    return [f"{name} was {before.get(name)} and is {value}" for name, value in now.items() if before.get(name) != value]


def host_table(figures: Mapping[str, Any]) -> str:
    """Text for the terminal: a row per case, then one per process and thread group."""
    rows, parts = [], []
    for name, case in figures["cases"].items():
        latency = case["latency_ms"]
        offered = case["offered_results_hz"]
        processes = case["processes"]
        memory = sum(processes[process]["memory_bytes"] for process in processes if not process.startswith("camera"))
        rows.append([
            name,
            f"{case['results_hz']:.1f} of {offered:g}" if offered else "-",
            " / ".join(f"{latency[key]:.1f}" for key in ("p50", "p99", "max")) if latency else "-",
            _cell(case["cpu_ms_per_result"]),
            _cell(case["cpu_ms_per_frame"]),
            f"{memory / _MIB:.0f}",
        ])  # fmt: skip
        for process in processes:
            for group, used in processes[process]["groups"].items():
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
            ["case", "process", "thread group", "CPU ms per result", "per frame", "switches/s", "preemptions/s",
             "page faults per frame"],
            parts,
        ),
        f"CPU and memory of a case do not include the cameras; {figures['runtime']} runtime",
    ]  # fmt: skip
    if ratios := figures.get("baseline", {}).get("ratios"):
        keys = [*_COMPARED, "latency_p99"]
        body = [[name, *(_cell(case.get(key), 3) for key in keys)] for name, case in ratios.items()]
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
    for name, case in figures["cases"].items():
        before = figures.get("baseline", {}).get("cases", {}).get(name)
        if before is not None:
            bars.append((f"{name}, baseline", _stack(before), 0.5))
        bars.append((name, _stack(case), 1.0))
    longest = max(sum(stack.values()) for _, stack, _ in bars)
    shown = {
        part: None for _, stack, _ in bars for part, value in stack.items() if value >= _SMALL * longest
    }  # in the order of the first case
    colors = {part: colormaps["tab20"](index % 20) for index, part in enumerate(shown)}
    colors["rest"] = (0.6, 0.6, 0.6, 1.0)
    figure = Figure(figsize=(11, 1.5 + 0.4 * len(bars)), layout="constrained")
    axes = figure.subplots()
    for position, (_, stack, alpha) in enumerate(bars):
        begin = 0.0
        rest = sum(value for part, value in stack.items() if part not in shown)
        for part, value in [*((part, stack.get(part, 0.0)) for part in shown), ("rest", rest)]:
            axes.barh(position, value, left=begin, color=colors[part], alpha=alpha)
            begin += value
    for part, color in colors.items():
        axes.barh(0, 0, color=color, label=part)
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars])
    axes.invert_yaxis()
    axes.set(xlabel="CPU ms per frame, without the cameras")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    write_figure(path, figure)


def _stack(case: Mapping[str, Any]) -> dict[str, float]:
    """CPU ms per frame of each thread group, summed over processes of the same kind; without the cameras."""
    stack: dict[str, float] = {}
    for name, process in case["processes"].items():
        kind = name.split()[0]
        if kind != "camera":
            for group, used in process["groups"].items():
                part = f"{kind}: {group}"
                stack[part] = stack.get(part, 0.0) + used["cpu_ms_per_frame"]
    return stack


def _cell(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
