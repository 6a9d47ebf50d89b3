"""Whatever surrounds a command: network, user, home folder, processors, locale, current folder, limit of memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bag_files import FRAMES, write_folder
from command import assert_one_error, multi_dnn, node_output, succeed

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


@pytest.mark.long
@namespaces
def test_the_home_folder_need_not_be_writable(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o000)
    done = succeed(
        "partition", "profile", "builtin:object", "--units", "cpu:1", "--max-batch", "1",
        prefix=_UNKNOWN_USER,
        environment={**_NO_NAMES, "HOME": str(home), "XDG_CACHE_HOME": None, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert f"written to {tmp_path}/" in done.stdout
    assert done.stderr.count(str(home)) == 1, "one warning"
    home.chmod(0o700)
    assert not list(home.iterdir())


@namespaces
@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/\n", {"cpu.max": "100000 100000\n"}),
        ("0::/robot/node\n", {"robot/cpu.max": "150000 100000\n", "robot/node/cpu.max": "max 100000\n"}),
        (
            "4:cpu,cpuacct:/robot\n0::/\n",
            {"cpu,cpuacct/robot/cpu.cfs_quota_us": "100000\n", "cpu,cpuacct/robot/cpu.cfs_period_us": "100000\n"},
        ),
        # The path of the host, of which the container sees only its own part.
        ("4:cpu:/docker/1f\n", {"cpu/cpu.cfs_quota_us": "10000\n", "cpu/cpu.cfs_period_us": "10000\n"}),
    ],
    ids=["version 2", "version 2, of the group above", "version 1", "version 1 in a container"],
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
    """The node says so in its log, and goes on."""
    limited = ("sh", "-c", f'ulimit -v {limit_mib * 1024}; exec "$@"', "sh")
    done = multi_dnn(*_arguments(COMMANDS["replay"], recording, tmp_path), prefix=limited)
    assert_one_error(done, f"{limit_mib} MiB", "ulimit -v")
    lines = node_output("ERROR", prefix=limited)
    (error,) = [line for line in lines if "error" in line.lower() or "Traceback" in line]
    assert f"{limit_mib} MiB" in error
    assert "ulimit -v" in error
