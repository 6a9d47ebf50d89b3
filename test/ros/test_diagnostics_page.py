"""docs/diagnostics.md lists the keys of every status of a running node."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from node_bench import Bench, image
from vision_msgs.msg import Detection2DArray

from multi_dnn_ros.serving.statistics import TIMINGS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "diagnostics.md").read_text(encoding="utf-8")
PERCENTILE = re.compile(r" (p50|p95|p99|max) \(ms\)$")
GPU = ("GPU allocated (bytes)", "GPU reserved (bytes)")
#: Keys of other configurations: a GPU, engine processes, DNNs that do not fit, a time that cannot be predicted.
OPTIONAL = {
    *GPU,
    *("torch", "CUDA"),
    *(f"engine processes {key}" for key in ("resident memory (bytes)", *GPU)),
    *("<dnn> at most (Hz)", "advice <n>", "not predicted <n>"),
}


def documented(title: str) -> set[str]:
    """The keys in the tables of a section of the page."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = section.partition("| key | value |")[2]
    return {key for cell in re.findall(r"^\| (`.*?) \|", rows, re.M) for key in re.findall(r"`([^`]+)`", cell)}


def stands_for(documented_key: str, key: str) -> bool:
    """Whether a key of the page, such as `dropped: <reason>`, is this one."""
    if documented_key == "<step>":
        return key in TIMINGS
    return re.fullmatch(re.sub(r"<\w+>", r"\\w+", re.escape(documented_key)), key) is not None


@pytest.mark.parametrize(
    ("title", "status"),
    [
        ("node", "node"),
        ("capacity", "capacity"),
        ("camera", "camera front"),
        ("ground", "ground front"),
        ("DNN on camera", "object on front"),
    ],
)
def test_every_key_is_on_the_page_and_every_key_of_the_page_exists(bench: Bench, title: str, status: str) -> None:
    bench.node({"dnns": ["object", "lane"], "camera.front.rate_hz": 5.0})  # without a rate there is no capacity
    assert bench.change("configure")
    assert bench.change("activate")
    results = bench.listen("/multi_dnn/front/object/detections", Detection2DArray)
    bench.camera().publish(image())
    bench.until(lambda: results, "a result")
    bench.until(lambda: bench.status("node").by_key.get("state") == "active", "a report of the active node")
    bench.until(lambda: bench.status(status).by_key, "the status")
    on_page = documented(title)
    published = {PERCENTILE.sub("", key) for key in bench.status(status).by_key}
    unlisted = {key for key in published if not any(stands_for(each, key) for each in on_page)}
    assert not unlisted, f"docs/diagnostics.md, section {title}: add {unlisted}"
    absent = {each for each in on_page - OPTIONAL if not any(stands_for(each, key) for key in published)}
    assert not absent, f"docs/diagnostics.md, section {title}: no status has {absent}"
