"""A node whose DNNs run on several devices: topics, parameters and errors. Shares of the CPU stand for devices."""

from __future__ import annotations

import os
import signal
import time

import pytest
from node_bench import Bench, image
from vision_msgs.msg import Detection2DArray

pytestmark = pytest.mark.usefixtures("forked_engines")

OUT = "/multi_dnn/front/{}/detections"
OK, ERROR = 0, 2
#: The backend that is ready soonest.
QUICK = {f"dnn.{dnn}.{key}": value for dnn in ("object", "pedestrian") for key, value in
         (("backend", "eager"), ("jobs", 1))}  # fmt: skip


def test_a_dnn_on_two_devices_publishes_in_order_also_when_one_is_killed(bench: Bench) -> None:
    bench.node(
        {
            "isolation": "process", "dnns": ["object", "pedestrian"], "dnn.object.device": ["cpu:1", "cpu:2"],
            "dnn.pedestrian.device": "cpu:2", "reorder_ms": 2000.0, **QUICK,
        }
    )  # fmt: skip
    assert bench.change("configure")
    heard = {dnn: bench.listen(OUT.format(dnn), Detection2DArray) for dnn in ("object", "pedestrian")}
    assert bench.change("activate")
    bench.until(lambda: bench.status("engine cpu:1").level == OK, "the status of the first device")
    assert bench.status("engine cpu:1").by_key["DNNs"] == "object"
    assert bench.status("engine cpu:2").by_key["DNNs"] == "object, pedestrian"
    bench.until(lambda: bench.status("node").by_key.get("device") == "cpu:1, cpu:2", "the devices in the node's status")
    camera = bench.camera()
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            sent += 1
            camera.publish(image(stamp=sent))
            end = time.monotonic() + 0.01  # a camera of 100 Hz
            while (left := end - time.monotonic()) > 0:
                bench.executor.spin_once(timeout_sec=left)

    send(50)
    bench.until(lambda: all(heard.values()), "results")
    os.kill(int(bench.status("engine cpu:1").by_key["pid"]), signal.SIGKILL)
    before = len(heard["object"])
    bench.until(lambda: [send(1), len(heard["object"]) >= before + 20][1], "results of the other device")
    bench.until(lambda: [send(1), bench.status("engine cpu:1").by_key.get("restarts") == "1"][1], "the replacement")
    assert bench.change("deactivate")
    for messages in heard.values():
        stamps = [message.header.stamp.sec for message in messages]
        assert stamps == sorted(set(stamps))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([], "[]"),
        (["cpu", "cpu"], "['cpu', 'cpu']"),
        (["cuda", "cuda:0"], "['cuda', 'cuda:0']"),
        (["auto", "cpu"], "['auto', 'cpu']"),
        (["tpu"], "['tpu']"),
        ("cpu:0", "'cpu:0'"),
    ],
)
def test_an_invalid_device_is_refused_with_parameter_value_and_allowed_values(
    bench: Bench, value: object, shown: str
) -> None:
    bench.node({"isolation": "process"})
    taken, reason = bench.set("dnn.object.device", value)
    assert not taken
    assert f"dnn.object.device is {shown}; allowed: auto, cpu, cpu:<threads>, cuda, cuda:<number>, or a list" in reason


def test_a_gpu_that_does_not_exist_fails_configuring_with_the_allowed_devices(bench: Bench) -> None:
    bench.node({"isolation": "process", "dnn.object.device": ["cpu:1", "cuda:99"], **QUICK})
    assert not bench.change("configure")
    bench.until(lambda: bench.status("node").level == ERROR, "the error in the diagnostics")
    message = bench.status("node").message
    assert "parameter dnn.object.device is 'cuda:99', but PyTorch sees" in message
    assert "allowed: auto, cpu" in message
    assert bench.set("dnn.object.device", "cpu:1") == (True, "")
    assert bench.change("configure")
