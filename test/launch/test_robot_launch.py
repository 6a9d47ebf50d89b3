"""robot.launch.py: names, remaps, and what it starts of tf2_ros and nav2.

The build of ROS 2 that runs these tests may lack tf2_ros and nav2. Stand-ins with their package and executable names
write their command lines to a file.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from multi_dnn_ros.demo.children import loopback_environment

pytestmark = pytest.mark.ros

FILE = Path(__file__).resolve().parents[2] / "launch" / "robot.launch.py"
PACKAGE = """<package format="3"><name>{name}</name><version>1.0.0</version><description>x</description>
<maintainer email="x@example.com">x</maintainer><license>Apache-2.0</license></package>"""
#: Writes its arguments, followed by the content of a parameter file, and waits for a signal.
STAND_IN = """#!/bin/sh
{{
    echo "$0 $*"
    for word in "$@"; do case "$word" in /*launch_params*) cat "$word" ;; esac; done
}} > "{calls}/$$.part"
mv "{calls}/$$.part" "{calls}/$$"
trap 'exit 0' INT TERM
while :; do sleep 0.05; done
"""
#: Executables by package. A real node would take seconds to load PyTorch; test_launched_node.py starts one.
STAND_INS = {
    "tf2_ros": "static_transform_publisher",
    "nav2_lifecycle_manager": "lifecycle_manager",
    "multi_dnn_ros": "multi_dnn_node",
}
WAIT_S = 60.0


class Launched:
    """`ros2 launch robot.launch.py` with stand-ins for all executables."""

    def __init__(self, folder: Path, domain: int) -> None:
        self._calls = folder / "calls"
        self._calls.mkdir()
        self._log = folder / "launch.log"
        prefix = folder / "prefix"
        self._environment = {**os.environ, **loopback_environment(domain), "PYTHONUNBUFFERED": "1"}
        self._environment["AMENT_PREFIX_PATH"] = f"{prefix}:{os.environ['AMENT_PREFIX_PATH']}"
        index = prefix / "share" / "ament_index" / "resource_index" / "packages"
        index.mkdir(parents=True)
        for package, executable in STAND_INS.items():
            (index / package).touch()
            share = prefix / "share" / package
            share.mkdir(parents=True)
            (share / "package.xml").write_text(PACKAGE.format(name=package))
            program = prefix / "lib" / package / executable
            program.parent.mkdir(parents=True)
            program.write_text(STAND_IN.format(calls=self._calls))
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        shutil.copytree(FILE.parents[1] / "config", prefix / "share" / "multi_dnn_ros" / "config")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        command = ["ros2", "launch", str(FILE), *arguments]
        with self._log.open("wb") as log:
            # A background job of a shell ignores SIGINT, and its children, too.
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=self._environment,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )  # fmt: skip

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def calls(self) -> list[str]:
        """What each executable that has started has written."""
        return [path.read_text() for path in sorted(self._calls.iterdir()) if not path.suffix]

    def wait_calls(self, count: int) -> dict[str, list[str]]:
        """Wait until this many executables have started; what they wrote, by name of the executable."""
        end = time.monotonic() + WAIT_S
        while len(self.calls()) < count:
            assert time.monotonic() < end, f"{self.calls()}\n{self.output()}"
            assert self.process is not None
            assert self.process.poll() is None, self.output()
            time.sleep(0.05)
        found: dict[str, list[str]] = {}
        for text in self.calls():
            found.setdefault(Path(text.split()[0]).name, []).append(text)
        return found

    def end(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(WAIT_S)


@pytest.fixture
def launched(domain: int, tmp_path: Path) -> Iterator[Launched]:
    instance = Launched(tmp_path, domain)
    yield instance
    if instance.process is not None and instance.process.poll() is None:
        instance.process.kill()
        instance.process.wait()


def test_the_node_is_started_with_the_arguments_and_ends_with_ctrl_c(launched: Launched, tmp_path: Path) -> None:
    params = tmp_path / "robot.yaml"
    params.write_text("/robot/multi_dnn:\n  ros__parameters: {workers: 1}\n")
    launched.start(
        f"params_file:={params}", "namespace:=robot", "use_sim_time:=true", "log_level:=debug", "image:=/usb/image",
        "lane_points:=/lanes", "autostart:=false",
    )  # fmt: skip
    found = launched.wait_calls(1)
    assert found.keys() == {"multi_dnn_node"}, "neither a transform nor a manager without its argument"
    (node,) = found["multi_dnn_node"]
    for words in (
        "__node:=multi_dnn",
        "__ns:=/robot",
        f"--params-file {params}",
        "-r /tf:=tf",
        "-r /tf_static:=tf_static",
        "-r ~/front/lane/ground_points:=/lanes",
        "-r front/image_raw:=/usb/image",
        "--log-level debug",
        "use_sim_time: true",
        "autostart: false",
    ):
        assert words in node
    assert launched.end() == 0, launched.output()


def test_the_pose_of_the_camera_becomes_two_transforms(launched: Launched) -> None:
    launched.start("camera_pose:=1.8 0 1.45 0 0.05 -0.01", "base_frame:=base_footprint", "camera_frame:=cam")
    found = launched.wait_calls(3)
    body, optical = sorted(found["static_transform_publisher"], key=lambda call: "--x 0 " in call)
    assert "--x 1.8 --y 0 --z 1.45 --roll 0 --pitch 0.05 --yaw -0.01" in body
    assert "--frame-id base_footprint --child-frame-id cam " in body
    assert "--roll -1.5707963267948966 --pitch 0 --yaw -1.5707963267948966" in optical
    assert "--frame-id cam --child-frame-id front_camera_optical_frame " in optical
    assert "-r /tf_static:=tf_static" in body
    assert launched.end() == 0, launched.output()


@pytest.mark.parametrize("autostart", ["true", "false"])
def test_the_lifecycle_manager_activates_the_node_instead_of_autostart(launched: Launched, autostart: str) -> None:
    launched.start("lifecycle_manager:=true", f"autostart:={autostart}", "namespace:=robot")
    found = launched.wait_calls(2)
    (node,), (manager,) = found["multi_dnn_node"], found["lifecycle_manager"]
    assert "autostart: false" in node
    assert "__ns:=/robot" in manager
    # launch_ros writes lists with a tag that rcl ignores.
    (parameters,) = yaml.safe_load(manager[manager.index("\n") :].replace("!!python/tuple", "")).values()
    assert parameters["ros__parameters"] == {
        "use_sim_time": False,
        "autostart": autostart == "true",
        "node_names": ["multi_dnn"],
        "bond_timeout": 0.0,
        "service_timeout": 600.0,
    }
    assert launched.end() == 0, launched.output()
