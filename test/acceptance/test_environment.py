"""The command line, and what surrounds a command: network, user, processors, locale, current folder, memory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bag_files import DETECTIONS, FRAMES, check_results, read_results, write_folder
from command import assert_one_error, blocks_file, multi_dnn, run_commands, succeed
from networks import LABELS

pytestmark = pytest.mark.usefixtures("own_cache")

_NETWORK = Path(__file__).with_name("isolated_network.py")
_UNSHARE = ("unshare", "--map-root-user", "--mount")
_USER = "4242"
#: As in a container that was started with a numeric user: no entry in /etc/passwd, no variables that name the user.
_UNKNOWN_USER = ("unshare", f"--map-user={_USER}", f"--map-group={_USER}")
_NO_NAMES: dict[str, str | None] = dict.fromkeys(("USER", "LOGNAME", "LNAME", "USERNAME", "HOME"))
#: Caches that are meant to be there: ours, and that of the fonts in plots.
_CACHES = {"multi_dnn_ros", "matplotlib"}
_REPORTS_OFF = ("ORT_DISABLE_TELEMETRY", "RAY_USAGE_STATS_ENABLED", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK")


def _namespaces() -> bool:
    if not all(shutil.which(program) for program in ("unshare", "mount", "ip")):
        return False
    for command in (*_UNSHARE, "--net", "ip", "link"), (*_UNKNOWN_USER, "true"):
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return False
    return True


namespaces = pytest.mark.skipif(not _namespaces(), reason="needs user namespaces, unshare, mount and ip (iproute2)")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("drives") / "drives" / "drive", FRAMES[:2])


COMMANDS = {
    "inspect": ["inspect", "builtin:object"],
    "replay": ["replay", "{drive}", "{new}", "--params-file", "{parameters}"],
    "replay on Ray": ["replay", "{drives}", "{new}", "--cluster", "--params-file", "{parameters}"],
    "camera": ["camera", "scenes", "--count", "2"],
    "decompose": ["decompose", "builtin:object", "--output", "{new}.safetensors"],
    "run": ["run"],
}
#: Ends the node: reports are sent some seconds after the first DNN was loaded, so it has to run for a while.
_INTERRUPT = ("timeout", "--preserve-status", "-s", "INT", "15")


def _arguments(words: list[str], recording: Path, folder: Path) -> list[str]:
    parameters = folder / "one_dnn.yaml"
    parameters.write_text("/**:\n  ros__parameters:\n    dnns: [object]\n")
    names = {"drive": recording, "drives": recording.parent, "new": folder / "new", "parameters": parameters}
    return [word.format(**names) for word in words]


@namespaces
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name == "replay on Ray" else name for name in COMMANDS]
)
def test_a_command_needs_no_user_and_asks_no_name_server(name: str, recording: Path, tmp_path: Path) -> None:
    """Libraries report to their vendors, keep identifiers in the user's cache, and look the user up."""
    log, interrupt = tmp_path / "network.log", _INTERRUPT if name == "run" else ()
    done = succeed(
        *_arguments(COMMANDS[name], recording, tmp_path),
        prefix=(*_UNSHARE, "--net", sys.executable, _NETWORK, log, *interrupt, *_UNKNOWN_USER),
        environment={**_NO_NAMES, **dict.fromkeys(_REPORTS_OFF), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        folder=tmp_path,
    )
    assert name != "run" or "active" in done.stderr
    assert log.read_text() == ""
    cache = tmp_path / "cache"
    assert {path.name for path in cache.iterdir()} <= _CACHES if cache.exists() else True


@namespaces
@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/robot/node\n", {"robot/cpu.max": "150000 100000\n", "robot/node/cpu.max": "max 100000\n"}),
        # The path of the host, of which the container sees only its own part.
        ("4:cpu:/docker/1f\n", {"cpu/cpu.cfs_quota_us": "10000\n", "cpu/cpu.cfs_period_us": "10000\n"}),
    ],
    ids=["version 2, of the group above", "version 1 in a container"],
)
def test_processors_are_counted_within_the_quota_of_the_container(
    own: str, files: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    mount = f'mount --bind {tmp_path}/groups /sys/fs/cgroup; mount --bind {tmp_path}/own /proc/$$/cgroup; exec "$@"'
    done = succeed("devices", prefix=(*_UNSHARE, "sh", "-c", mount, "sh"))
    assert "| 1 " in next(line for line in done.stdout.splitlines() if line.startswith("| cpu"))


def test_a_cpu_needs_no_pytorch(recording: Path, tmp_path: Path) -> None:
    """Every process of `inspect` and `replay` works where importing it fails."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("torch", "torchvision", "onnx2torch"):
        (packages / f"{name}.py").write_text(f"raise ModuleNotFoundError('there is none', name='{name}')\n")
    path = {"PYTHONPATH": f"{packages}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    file = blocks_file(tmp_path)
    succeed("inspect", tmp_path / "yolo.onnx", "--labels", *LABELS, environment=path)
    options = ("--params-file", file, "--overlay", tmp_path / "seen.mp4")
    succeed("replay", recording, tmp_path / "out", *options, environment=path)
    check_results(read_results(tmp_path / "out")[DETECTIONS], [0, 1])
    detector = ("torchvision:ssdlite320_mobilenet_v3_large", "--weights", "random")
    assert_one_error(multi_dnn("inspect", *detector, environment=path), "multi_dnn_ros[torch]")


def test_a_locale_that_is_not_utf8_is_named(recording: Path, tmp_path: Path) -> None:
    done = multi_dnn(
        "replay", recording, tmp_path / "tür",
        environment={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )  # fmt: skip
    assert_one_error(done, "locale", "UTF-8", "LC_ALL")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [["inspect", "builtin:object"], ["run"]], ids=["inspect", "run"])
def test_a_deleted_current_folder_is_named(arguments: list[str], tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = multi_dnn(*arguments, prefix=("sh", "-c", f'rmdir {gone}; exec "$@"', "sh"), folder=gone)
    assert_one_error(done, "current folder", "deleted")


@pytest.mark.parametrize("limit_mib", [200, 600])
def test_a_limit_of_the_address_space_is_named(limit_mib: int, recording: Path, tmp_path: Path) -> None:
    limited = ("sh", "-c", f'ulimit -v {limit_mib * 1024}; exec "$@"', "sh")
    for command in ("replay", "run"):
        done = multi_dnn(*_arguments(COMMANDS[command], recording, tmp_path), prefix=limited)
        assert_one_error(done, f"{limit_mib} MiB", "ulimit -v")


def test_help_lists_commands_that_have_an_example() -> None:
    commands = re.findall(r"^  ([a-z]+)  +\S", succeed("--help").stdout, re.MULTILINE)
    assert {"run", "camera", "replay", "inspect", "decompose", "retrain", "evaluate", "profile"} <= set(commands)
    for command, done in run_commands({command: [command, "--help"] for command in commands}).items():
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"usage: multi-dnn {command}")
        assert re.search(rf"^  multi-dnn {command}( |$)", done.stdout, re.MULTILINE), f"{command} has no example"


def test_version() -> None:
    version = ElementTree.parse(Path(__file__).parents[2] / "package.xml").findtext("version")
    assert succeed("--version").stdout.split()[-1] == version


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("", "COMMAND"),
        ("run --nonsense", "--nonsense"),
        ("replay one", "OUT_BAG"),
        ("decompose builtin:object --output x --ratio 1.5", "--ratio: '1.5'"),
        ("replay one two --storage zip", "--storage: invalid choice: 'zip'"),
    ],
)
def test_wrong_usage(words: str, named: str, tmp_path: Path) -> None:
    done = multi_dnn(*words.split(), folder=tmp_path)
    *usage, error = done.stderr.strip().splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert usage[0].startswith("usage: multi-dnn")
    assert re.match(r"multi-dnn( \w+)?: error: ", error)
    assert named in error
    assert not list(tmp_path.iterdir())


#: Each is an error in one line with the words.
MISTAKES = {
    "replay no.mcap out": ["no.mcap"],
    "profile layers builtin:none --device cpu": ["builtin:none"],
    "demo --video no.mp4 --output out": ["no.mp4"],
    "run --params-file missing.yaml": ["missing.yaml", "No such file"],
    "run --params-file other.yaml": ["other.yaml", "/multi_dnn", "/other"],
    "run --ros-args -p use_sim_time:=maybe": ["use_sim_time", "maybe"],
}


def test_what_is_missing_or_wrong_is_named(tmp_path: Path) -> None:
    """Exit code 1 (2 where the option itself is checked), nothing written."""
    (tmp_path / "other.yaml").write_text("other: {ros__parameters: {device: cpu}}\n")
    for words, done in run_commands({words: words.split() for words in MISTAKES}, tmp_path).items():
        assert done.returncode in (1, 2), f"{words}: {done.returncode}, {done.stderr}"
        error = done.stderr.strip().splitlines()[-1]
        assert error.startswith(f"multi-dnn {words.split()[0]}: error: "), done.stderr
        assert all(word in error for word in MISTAKES[words]), error
        assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["other.yaml"]


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = multi_dnn("--debug", "replay", "no.mcap", "out", folder=tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
