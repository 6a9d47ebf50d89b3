"""Figures of docs/measured.md are those of the files that their section names.

Each figure of three digits and more must be a value of a file, rounded to the digits that it is written with: as it
stands, in percent, in another unit, or as what is missing to 100 %. A wrong figure may be another value of a large file
by chance, so the figures that the README quotes, and those that are computed from several values, are compared one by
one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from test_figures import PAGE, ROOT, figures, sections, sources, whole

_LEAST_DIGITS = 3
#: Units: percent, milli, kilo, micro, MiB.
_SCALES = (1.0, 100.0, 1e3, 1e-3, 1e-6, 2.0**-20)
#: A longer list of numbers is samples, and no figure is one of these.
_SAMPLES = 12
#: Figures that are no value of a file: settings, arguments, rates and sums that test_computed_figures compares or that
#: the text derives, and figures of runs of which no file is kept, as the text says.
_NOT_IN_FILES = {
    "the-demo": {"212992", "4194304"},
    "on-a-cpu": {"1613"},
    "three-cameras-and-one-of-them-flooding": {"56,578", "170,650"},
    "engine-processes": {"262", "267"},
    "heavy-networks": {"188", "270", "1.31"},
    "an-important-dnn-among-heavy-ones": {"106", "105", "8,100", "2.16"},
    "a-batch-on-two-gpus": {
        "1.79",
        "1.80",
        "1.82",
        "1.94",
        "2.07",
        "1.84",
        "1.91",
        "1.90",
        "1.88",
        "1.93",
        "1.87",
        "1.95",
        "1.896",
    },
    "a-batch-on-shares-of-one-gpu": {"39.7", "33.3", "33.0", "29.7", "26.0", "24.8", "23.4", "27.7"},
    "a-batch-on-four-gpus": {
        "3.31",
        "4.00",
        "3.33",
        "2.95",
        "3.21",
        "4.77",
        "3.75",
        "3.65",
        "3.19",
        "3.11",
        "3.98",
    },
    "parallel-branches-of-one-image": {"105"},
    "the-frames-of-a-dnn-on-four-gpus": {"213"},
    "one-network-alone": {"0.745", "0.286", "1.422", "0.916", "0.831", "0.401", "2.762", "1.559", "1.60"},
    "accuracy-against-macs": {"92.4"},
}


@cache
def content(name: str) -> Any:
    return json.loads((ROOT / "results" / name).read_text(encoding="utf-8"))


def values_of(value: Any) -> Iterator[float]:
    """The numbers in a result, also those in its texts."""
    if isinstance(value, dict):
        for each in value.values():
            yield from values_of(each)
    elif isinstance(value, list):
        if len(value) <= _SAMPLES or not all(isinstance(each, (int, float)) for each in value):
            for each in value:
                yield from values_of(each)
    elif isinstance(value, str):
        yield from map(float, re.findall(r"(?<![\w.])\d+(?:\.\d+)?", value))
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        yield float(value)


def is_rounded(figure: str, value: float) -> bool:
    """Whether a figure as it is written is this value, rounded to its digits."""
    written = figure.replace(",", "")
    step = 10.0 ** -len(written.partition(".")[2])
    return abs(value - float(written)) <= step / 2 * (1 + 1e-6)


def is_in(figure: str, values: set[float]) -> bool:
    return any(
        is_rounded(figure, abs(value) * scale) for value in values for scale in _SCALES
    ) or any(is_rounded(figure, 100.0 * (1.0 - value)) for value in values)  # fmt: skip


def long_figures(text: str) -> set[str]:
    return {
        figure
        for figure in figures(text)
        if len(figure.replace(".", "").replace(",", "").lstrip("0")) >= _LEAST_DIGITS and figure.count(".") < 2
    }


def files_of(text: str) -> list[str]:
    """Files that a section links to, and those of the sections to which its line of files refers."""
    found = [path.name for path in sources(text)]
    for line in re.findall(r"^Files: those of .+(?:\n.+)*", text, re.M):
        for anchor in re.findall(r"\]\(#([\w-]+)\)", line):
            found += [path.name for path in sources(whole(anchor))]
    return found


@pytest.mark.parametrize(
    ("anchor", "text"),
    [
        pytest.param(anchor, text, id=anchor)
        for _, anchor, text in sections(PAGE)[1:]
        if sources(text) and long_figures(text)
    ],
)
def test_figures_are_values_of_the_files(anchor: str, text: str) -> None:
    values = {value for name in files_of(text) for value in values_of(content(name))}
    expected = _NOT_IN_FILES.get(anchor, set())
    assert expected <= long_figures(text), f"_NOT_IN_FILES[{anchor!r}] names figures that the section lacks"
    missing = {figure for figure in long_figures(text) - expected if not is_in(figure, values)}
    assert not missing, f"docs/measured.md#{anchor}: no value of {', '.join(files_of(text))}"


def _offered(result: Any) -> float:
    return sum(stream["offered"] for name, stream in result["accounts"].items() if name.startswith("lane on "))


def _score(result: Any, data: str, network: int, score: str) -> float:
    (scores,) = result["sets"][data]["networks"][network]["scores"].values()
    return float(scores[score])


def _results_hz(result: Any) -> float:
    """Results per second over the whole run."""
    return float(sum(stream["published"] for stream in result["accounts"].values()) / result["seconds"])


def _tracker_gain(result: Any) -> float:
    """Frames per second on 8 streams over those on one stream, in percent more."""
    (rates,) = (each["frames_per_s"] for each in result["networks"] if each["network"] == "tracker-windows")
    return float(100 * (rates["8 streams"] / rates["serial"] - 1))


def _published_hz(result: Any) -> float:
    """Results per second of all cameras."""
    return sum(camera["published_hz"] for dnn in result["fairness"]["dnns"].values() for camera in dnn.values())


def _engine_switches_hz(result: Any) -> float:
    (case,) = result["cases"].values()
    return float(case["processes"]["engine 1"]["groups"]["engine"]["context_switches_hz"])


def _cores(result: Any) -> float:
    """CPU time of the node and its engine process per second, of the case with raw images if there are several."""
    cases = result["cases"]
    (case,) = cases.values() if len(cases) == 1 else (of for name, of in cases.items() if name.endswith("bgr8"))
    return float(case["cpu_ms_per_result"] * case["results_hz"] / 1e3)


def _branches(result: Any, name: str, streams: int) -> float:
    """Time of the compiled segments over that of Inductor's graph on one stream."""
    (network,) = (each for each in result["networks"] if each["network"] == f"torchvision:{name}")
    return float(network["ms"][f"inductor, {streams} streams"]["p50"] / network["ms"]["inductor"]["p50"])


def _alone(result: Any, name: str, images: int) -> float:
    """The shortest time of a network, ms."""
    found = (each for each in result["networks"] if each["network"] == f"torchvision:{name}")
    (network,) = (each for each in found if each["inputs"][0][0] == images)
    return min(float(times["p50"]) for times in network["ms"].values())


COMPUTED: list[tuple[str, str, str, Callable[[Any], float]]] = [
    ("the-demo", "43", "demo.json", lambda it: max(dnn["latency_ms"]["p95"] for dnn in it["dnns"].values())),
    ("the-demo", "150", "demo.json", lambda it: min(dnn["accounts"]["published"] for dnn in it["dnns"].values())),
    ("three-cameras-and-one-of-them-flooding", "56,578", "load_cpu.json", _offered),
    ("three-cameras-and-one-of-them-flooding", "170,650", "load_gpu.json", _offered),
    ("three-cameras-and-one-of-them-flooding", "5.1", "load_cpu.json", lambda it: it["flood_ratio"]),
    ("three-cameras-and-one-of-them-flooding", "1.9", "load_gpu.json", lambda it: it["flood_ratio"]),
    ("parallel-branches-of-one-image", "105", "branches_compiled_gpu.json", _tracker_gain),
    ("the-frames-of-a-dnn-on-four-gpus", "213", "node_2gpus_h100.json", _published_hz),
    ("cpu-time-of-the-built-in-networks-on-a-gpu", "3,411", "host_builtin_gpu_raw_after.json", _engine_switches_hz),
    ("heavy-networks", "188", "heavy_gpu.json", _results_hz),
    ("heavy-networks", "0.95", "host_heavy_gpu_h200_raw.json", _cores),
    ("heavy-networks", "3,399", "host_heavy_gpu_h200_raw.json", _engine_switches_hz),
    ("heavy-networks", "0.90", "host_heavy_gpu_h200_jpeg.json", _cores),
    ("heavy-networks", "0.86", "host_heavy_gpu_h100_jpeg_gpu.json", _cores),
    ("heavy-networks", "1.31", "host_heavy_gpu_h100_jpeg_cpu.json", _cores),
    *(
        ("decomposed-and-retrained", figure, "decomposed_scores.json", lambda it, at=at: _score(it, *at))
        for figure, at in (
            ("0.931", ("object", 0, "map50")),
            ("0.924", ("object", 1, "map50")),
            ("0.875", ("pedestrian", 0, "map50")),
            ("0.862", ("pedestrian", 1, "map50")),
            ("0.987", ("lane", 0, "f1")),
            ("0.986", ("lane", 1, "f1")),
            ("0.970", ("drive", 0, "f1")),
            ("0.969", ("drive", 1, "f1")),
        )
    ),
    ("installation", "5298", "install_size.json", lambda it: it["installed_mb"]["after"]["serving"]),
    ("installation", "4955", "install_size.json", lambda it: it["installed_mb"]["after"]["pytorch"]),
    (
        "parallel-branches-of-one-image",
        "0.68",
        "branches_compiled_gpu.json",
        lambda it: _branches(it, "inception_v3", 4),
    ),
    ("parallel-branches-of-one-image", "0.60", "branches_compiled_gpu.json", lambda it: _branches(it, "googlenet", 4)),
    ("one-network-alone", "0.80", "alone_gpu.json", lambda it: _alone(it, "vgg16", 8) / 0.745),
    ("one-network-alone", "0.83", "alone_gpu.json", lambda it: _alone(it, "vgg16", 1) / 0.286),
    ("one-network-alone", "0.91", "alone_gpu.json", lambda it: _alone(it, "resnet152", 8) / 1.422),
    ("one-network-alone", "0.88", "alone_gpu.json", lambda it: _alone(it, "resnet152", 1) / 0.916),
    ("one-network-alone", "0.87", "alone_gpu.json", lambda it: _alone(it, "inception_v3", 8) / 0.831),
    ("one-network-alone", "0.72", "alone_gpu.json", lambda it: _alone(it, "regnet_y_32gf", 7) / 2.762),
    ("one-network-alone", "0.56", "alone_gpu.json", lambda it: _alone(it, "regnet_y_32gf", 1) / 1.559),
]


@pytest.mark.parametrize(("anchor", "figure", "name", "compute"), COMPUTED, ids=[f"{it[0]}-{it[1]}" for it in COMPUTED])
def test_computed_figures(anchor: str, figure: str, name: str, compute: Callable[[Any], float]) -> None:
    assert figure in figures(whole(anchor))
    assert is_rounded(figure, compute(content(name)))


def test_a_wrong_figure_is_noticed() -> None:
    assert is_rounded("0.76", 0.7633)
    assert not is_rounded("0.76", 0.77)
    assert is_rounded("56,578", 56578.0)
    assert is_in("52.5", {0.475})
    assert not is_in("52.5", {0.5, 1.0})
