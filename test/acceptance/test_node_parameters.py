"""Parameters at the start and at run time, right and wrong; switching DNNs off and limiting their rate."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import LATCHED, Camera, Client, NodeProcess, Recording, environment, installed
from std_srvs.srv import SetBool
from vision_msgs.msg import Detection2DArray, LabelInfo

IMAGE = np.random.default_rng(3).integers(0, 255, (120, 160, 3), np.uint8)
THRESHOLD = "dnn.object.score_threshold"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("run --params-file missing.yaml", 1, ["missing.yaml", "No such file"]),
        ("run --params-file empty.yaml", 1, ["empty.yaml", "empty"]),
        ("run --params-file broken.yaml", 1, ["broken.yaml", "line"]),
        ("run --params-file other.yaml", 1, ["other.yaml", "/multi_dnn", "/other"]),
        ("run --ros-args -p use_sim_time:=maybe", 1, ["use_sim_time", "maybe"]),
        ("run --nonsense", 2, ["--nonsense"]),
        ("nonsense", 2, ["nonsense", "run", "camera"]),
    ],
)
def test_the_error_of_a_wrong_command_line(
    tmp_path: Path, domain: int, arguments: str, code: int, words: list[str]
) -> None:
    (tmp_path / "empty.yaml").touch()
    (tmp_path / "broken.yaml").write_text("/**: {ros__parameters: [\n")
    (tmp_path / "other.yaml").write_text("other: {ros__parameters: {device: cpu}}\n")
    done = subprocess.run(
        [*installed("multi-dnn"), *arguments.split()], cwd=tmp_path, env=environment(domain), text=True,
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr.strip().splitlines()[-1]


def test_the_help_names_the_options_and_the_examples(domain: int) -> None:
    done = subprocess.run(
        [*installed("multi-dnn"), "run", "--help"], env=environment(domain), text=True, capture_output=True, check=True
    )
    assert "--params-file" in done.stdout
    assert "--ros-args" in done.stdout


@pytest.fixture(scope="module")
def node(client: Client, start_node: Callable[..., NodeProcess]) -> NodeProcess:
    """Started with wrong parameters, which the first test of it corrects."""
    return start_node(
        {
            "policy": "prio",
            "workers": 99,
            "device": "tpu",
            "dnns": ["object"],
            "camera": {"front": {"transport": "jpg"}},
            "dnn": {"object": {"jobs": 0, "model": "builtin:objekt", "decoder": "yollo"}},
        },
    )


WRONG = {
    "policy": ("prio", "edf"),
    "workers": ("99", "16"),
    "device": ("tpu", "cpu"),
    "camera.front.transport": ("jpg", "compressed"),
    "dnn.object.jobs": ("0", "256"),
    "dnn.object.model": ("builtin:objekt", "builtin:object"),
    "dnn.object.decoder": ("yollo", "yolo"),
}
RIGHT = {"policy": "fifo", "workers": 1, "device": "cpu", "camera.front.transport": "raw", "dnn.object.jobs": 2,
         "dnn.object.model": "builtin:object", "dnn.object.decoder": "auto"}  # fmt: skip


def test_all_wrong_parameters_are_named_and_can_be_corrected(client: Client, node: NodeProcess) -> None:
    status = client.wait_for(
        lambda: (status := client.status("node")).level == "ERROR" and status, "a failure of configuring"
    )
    assert client.state() == "unconfigured"
    assert any(name in status.message and value in status.message for name, (value, _) in WRONG.items())
    errors = [line for line in node.log.splitlines() if "[ERROR]" in line]
    for name, (value, allowed) in WRONG.items():
        assert any(f"{name} " in line and value in line and allowed in line for line in errors), name
    assert not client.change_state("configure")
    assert client.set_parameters(RIGHT) == {}
    assert client.change_state("configure")
    assert client.change_state("activate")
    client.wait_until_active()


def test_misspelt_names_are_errors_and_foreign_ones_warnings(
    client: Client, start_node: Callable[..., NodeProcess]
) -> None:
    node = start_node(
        {"polcy": "edf", "wheel_diameter": 0.3, "dnn": {"object": {"job": 2}}}, name="/misspelt/multi_dnn"
    )
    client.wait_for(lambda: client.status("node", node.name).level == "ERROR", "a failure of configuring")
    lines = node.log.splitlines()
    for wrong, right in (("polcy", "policy"), ("dnn.object.job", "dnn.object.jobs")):
        assert any("[ERROR]" in line and wrong in line and f"did you mean {right}?" in line for line in lines), wrong
    assert any("[WARN]" in line and "wheel_diameter" in line for line in lines)


@pytest.fixture(scope="module")
def camera(client: Client, node: NodeProcess, results: Recording) -> Camera:
    camera = client.camera("front/image_raw")
    client.connect(camera, IMAGE, results)
    return camera


@pytest.fixture(scope="module")
def results(client: Client, node: NodeProcess) -> Recording:
    client.wait_until_active()
    return client.record(node.topic("front/object/detections"), Detection2DArray)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (THRESHOLD, 1.5, ["1.5", "0", "1"]),
        (THRESHOLD, "high", ["high", "float"]),
        ("dnn.object.priority", 1000, ["1000", "-100", "100"]),
        ("workers", 2, ["cleanup"]),
        ("dnn.object.score_treshold", 0.5, [THRESHOLD]),
        ("dnn.object.model", "/missing/model.onnx", ["/missing/model.onnx"]),
    ],
)
def test_a_wrong_value_at_run_time(
    client: Client, camera: Camera, results: Recording, name: str, value: Any, words: list[str]
) -> None:
    before = client.get_parameters(name)
    reason = client.set_parameters({name: value})[name]
    assert all(word in reason for word in (name, *words)), reason
    assert client.get_parameters(name) == before
    client.answer(camera, IMAGE, results)


def test_thresholds_take_effect_with_the_next_image(client: Client, camera: Camera, results: Recording) -> None:
    labels = client.record("/multi_dnn/object/label_info", LabelInfo, LATCHED)
    client.wait_for(lambda: labels.messages, "label_info")
    assert client.set_parameters({THRESHOLD: 0.02}) == {}
    many = client.answer(camera, IMAGE, results).detections
    assert len(many) > 3
    scores = sorted((found.results[0].hypothesis.score for found in many), reverse=True)
    assert scores[-1] >= 0.02
    client.wait_for(lambda: labels.messages[-1].threshold == pytest.approx(0.02), "the threshold in label_info")
    assert client.set_parameters({"dnn.object.max_detections": 2}) == {}
    best = client.answer(camera, IMAGE, results).detections
    assert [found.results[0].hypothesis.score for found in best] == pytest.approx(scores[:2])
    both = {"dnn.object.max_detections": 50, THRESHOLD: 7.0}
    assert THRESHOLD in str(client.set_together(both))
    assert client.get_parameters(*both) == [2, pytest.approx(0.02)]
    assert client.set_together({**both, THRESHOLD: 1.0}) is None
    assert not client.answer(camera, IMAGE, results).detections


def test_a_dnn_can_be_switched_off_and_on(client: Client, camera: Camera, results: Recording) -> None:
    before = client.settled("object")
    assert client.call("/multi_dnn/object/enable", SetBool, data=False).success
    assert client.get_parameters("dnn.object.enable") == [False]
    off = [camera.send(IMAGE) for _ in range(3)]
    account = client.settled("object").since(before)
    assert account.dropped == {"switched_off": 3}
    assert client.status("object on front").level == "OK"
    assert client.set_parameters({"dnn.object.enable": True}) == {}
    client.answer(camera, IMAGE, results)
    assert client.settled("object").since(before).published == 1
    assert not set(off) & set(results.stamps)


def test_a_limited_rate(client: Client, camera: Camera, results: Recording) -> None:
    before, answered, sent = client.settled("object"), len(results.messages), len(camera.sent)
    assert client.set_parameters({"dnn.object.max_rate_hz": 2.0}) == {}
    client.stream_until(camera, IMAGE, lambda: len(results.messages) - answered >= 4, "four results", 0.05)
    account = client.settled("object").since(before)
    assert account.offered == len(camera.sent) - sent
    assert account.dropped["rate_limited"] > account.published
    assert account.dropped.keys() <= {"rate_limited", "overwritten"}
    assert account.published == len(results.messages) - answered
    assert client.set_parameters({"dnn.object.max_rate_hz": 0.0}) == {}
    for _ in range(3):
        client.answer(camera, IMAGE, results)
    results.check_unique()
