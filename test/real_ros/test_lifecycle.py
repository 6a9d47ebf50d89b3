"""Life cycle and end of the node on a real ROS 2 with both middlewares."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from multi_dnn_ros.common.processes import loopback_environment

if TYPE_CHECKING:
    from ros_system import RosSystem, Running

ROOT = Path(__file__).resolve().parents[2]
MIDDLEWARES = ("rmw_cyclonedds_cpp", "rmw_fastrtps_cpp")
PARAMETERS = """\
/**:
  ros__parameters:
    dnns: [object]
    cpu_threads: 1
    diagnostics_period_s: 0.2
"""
#: From Ctrl-C to the end of `ros2 launch`, which itself takes most of this time.
LAUNCH_END_S = 6.0
#: DNNs that take about two seconds each to configure on one core: together longer than several `ros2` commands.
SLOW_DNNS = [f"object_{number}" for number in range(40)]


@pytest.fixture(params=MIDDLEWARES)
def middleware(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def system(middleware: str, domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RosSystem]:
    """As `ros`, but the middleware is that of the started processes, not of the test."""
    from ros_system import RosSystem

    for name, value in {**loopback_environment(domain), "RMW_IMPLEMENTATION": middleware}.items():
        monkeypatch.setenv(name, value)
    with RosSystem(tmp_path) as instance:
        yield instance


@pytest.fixture
def parameters(tmp_path: Path) -> str:
    path = tmp_path / "parameters.yaml"
    path.write_text(PARAMETERS)
    return str(path)


def launch(system: RosSystem, parameters: str, *arguments: str) -> Running:
    return system.start(
        "ros2", "launch", "multi_dnn_ros", "multi_dnn.launch.py", f"params_file:={parameters}", *arguments
    )


def below(process: psutil.Process) -> list[psutil.Process]:
    return process.children(recursive=True)


def loads(process: psutil.Process) -> bool:
    """Whether the process has started to load PyTorch."""
    try:
        return "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()
    except OSError:
        return False


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def shared_memory() -> set[str]:
    """Without the files of Fast DDS, which other processes create too."""
    return {path.name for path in Path("/dev/shm").iterdir() if "fastrtps" not in path.name}


@pytest.mark.parametrize("suite", ["test_transitions.py", "test_process_life.py"])
def test_life_cycle_as_on_the_standalone_runtime(middleware: str, suite: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:launch_testing", "-p", "no:launch_ros", "-p",
         "no:cacheprovider", str(ROOT / "test" / "ros" / suite)],
        env={**os.environ, "RMW_IMPLEMENTATION": middleware}, cwd=ROOT, capture_output=True, text=True, timeout=900,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("state", ["configuring", "active"])
def test_ctrl_c_on_launch_ends_everything_once(system: RosSystem, parameters: str, state: str) -> None:
    before = shared_memory()
    launched = launch(system, parameters)

    def is_reached() -> bool:
        if state == "active":
            return "]: active" in launched.text()
        return any(loads(process) for process in below(psutil.Process(launched.process.pid)))

    system.until(is_reached, state)
    family = below(psutil.Process(launched.process.pid))
    assert len(family) >= 2  # the node and its engine
    begin = time.monotonic()
    os.killpg(launched.process.pid, signal.SIGINT)  # as a terminal does: to launch and to the node
    assert launched.process.wait(30.0) == 0
    took = time.monotonic() - begin
    assert [process.pid for process in family if runs(process)] == []
    print(f"{state}: ended {took:.2f} s after Ctrl-C")
    text = launched.text()
    assert took < LAUNCH_END_S, text
    assert text.count("received SIGINT, shutting down") == 1
    assert "process has finished cleanly" in text
    assert "Traceback" not in text
    assert shared_memory() <= before


def test_the_engine_of_a_killed_node_ends_and_the_node_is_respawned(system: RosSystem, parameters: str) -> None:
    launched = launch(system, parameters, "respawn:=true")
    system.until(lambda: "]: active" in launched.text(), "the node to be active")
    node = launched.child("multi_dnn_node")
    engines = below(node)
    assert engines
    node.kill()
    begin = time.monotonic()
    system.until(lambda: not any(runs(engine) for engine in engines), "the engine processes to end", 1.0)
    print(f"the engine process ended {time.monotonic() - begin:.2f} s after SIGKILL of the node")
    system.until(lambda: launched.text().count("]: active") == 2, "the node started again")
    os.killpg(launched.process.pid, signal.SIGINT)
    launched.process.wait(30.0)


@pytest.fixture
def slow_parameters(tmp_path: Path) -> str:
    """Parameters with which configuring takes longer than the `ros2` commands that cancel it."""
    dnns = "".join(f"      {name}: {{role: object, model: 'builtin:object', jobs: 16}}\n" for name in SLOW_DNNS)
    path = tmp_path / "slow.yaml"
    path.write_text(f"{PARAMETERS.replace('[object]', str(SLOW_DNNS))}    dnn:\n{dnns}")
    return str(path)


def test_the_tools_cancel_configuring(system: RosSystem, slow_parameters: str) -> None:
    launched = launch(system, slow_parameters, "autostart:=false")
    system.until(lambda: "/multi_dnn" in system.ros2("lifecycle", "nodes")[1], "the node")
    for transition, state in (("cleanup", "unconfigured"), ("shutdown", "finalized")):
        configuring = system.start("ros2", "lifecycle", "set", "/multi_dnn", "configure")
        node = launched.child("multi_dnn_node")
        system.until(lambda node=node: below(node), "an engine process")
        assert system.ros2("lifecycle", "get", "/multi_dnn")[1].startswith("configuring")
        assert "Transitioning successful" in system.ros2("lifecycle", "set", "/multi_dnn", transition)[1]
        assert system.ros2("lifecycle", "get", "/multi_dnn")[1].startswith(state)
        configuring.process.wait(30.0)
        assert "Transitioning failed" in configuring.text()
        assert below(node) == []
    assert "configured:" not in launched.text()
