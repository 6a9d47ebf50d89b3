"""The parameter track: identities in the detections of a running node."""

from __future__ import annotations

from typing import Any

from node_bench import Bench, image
from vision_msgs.msg import Detection2DArray

OUT = "/multi_dnn/front/object/detections"


def start(bench: Bench, **parameters: Any) -> tuple[Any, list[Any]]:
    bench.node({"dnn.object.score_threshold": 0.5, **parameters})
    assert bench.change("configure")
    assert bench.change("activate")
    return bench.camera(), bench.listen(OUT, Detection2DArray)


def ids_after(bench: Bench, camera: Any, heard: list[Any], value: int, stamp: int) -> list[str]:
    """The identities in the result for an image; the score of its only box is value / 255."""
    count = len(heard)
    camera.publish(image(value, stamp))
    bench.until(lambda: len(heard) > count, "a result")
    return [detection.id for detection in heard[-1].detections]


def test_identities_bridge_frames_and_low_scores_continue_tracks(bench: Bench) -> None:
    camera, heard = start(bench, **{"dnn.object.track": True})
    assert ids_after(bench, camera, heard, 200, 1) == ["1"]
    assert ids_after(bench, camera, heard, 200, 2) == ["1"]
    assert ids_after(bench, camera, heard, 60, 3) == ["1"]  # below the threshold, but it continues a track
    assert ids_after(bench, camera, heard, 200, 4) == ["1"]
    assert ids_after(bench, camera, heard, 200, 20) == [""]  # the track has ended: a new one has no identity yet
    assert ids_after(bench, camera, heard, 200, 21) == ["2"]
    assert bench.set("dnn.object.score_threshold", 0.9) == (True, "")
    assert ids_after(bench, camera, heard, 200, 22) == ["2"]
    assert ids_after(bench, camera, heard, 200, 40) == []  # now below the threshold, and there is no track
    assert bench.set("dnn.object.score_threshold", 0.5) == (True, "")
    assert ids_after(bench, camera, heard, 200, 41) == [""]


def test_results_that_are_not_boxes_cannot_be_tracked(bench: Bench) -> None:
    bench.node({"dnns": ["lane"], "dnn.lane.track": True})
    assert not bench.change("configure")
    text = "parameter dnn.lane.track is true; allowed: false, because its results are lanes, not boxes"
    bench.until(lambda: text in bench.status("node").message, "the reason in the diagnostics")
