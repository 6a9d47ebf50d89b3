"""docs/diagnostics.md lists the keys of every status of a running node."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from node_bench import Bench, image
from vision_msgs.msg import Detection2DArray

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "diagnostics.md").read_text(encoding="utf-8")
PERCENTILE = re.compile(r" (p50|p95|p99|max) \(ms\)$")
#: Placeholder on the page -> pattern of the keys.
STEPS = "end_to_end|decode|mailbox|pre|queue|compute|post|publish"
PATTERNS = {"dropped: <reason>": r"dropped: \w+", "<step>": STEPS}


def documented(title: str) -> set[str]:
    """The keys in the tables of a section of the page."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = section.partition("| key | value |")[2]
    return {key for cell in re.findall(r"^\| (`.*?) \|", rows, re.M) for key in re.findall(r"`([^`]+)`", cell)}


def is_documented(key: str, keys: set[str]) -> bool:
    key = PERCENTILE.sub("", key)
    return key in keys or any(name in keys and re.fullmatch(pattern, key) for name, pattern in PATTERNS.items())


@pytest.mark.parametrize(
    ("title", "status"), [("node", "node"), ("camera", "camera front"), ("DNN on camera", "object on front")]
)
def test_every_key_is_on_the_page_and_every_key_of_the_page_exists(bench: Bench, title: str, status: str) -> None:
    bench.node()
    assert bench.change("configure")
    assert bench.change("activate")
    results = bench.listen("/multi_dnn/front/object/detections", Detection2DArray)
    bench.camera().publish(image())
    bench.until(lambda: results, "a result")
    bench.until(lambda: bench.status(status).by_key, "the status")
    keys, published = documented(title), bench.status(status).by_key
    assert [key for key in published if not is_documented(key, keys)] == []
    optional = {key for key in keys if key.startswith(("GPU ", "CUDA"))}
    plain = {PERCENTILE.sub("", key) for key in published} | {
        name for name, pattern in PATTERNS.items() if any(re.match(pattern, key) for key in published)
    }
    assert keys - plain - optional == set()
