"""The node after something went wrong or was told to stop: activated again, refused, finalized."""

from __future__ import annotations

from typing import Any

from node_bench import POISON, Bench, image
from vision_msgs.msg import Detection2DArray

OK, WARN, ERROR, STALE = 0, 1, 2, 3


def test_a_dnn_that_was_taken_out_comes_back_without_its_past(bench: Bench) -> None:
    bench.node({"dnns": ["fragile"], "dnn.fragile.role": "object", "max_failures": 2})
    assert bench.change("configure")
    assert bench.change("activate")
    camera = bench.camera()
    for number in (1, 2, 3):
        camera.publish(image(POISON))
        bench.until(lambda number=number: _lost(bench) == number, "the count")
    assert bench.status("fragile on front").level == ERROR
    assert bench.change("deactivate")
    bench.until(lambda: camera.get_subscription_count() == 0, "the subscription to be gone")
    seen = len(bench.reports)
    assert bench.change("activate")
    heard = bench.listen("/multi_dnn/front/fragile/detections", Detection2DArray)
    bench.until(lambda: camera.get_subscription_count() == 1, "the subscription")
    camera.publish(image(stamp=7))
    bench.until(lambda: heard, "a detection")
    bench.until(lambda: bench.status("fragile on front").by_key.get("published") == "1", "the report")
    levels = {status.level for report in bench.reports[seen:] for status in report.status}
    assert levels == {b"\x00"}  # what was lost before is no part of it


def _lost(bench: Bench) -> int:
    counts: dict[str, Any] = bench.status("fragile on front").by_key
    return sum(int(count) for key, count in counts.items() if key.startswith("dropped: "))
