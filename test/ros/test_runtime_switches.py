"""DNNs that are enabled, disabled and limited while the node is active."""

from __future__ import annotations

from typing import Any

import pytest
from node_bench import Bench, image
from std_srvs.srv import SetBool
from vision_msgs.msg import Detection2DArray

OUT = "/multi_dnn/front/{}/detections"


def counts(bench: Bench, dnn: str) -> dict[str, int]:
    """Offered, published, pending and the drops, by reason, that occurred."""
    values = bench.status(f"{dnn} on front").by_key
    found = {key: int(values.get(key, 0)) for key in ("offered", "published", "pending")}
    drops = {key.removeprefix("dropped: "): int(value) for key, value in values.items() if key.startswith("dropped: ")}
    return found | {reason: count for reason, count in drops.items() if count}


def send(bench: Bench, camera: Any, dnns: tuple[str, ...], stamps: range) -> None:
    """Images, one after another: each is answered by all DNNs before the next one is sent."""
    for stamp in stamps:
        before = {dnn: counts(bench, dnn)["offered"] for dnn in dnns}
        camera.publish(image(stamp=stamp))
        for dnn in dnns:
            bench.until(
                lambda dnn=dnn, before=before: (
                    counts(bench, dnn)["offered"] == before[dnn] + 1 and counts(bench, dnn)["pending"] == 0
                ),
                f"image {stamp} to be answered by {dnn}",
            )


@pytest.fixture
def active(bench: Bench) -> Bench:
    bench.node({"dnns": ["object", "pedestrian"]})
    assert bench.change("configure")
    assert bench.change("activate")
    return bench


def test_a_dnn_is_disabled_and_enabled_between_two_frames(active: Bench) -> None:
    dnns = ("object", "pedestrian")
    heard = {dnn: active.listen(OUT.format(dnn), Detection2DArray) for dnn in dnns}
    camera = active.camera()
    send(active, camera, dnns, range(1, 3))
    assert active.set("dnn.object.enable", False) == (True, "")
    send(active, camera, dnns, range(3, 6))
    active.until(lambda: active.status("object on front").message == "switched off (parameter enable)", "the status")
    assert active.status("object on front").level == 0
    assert active.status("pedestrian on front").level == 0
    response = active.call(SetBool, "/multi_dnn/object/enable", SetBool.Request(data=True))
    assert (response.success, response.message) == (True, "dnn.object.enable is true")
    send(active, camera, dnns, range(6, 8))
    assert counts(active, "object") == {"offered": 7, "published": 4, "pending": 0, "switched_off": 3}
    assert counts(active, "pedestrian") == {"offered": 7, "published": 7, "pending": 0}
    active.until(lambda: [len(heard[dnn]) for dnn in dnns] == [4, 7], "the results")
    assert [message.header.stamp.sec for message in heard["object"]] == [1, 2, 6, 7]
    assert "disabled" not in active.status("object on front").message


def test_all_dnns_of_a_camera_are_disabled(active: Bench) -> None:
    dnns = ("object", "pedestrian")
    camera = active.camera()
    for dnn in dnns:
        response = active.call(SetBool, f"/multi_dnn/{dnn}/enable", SetBool.Request(data=False))
        assert response.success
    send(active, camera, dnns, range(1, 4))
    for dnn in dnns:
        assert counts(active, dnn) == {"offered": 3, "published": 0, "pending": 0, "switched_off": 3}
    assert active.status("camera front").level == 0


def test_the_rate_of_a_dnn_is_limited_at_runtime(active: Bench) -> None:
    dnns = ("object", "pedestrian")
    camera = active.camera()
    assert active.set("dnn.object.max_rate_hz", 0.001) == (True, "")
    send(active, camera, dnns, range(1, 6))
    assert counts(active, "object") == {"offered": 5, "published": 1, "pending": 0, "rate_limited": 4}
    assert counts(active, "pedestrian") == {"offered": 5, "published": 5, "pending": 0}
    assert active.status("object on front").level == 0
    assert active.set("dnn.object.max_rate_hz", 0.0) == (True, "")
    send(active, camera, dnns, range(6, 8))
    assert counts(active, "object") == {"offered": 7, "published": 3, "pending": 0, "rate_limited": 4}


def test_a_wrong_value_is_rejected(active: Bench) -> None:
    accepted, reason = active.set("dnn.object.max_rate_hz", -1.0)
    assert not accepted
    accepted, reason = active.set("dnn.object.enable", 1)
    assert not accepted
    assert "dnn.object.enable is 1; allowed: true, false" in reason


def test_a_dnn_may_start_disabled_and_the_service_exists_while_configured(bench: Bench) -> None:
    bench.node({"dnn.object.enable": False})
    assert bench.change("configure")
    assert bench.change("activate")
    camera = bench.camera()
    send(bench, camera, ("object",), range(1, 3))
    assert counts(bench, "object") == {"offered": 2, "published": 0, "pending": 0, "switched_off": 2}
    client = bench.peer.create_client(SetBool, "/multi_dnn/object/enable")
    bench.until(client.service_is_ready, "the service")
    assert bench.change("deactivate")
    assert bench.change("cleanup")
    bench.until(lambda: not client.service_is_ready(), "the service to be gone")
    bench.peer.destroy_client(client)
