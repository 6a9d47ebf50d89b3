"""The demo as a user runs it: three processes, a short drive."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from fork_server import ForkServer
from waiting import until

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.demo.children import reserved_domain
from multi_dnn_ros.demo.report import check_output
from multi_dnn_ros.replay.bag_reader import BagReader

SHORT = ["--seconds", "3", "--size", "320x240"]
#: The package's decomposed DNNs with the backend that is ready soonest.
QUICK = """\
/**:
  ros__parameters:
    device: cpu
    cameras: [front]
    dnns: [lane, object, pedestrian]
    dnn:
      lane: {model: "builtin:lane_small", backend: eager, jobs: 1}
      object: {model: "builtin:object_small", backend: eager, jobs: 1}
      pedestrian: {model: "builtin:pedestrian_small", backend: eager, jobs: 1}
"""
#: What a drive leaves in its folder.
FILES = {"overlay.mp4", "overlay.png", "summary.json", "bag", "node.log", "camera.log", ".multi_dnn_demo"}


@pytest.fixture(autouse=True)
def _restored_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo sets the ROS domain in the environment of this process."""
    for name in ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
        monkeypatch.delenv(name)


def test_a_short_drive(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output, parameters = tmp_path / "out" / "demo", tmp_path / "quick.yaml"
    parameters.write_text(QUICK)
    more = ["--params-file", str(parameters), "--seconds", "1", "--size", "320x240"]
    code = main(["demo", "--output", str(output), *more])
    out, error = capfd.readouterr()
    assert code == 0, error + out
    for word in ("lane F1", "mAP@0.5", "peak resident memory", "written to"):
        assert word in out
    assert {path.name for path in output.iterdir()} == FILES
    summary = json.loads((output / "summary.json").read_text())
    assert summary["node_ended_cleanly"]
    assert summary["node_peak_memory_bytes"] > 100 << 20
    assert list(summary["dnns"]) == ["lane", "object", "pedestrian"]
    for figures in summary["dnns"].values():
        assert figures["frames"] >= 2
        assert figures["accounts"]["offered"] <= 10
        assert figures["latency_ms"]["p50"] > 0
    with BagReader(output / "bag") as bag:
        assert bag.topics["/front/image_raw/compressed"].count == 10
        assert bag.topics["/multi_dnn/front/lane/points"].count >= 2
    check_output(output)  # another demo may replace it


def test_a_failed_configuration_is_reported_with_its_reason(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    parameters = tmp_path / "parameters.yaml"
    parameters.write_text(
        "/**:\n  ros__parameters:\n    dnns: [object]\n    dnn:\n"
        "      object: {role: object, model: /nowhere/model.onnx}\n"
    )
    output = tmp_path / "demo"
    assert main(["demo", "--output", str(output), "--params-file", str(parameters), *SHORT]) == 1
    error = capfd.readouterr().err
    assert "/nowhere/model.onnx" in error.splitlines()[-1]
    assert str(output / "node.log") in error.splitlines()[-1]
    assert not (output / "bag").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_also_ends_the_child_processes(
    tmp_path: Path, fork_server: ForkServer, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "multi_dnn_ros.cli.main", "demo", "--output", str(tmp_path / "demo")]
    process = fork_server.popen([*command, *SHORT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: len(psutil.Process(process.pid).children()) == 2, "the node and the camera")
        children = psutil.Process(process.pid).children()
        process.send_signal(number)
        _, error = process.communicate(timeout=60.0)
    finally:
        process.kill()
    assert not psutil.wait_procs(children, timeout=30.0)[1]
    if number == signal.SIGKILL:
        return
    assert process.returncode == 130
    assert "interrupted" in error
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == [".multi_dnn_demo", "camera.log", "node.log"]


def test_domains_in_use_are_skipped_and_an_error_says_when_none_is_free() -> None:
    with ExitStack() as stack:
        with reserved_domain() as domain:
            pass
        other = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        other.bind(("0.0.0.0", 7400 + 250 * domain + 10))  # as a participant of another ROS 2 does
        mine = []
        with pytest.raises(CommandError, match=r"every ROS domain from 20 to 99 is in use"):
            mine.extend(stack.enter_context(reserved_domain()) for _ in range(81))
        assert domain not in mine
