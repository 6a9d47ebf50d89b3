"""The node and cameras that a benchmark starts, and what it observes of them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from multi_dnn_ros.benchmark.observation import ProcessTree
from multi_dnn_ros.benchmark.rig import CameraPlan, Rig, parameters_of
from multi_dnn_ros.common.resources import config_file
from multi_dnn_ros.settings.params_file import read_params_file
from multi_dnn_ros.settings.schema import NodeConfig, OutputConfig


def config_of(tmp_path: Path, parameters: str) -> NodeConfig:
    path = tmp_path / "parameters.yaml"
    path.write_text(f"/**: {{ros__parameters: {{{parameters}}}}}\n")
    return read_params_file(path)


def plans(*names: str) -> list[CameraPlan]:
    return [CameraPlan(name, (64, 48), "rgb8", 1.0) for name in names]


def test_every_dnn_is_switched_on_and_serves_every_camera(tmp_path: Path) -> None:
    parameters = "cameras: [left], dnns: [lane, object], dnn: {lane: {cameras: [left], enable: false}}"
    rig = Rig(tmp_path, config_of(tmp_path, parameters), plans("front", "rear"))
    assert list(rig.accounts()) == [(dnn, camera) for dnn in ("lane", "object") for camera in ("front", "rear")]
    assert rig.config.dnns["lane"].cameras == ["front", "rear"]
    assert rig.config.dnns["lane"].enable
    assert list(rig.config.cameras) == ["front", "rear"]


#: Burns CPU time in a child, then waits.
_PARENT = """
import subprocess, sys, time
subprocess.run([sys.executable, "-c", "import time\\nend = time.process_time() + 0.2\\nwhile time.process_time() < end: pass\\ntime.sleep(1)"])
print("ended", flush=True)
sys.stdin.read()
"""  # noqa: E501


def test_resources_are_those_of_all_processes_and_what_is_left_is_named() -> None:
    process = subprocess.Popen([sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    tree = ProcessTree(process.pid)
    deadline_s = time.monotonic() + 20.0
    while tree.sample().cpu_s < 0.2:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ended\n"
    sample = tree.sample()
    assert sample.cpu_s >= 0.2  # a process that has ended counts
    assert sample.memory_bytes > 1 << 20
    assert sample.threads >= 1
    process.communicate()
    with pytest.raises(psutil.NoSuchProcess):
        tree.sample()


def test_the_parameter_file_of_a_run_is_its_configuration(tmp_path: Path) -> None:
    config = read_params_file(config_file("multi_dnn.yaml"))
    outputs = {"people": OutputConfig(decoder="yolo"), "road": OutputConfig(decoder="drivable", score_threshold=0.5)}
    dnns = {**config.dnns, "object": config.dnns["object"].model_copy(update={"outputs": outputs})}
    changed = config.model_copy(update={"dnns": dnns})
    path = tmp_path / "parameters.yaml"
    path.write_text(yaml.safe_dump({"/**": {"ros__parameters": parameters_of(changed)}}))
    assert read_params_file(path) == changed
