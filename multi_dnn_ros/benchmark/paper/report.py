"""Results as Markdown, and merging of result files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from multi_dnn_ros.benchmark.paper.conditions import ALTERNATIVE, BASELINE
from multi_dnn_ros.benchmark.paper.evaluated import mixed, remarks
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.json_files import read_json_object
from multi_dnn_ros.common.reporting import table, three_digits

#: Parts of a result that must be equal for results to be merged.
_COMMON = ("scenario", "machine", "versions", "settings")


def read_results(path: Path) -> dict[str, Any]:
    """Read a result file. Raises CommandError that names the file and the error."""
    content = read_json_object(path, "results of `multi-dnn benchmark paper`", CommandError)
    if content.get("scenario") != "paper" or "sets" not in content:
        raise CommandError(f"{path}: not written by multi-dnn benchmark paper")
    return content


def differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[str]:
    """Why two results are not comparable: differing settings, machine or versions."""
    found = []
    for part in _COMMON:
        one, other = left.get(part), right.get(part)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += [
                f"{part} {key}: {one.get(key)} and {other.get(key)}"
                for key in dict.fromkeys((*one, *other))
                if one.get(key) != other.get(key)
            ]
        elif one != other:
            found.append(f"{part}: {one} and {other}")
    return found


def merged(paths: Sequence[Path]) -> dict[str, Any]:
    """The sets of several files; each set from one file. The files may be of several folders of scored networks.

    Raises CommandError if they are not comparable, or if one name stands for different networks.
    """
    contents = [read_results(path) for path in paths]
    folders = [content["settings"].get("artifacts") for content in contents]
    result = {**contents[0], "commands": [content["command"] for content in contents], "sets": {}}
    result["settings"] = {
        **contents[0]["settings"],
        "artifacts": ", ".join(dict.fromkeys(filter(None, folders))) or None,
    }
    for path, content in zip(paths, contents, strict=True):
        pair = [contents[0], content]
        if all(map(_has_checksums, pair)):
            pair = [{**each, "settings": {**each["settings"], "artifacts": None}} for each in pair]
        if found := differences(*pair):
            raise CommandError(f"{paths[0]} and {path} are not comparable: {'; '.join(found)}")
        for name, set_results in content["sets"].items():
            if name in result["sets"]:
                raise CommandError(f"{path}: the set {name} is also in another file")
            result["sets"][name] = set_results
    if found := mixed(result["sets"]):
        raise CommandError(f"the files mix networks: {'; '.join(found)}")
    return result


def _has_checksums(content: Mapping[str, Any]) -> bool:
    """Whether the networks of all sets are identified by the checksums of their files."""
    return all(each.get("networks") for each in content["sets"].values())


def markdown(content: Mapping[str, Any]) -> str:
    """Every set as a table of its conditions, with machine and settings."""
    settings, machine = content["settings"], content["machine"]
    share = "" if settings["sms"] is None else f", {settings['sms']} SMs of it"
    tf32 = "fp32 with TF32 where PyTorch's defaults use it" if settings["tf32"] else "fp32 without TF32"
    lines = [
        "# Several DNNs at once",
        "",
        f"{machine['gpu'] if settings['device'] != 'cpu' else machine['cpu']}{share}; "
        f"torch {content['versions']['torch']}; {tf32}. Time of one inference while all run; median, p95 and p99 of a "
        f"run of {settings['seconds']:g} s, medians over the runs. Ratios are medians of the ratios within a block.",
        f"Measured rates of the device: {_rates(content['rates'])}.",
    ]
    if len(content["sets"]) > 1:
        lines += ["", f"Time of one inference, ms (of {BASELINE}):", "", _overview(content["sets"])]
    for name, set_results in content["sets"].items():
        summaries = set_results["summary"]
        samples = [sum(network["samples"] for network in summary["ms"].values()) for summary in summaries.values()]
        runs = max((len(condition["runs"]) for condition in set_results["conditions"].values()), default=0)
        lines += ["", f"## {name}", "", _table(set_results), ""]
        lines += [f"{runs} runs of each condition, {min(samples)} to {max(samples)} inferences."] if samples else []
        if len(set(set_results["dnns"])) > 1:
            lines += ["", "Median (p99) by network, ms:", "", _by_network(set_results)]
        lines += [f"- {line}" for line in (*remarks(set_results.get("networks", {})), *_remarks(set_results))]
    return "\n".join(lines) + "\n"


def _rates(rates: Mapping[str, Any]) -> str:
    operations = [
        f"{three_digits(rate / 1e12)} T operations/s at {name}" for name, rate in rates["operations_per_s"].items()
    ]
    return ", ".join([f"{three_digits(rates['bytes_per_s'] / 1e9)} GB/s", *operations])


def _table(set_results: Mapping[str, Any]) -> str:
    conditions, summaries = set_results["conditions"], set_results["summary"]
    header = [
        "condition", "ms", "p95", "p99", f"of {BASELINE}", f"of {ALTERNATIVE}", "times the floor", "inferences/s",
        f"memory MiB (of {BASELINE})", "CPU us per job", "longest stall ms",
    ]  # fmt: skip
    rows = []
    for name, summary in summaries.items():
        condition = conditions[name]
        tails = [max(network[tail] for network in summary["ms"].values()) for tail in ("p95", "p99")]
        rows.append(
            [
                name,
                three_digits(summary["mean_ms"]),
                *map(three_digits, tails),
                _ratio(summary.get(f"of_{BASELINE}")),
                _ratio(summary.get(f"of_{ALTERNATIVE}")),
                f"{summary['of_floor']:.1f} ({condition['floor']['bound']})" if "of_floor" in summary else "",
                f"{summary['inferences_per_s']:.0f}",
                _memory(condition, summary),
                f"{summary['host_us_per_job']:.0f} x {condition['jobs']}",
                f"{summary['stall_ms']:.1f}",
            ]
        )
    return table(header, rows)


def _memory(condition: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    if not condition.get("memory_bytes"):
        return ""
    ratio = summary.get(f"memory_of_{BASELINE}")
    return f"{condition['memory_bytes'] / 2**20:.0f}" + (f" ({ratio:.2f})" if ratio is not None else "")


def _overview(sets: Mapping[str, Mapping[str, Any]]) -> str:
    """One row per condition, one column per set."""
    names = list(dict.fromkeys(name for set_results in sets.values() for name in set_results["summary"]))

    def cell(summary: Mapping[str, Any] | None) -> str:
        if summary is None:
            return ""
        ratio = _ratio(summary.get(f"of_{BASELINE}"))
        return three_digits(summary["mean_ms"]) + (f" ({ratio})" if ratio else "")

    rows = [[name, *(cell(set_results["summary"].get(name)) for set_results in sets.values())] for name in names]
    return table(["condition", *sets], rows)


def _ratio(ratios: Mapping[str, float] | None) -> str:
    return f"{ratios['all']:.3f}" if ratios else ""


def _by_network(set_results: Mapping[str, Any]) -> str:
    networks = list(dict.fromkeys(set_results["dnns"]))

    def cell(of_network: Mapping[str, float]) -> str:
        return f"{three_digits(of_network['p50'])} ({three_digits(of_network['p99'])})"

    rows = [
        [name, *(cell(summary["ms"][network]) for network in networks)]
        for name, summary in set_results["summary"].items()
    ]
    return table(["condition", *networks], rows)


def _remarks(set_results: Mapping[str, Any]) -> list[str]:
    """Failures and warnings of the conditions."""
    remarks = []
    for name, condition in set_results["conditions"].items():
        if condition.get("error"):
            remarks.append(f"{name} failed: {condition['error']}")
        remarks += [f"{name}: {note}" for note in condition.get("notes", ())]
    return remarks
