"""The files in deploy/: what can be checked without a Docker daemon and without systemd as the init process."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = sorted((ROOT / "deploy" / "docker").glob("Dockerfile*"))
UNIT = ROOT / "deploy" / "systemd" / "multi-dnn.service"
WITH_ROS = ROOT / "deploy" / "with_ros.sh"
HEALTHCHECK = ROOT / "deploy" / "docker" / "healthcheck.sh"
#: Where the images and the unit have the installation of colcon.
SHARE = "/opt/multi_dnn_ros/share/multi_dnn_ros/"


def instructions(dockerfile: Path) -> Iterator[tuple[str, str]]:
    """(name, arguments) of each instruction, with continued lines joined."""
    lines = [line for line in dockerfile.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, arguments = line.strip().partition(" ")
            yield name, arguments.strip()


def installed_files() -> dict[str, str]:
    """Path below share/multi_dnn_ros -> source, of setup.py's data_files in deploy/."""
    program = (
        "import json, setuptools; found = {}; setuptools.setup = found.update; exec(open('setup.py').read()); "
        "print(json.dumps(found['data_files']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    return {
        f"{folder.removeprefix('share/multi_dnn_ros/')}/{Path(source).name}": source
        for folder, sources in json.loads(done.stdout)
        for source in sources
        if folder.startswith("share/multi_dnn_ros/")
    }


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_the_shell_can_read_every_run_instruction(dockerfile: Path) -> None:
    commands = [arguments for name, arguments in instructions(dockerfile) if name == "RUN"]
    assert len(commands) >= 4
    for command in commands:
        done = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_what_a_dockerfile_copies_exists_and_is_sent_to_the_daemon(dockerfile: Path) -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    sent = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = {
        source
        for name, arguments in instructions(dockerfile)
        if name == "COPY" and not arguments.startswith("--from")
        for source in arguments.split()[:-1]
    }
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert source in sent, f".dockerignore leaves out {source}"
    assert sent <= copied, "the build context holds only what is copied"
    assert rules[0] == "*"
    assert any(fnmatch("multi_dnn_ros/ros/__pycache__", rule) for rule in rules)


@pytest.mark.parametrize("file", [*DOCKERFILES, UNIT], ids=lambda path: path.name)
def test_installed_files_that_are_named_are_installed(file: Path) -> None:
    installed = installed_files()
    named = set(re.findall(rf"{SHARE}([\w./-]+)", file.read_text(encoding="utf-8")))
    assert "deploy/with_ros.sh" in named
    for name in named:
        assert name in installed, f"{file.name} names {SHARE}{name}, which setup.py does not install"
        assert (ROOT / installed[name]).is_file()
        assert os.access(ROOT / installed[name], os.X_OK) or not name.endswith(".sh")


def test_the_unit_starts_the_node_itself_with_the_variables_of_the_environment_file() -> None:
    unit = UNIT.read_text(encoding="utf-8")
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.M)
    variables = (UNIT.parent / "multi-dnn.env").read_text(encoding="utf-8")
    assert "ros2 launch" not in command
    for name in re.findall(r"\$\{?(\w+)", command):
        assert re.search(rf"^{name}=", variables, re.M), f"{name} is not in multi-dnn.env"
    assert "Type=notify" in unit.splitlines()
    assert "NotifyAccess=main" in unit.splitlines()


# -- with_ros.sh


@pytest.fixture
def install(tmp_path: Path) -> Path:
    """A workspace with the script, and a ROS 2; both set a variable."""
    script = tmp_path / "install" / "share" / "multi_dnn_ros" / "deploy" / "with_ros.sh"
    script.parent.mkdir(parents=True)
    shutil.copy2(WITH_ROS, script)
    (tmp_path / "ros.bash").write_text("export FROM_ROS=ros\n")
    (tmp_path / "install" / "setup.bash").write_text("export FROM_WORKSPACE=$FROM_ROS/workspace\n")
    return script


def with_ros(script: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run([str(script), *command], capture_output=True, text=True, check=False, env=environment)


def test_the_command_gets_the_process_the_arguments_and_the_environment_of_the_workspace(
    install: Path, tmp_path: Path
) -> None:
    """The process, so that systemd watches the node itself."""
    command = [str(install), "sh", "-c", 'echo $$ "$FROM_WORKSPACE" "$1"; exit 7', "sh", "two  words"]
    environment = {**os.environ, "ROS_SETUP": str(tmp_path / "ros.bash")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    assert process.communicate(timeout=60)[0] == f"{process.pid} ros/workspace two  words\n"
    assert process.returncode == 7


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"ROS_SETUP": "/nowhere/setup.bash"}, "ROS_SETUP = /nowhere/setup.bash: no such file"),
        ({"ROS_DISTRO": "nowhere"}, "ROS_SETUP = /opt/ros/nowhere/setup.bash: no such file"),
        ({"ROS_SETUP": "{ros}", "WORKSPACE_SETUP": "/nowhere"}, "WORKSPACE_SETUP = /nowhere: no such file"),
    ],
)
def test_a_missing_setup_file_is_named(install: Path, tmp_path: Path, variables: dict[str, str], words: str) -> None:
    given = {name: value.format(ros=tmp_path / "ros.bash") for name, value in variables.items()}
    done = with_ros(install, "true", **given)
    assert done.returncode == 78
    assert words in done.stderr


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ("echo 'active [3]'", 0, "/robot/multi_dnn: active [3]"),
        ("echo 'inactive [2]'", 1, "/robot/multi_dnn: inactive [2]"),
        ("echo 'Node not found' >&2; exit 1", 1, "/robot/multi_dnn does not answer: Node not found"),
    ],
)
def test_only_an_active_node_is_healthy(tmp_path: Path, answer: str, code: int, words: str) -> None:
    ros2 = tmp_path / "ros2"
    ros2.write_text(f'#!/bin/sh\n[ "$1 $2" = "lifecycle get" ] || exit 9\n{answer}\n')
    ros2.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NODE": "/robot/multi_dnn"}
    done = subprocess.run([str(HEALTHCHECK)], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout.strip()) == (code, words)
