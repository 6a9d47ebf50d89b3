"""``multi-dnn replay --cluster``: every recording under a folder, on a local Ray cluster."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from replay_fakes import read_bag
from road_bag import scenes, write_road

from multi_dnn_ros.bags import BagWriter
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common import ray_cluster
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.replay.cluster import Needs, replay_all
from multi_dnn_ros.replay.manifest import (
    Entry,
    Manifest,
    Recording,
    checksums,
    find_recordings,
    is_complete,
    open_manifest,
)

FRAMES = 3


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_recordings_are_found_at_any_depth_and_not_inside_each_other(tmp_path: Path) -> None:
    touch(tmp_path / "a" / "metadata.yaml")
    touch(tmp_path / "a" / "a_0.mcap")
    touch(tmp_path / "day" / "one.db3")
    touch(tmp_path / "day" / "night" / "two.mcap")
    touch(tmp_path / "notes.txt")
    found = find_recordings(tmp_path, tmp_path / "out")
    assert [recording.name for recording in found] == ["a", "day/night/two", "day/one"]


def test_results_are_not_recordings(tmp_path: Path) -> None:
    touch(tmp_path / "drives" / "a.mcap")
    touch(tmp_path / "drives" / "day" / "out" / "a" / "metadata.yaml")
    (tmp_path / "link").symlink_to(tmp_path / "drives" / "day")
    for output in (tmp_path / "drives" / "day" / "out", tmp_path / "link" / "out"):
        assert [recording.name for recording in find_recordings(tmp_path / "drives", output)] == ["a"]


def test_two_results_with_the_same_name_and_a_folder_without_recordings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no recording"):
        find_recordings(tmp_path, tmp_path / "out")
    touch(tmp_path / "a.mcap")
    touch(tmp_path / "a.db3")
    with pytest.raises(UsageError, match="would have the same name, a"):
        find_recordings(tmp_path, tmp_path / "out")
    with pytest.raises(UsageError, match="is a folder of recordings"):
        find_recordings(tmp_path / "a.mcap", tmp_path / "out")


def test_results_inside_other_results_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outer, inner = touch(tmp_path / "day.mcap"), touch(tmp_path / "day" / "parts" / "one.mcap")
    assert main(["replay", str(tmp_path), str(tmp_path / "out"), "--cluster"]) == 2
    expected = f"the results of {inner} would be inside those of {outer}, day/parts/one in day"
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_manifest_with_other_options_and_a_foreign_folder_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    open_manifest(out, {"options": ["--storage", "mcap"]}).write(out)
    assert open_manifest(out, {"options": ["--storage", "mcap"]}).recordings == {}
    with pytest.raises(UsageError, match=r"belongs to replays with options \['--storage', 'mcap'\], not \[\]"):
        open_manifest(out, {"options": []})
    (out / "manifest.json").write_text("{")
    with pytest.raises(CommandError, match="is not a manifest"):
        open_manifest(out, {})
    touch(tmp_path / "other" / "file")
    with pytest.raises(UsageError, match=r"has no manifest.json"):
        open_manifest(tmp_path / "other", {})


def test_results_are_complete_until_they_or_the_recording_change(tmp_path: Path) -> None:
    recording = Recording("a", touch(tmp_path / "a.mcap"))
    result = touch(tmp_path / "out" / "a" / "recording.mcap")
    entry = Entry(status="done", input=recording.state(), output_sha256=checksums([result]))
    assert is_complete(entry, recording, result.parent)
    assert not is_complete(None, recording, result.parent)
    assert not is_complete(entry.model_copy(update={"status": "failed"}), recording, result.parent)
    result.write_text("changed")
    assert not is_complete(entry, recording, result.parent)
    result.write_text("")
    assert is_complete(entry, recording, result.parent)
    recording.path.write_text("longer")
    assert not is_complete(entry, recording, result.parent)


class _RayError(Exception):
    pass


class _RayTaskError(_RayError):
    pass


class InstantRay:
    """A cluster of one host that runs each task as soon as it is submitted."""

    exceptions = SimpleNamespace(RayError=_RayError, RayTaskError=_RayTaskError)

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 1.0}}]

    def remote(self, **needs: float) -> Callable[[Any], Any]:
        return lambda function: SimpleNamespace(remote=lambda *arguments: _Done(function, *arguments))

    def wait(self, waiting: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return waiting[:num_returns], waiting[num_returns:]

    def get(self, done: Any) -> Any:
        if done.error is not None:
            raise done.error
        return done.result


class _Done:
    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.result, self.error = None, None
        try:
            self.result = function(*arguments)
        except _RayError as error:
            self.error = error


def replayed(recordings: list[Recording], output: Path, replay_one: Callable[..., dict[str, Any]]) -> dict[str, Entry]:
    """What became of each recording, by name."""
    entries: dict[str, Entry] = {}

    def settled(recording: Recording, entry: Entry) -> None:
        entries[recording.name] = entry

    replay_all(InstantRay(), recordings, output, [], Needs(1.0, 0.0, 0), settled, replay_one)
    return entries


def test_a_recording_that_grows_while_it_is_replayed_is_not_complete(tmp_path: Path) -> None:
    """For example a recording that is still being copied."""
    recording = Recording("a", touch(tmp_path / "a.mcap"))

    def replay_one(path: str, output: str, options: list[str], version: str) -> dict[str, Any]:
        Path(path).write_text("the rest of it")
        return {"status": "done", "output_sha256": checksums([touch(Path(output) / "recording.mcap")])}

    entry = replayed([recording], tmp_path / "out", replay_one)["a"]
    assert entry.status == "done"
    assert not is_complete(entry, recording, tmp_path / "out" / "a")


def test_the_error_of_a_task_is_named(tmp_path: Path) -> None:
    recordings = [Recording(name, touch(tmp_path / f"{name}.mcap")) for name in ("bad", "lost", "good")]
    errors = {
        "bad": _RayTaskError(
            'ray::replay_one() (pid=7, ip=10.0.0.7)\n  File "replay_cluster.py", line 121, in replay_one\n'
            "PermissionError: [Errno 13] Permission denied: '/shared/results'\n"
        ),
        "lost": _RayError("The worker died unexpectedly.\nSee the documentation."),
    }

    def replay_one(path: str, output: str, options: list[str], version: str) -> dict[str, Any]:
        if error := errors.get(Path(output).name):
            raise error
        return {"status": "done"}

    entries = replayed(recordings, tmp_path / "out", replay_one)
    assert {name: (entry.status, entry.message) for name, entry in entries.items()} == {
        "bad": ("failed", "PermissionError: [Errno 13] Permission denied: '/shared/results'"),
        "lost": ("failed", "_RayError: The worker died unexpectedly."),
        "good": ("done", ""),
    }


def test_results_among_the_recordings_are_not_replayed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_cluster, "connected", lambda address: contextlib.nullcontext(InstantRay()))
    write_road(tmp_path / "drives" / "monday", scenes(1))
    quick = tmp_path / "quick.yaml"
    quick.write_text("/**: {ros__parameters: {dnns: [object], dnn: {object: {backend: eager, jobs: 1}}}}\n")
    command = ["replay", str(tmp_path / "drives"), str(tmp_path / "drives" / "results"), "--cluster"]
    for again in (False, True):
        assert main([*command, "--params-file", str(quick), "--device", "cpu"]) == 0
        out = capsys.readouterr().out
        assert "1 recordings: 1 done, 0 damaged, 0 failed" in out
        assert ("1 of 1 recordings already have results" in out) == again


class ObservedRay(InstantRay):
    """Calls `before` with the arguments of each task before it runs."""

    def __init__(self, before: Callable[..., None]) -> None:
        self._before = before

    def remote(self, **needs: float) -> Callable[[Any], Any]:
        def observed(function: Callable[..., Any]) -> Callable[..., Any]:
            def run(*arguments: Any) -> Any:
                self._before(*arguments)
                return function(*arguments)

            return run

        return lambda function: SimpleNamespace(remote=lambda *arguments: _Done(observed(function), *arguments))


@pytest.fixture
def monday(tmp_path: Path) -> list[str]:
    """The command that replays one recording into the folder `out`."""
    write_road(tmp_path / "drives" / "monday", scenes(1))
    quick = tmp_path / "quick.yaml"
    quick.write_text("/**: {ros__parameters: {dnns: [object], dnn: {object: {backend: eager, jobs: 1}}}}\n")
    command = ["replay", str(tmp_path / "drives"), str(tmp_path / "out"), "--cluster"]
    return [*command, "--params-file", str(quick), "--device", "cpu"]


def test_a_second_command_on_the_same_folder_ends_at_once(
    monday: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []
    errors: list[str] = []

    def second(*arguments: Any) -> None:
        if not codes:
            codes.append(main(monday))
            errors.append(capsys.readouterr().err)

    ray = ObservedRay(second)
    monkeypatch.setattr(ray_cluster, "connected", lambda address: contextlib.nullcontext(ray))
    assert main(monday) == 0
    assert codes == [1]
    assert f"{tmp_path / 'out'} is used by another replay --cluster; end it first, or name a new folder" in errors[0]
    assert main(monday) == 0  # free again
    assert "1 of 1 recordings already have results" in capsys.readouterr().out


def test_an_attempt_that_fails_is_not_done_although_another_process_has_written_results(
    monday: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As two commands do on a file system without locks."""
    monkeypatch.setattr(ray_cluster, "connected", lambda address: contextlib.nullcontext(InstantRay()))
    target = tmp_path / "out" / "monday"

    def other_process(writer: BagWriter) -> None:
        (target / "anything").mkdir(parents=True)
        (target / "summary.json").write_text('{"input_damage": []}')
        close(writer)

    close = BagWriter.close
    with monkeypatch.context() as patch:
        patch.setattr(BagWriter, "close", other_process)
        assert main(monday) == 1
    printed = capsys.readouterr()
    assert "1 recordings: 0 done, 0 damaged, 1 failed" in printed.out
    assert "already exists; nothing is overwritten (exit code 1; monday.log)" in printed.err
    assert main(monday) == 0
    assert read_bag(target)


def test_an_attempt_after_one_whose_process_was_lost_with_its_results_written_succeeds(
    monday: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from multi_dnn_ros.cli.replay_cluster import replay_one

    ray = ObservedRay(lambda *arguments: replay_one(*arguments))
    monkeypatch.setattr(ray_cluster, "connected", lambda address: contextlib.nullcontext(ray))
    assert main(monday) == 0
    assert "1 recordings: 1 done" in capsys.readouterr().out
    assert (tmp_path / "out" / "monday.log").read_text().count(": replay ") == 2


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two good recordings, a damaged and an unreadable one."""
    folder = tmp_path_factory.mktemp("drives")
    for name in ("monday", "week/tuesday"):
        write_road(folder / name, scenes(FRAMES))
    (whole,) = (folder / "monday").glob("*.mcap")
    (folder / "cut.mcap").write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    (folder / "noise.mcap").write_bytes(b"no recording at all")
    return folder


@pytest.fixture(scope="module")
def one_dnn(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("parameters") / "one.yaml"
    path.write_text("/**:\n  ros__parameters: {dnns: [object], dnn: {object: {jobs: 1}}}\n")
    return str(path)


@pytest.mark.long
def test_every_recording_is_replayed_and_one_that_fails_does_not_stop_the_others(
    drives: Path, one_dnn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["replay", str(drives), str(out), "--cluster", "--params-file", one_dnn, "--device", "cpu"]
    assert main(command) == 1
    printed = capsys.readouterr()
    assert "4 recordings: 2 done, 1 damaged, 1 failed" in printed.out
    assert "noise: failed: multi-dnn replay: error:" in printed.err
    manifest = Manifest.model_validate_json((out / "manifest.json").read_text())
    assert {name: entry.status for name, entry in manifest.recordings.items()} == {
        "monday": "done", "week/tuesday": "done", "cut": "damaged", "noise": "failed"
    }  # fmt: skip
    assert "truncated" in manifest.recordings["cut"].message
    assert read_bag(out / "monday") == read_bag(out / "week" / "tuesday")
    alone = tmp_path / "alone"
    assert main(["replay", str(drives / "monday"), str(alone), "--params-file", one_dnn, "--device", "cpu"]) == 0
    assert read_bag(alone) == read_bag(out / "monday")

    # The second time, only the failed recording and the one with changed results are replayed.
    capsys.readouterr()
    changed = {name: (out / name / "summary.json").stat().st_mtime_ns for name in ("monday", "week/tuesday", "cut")}
    (out / "week" / "tuesday" / "summary.json").write_text("{}")
    assert main(command) == 1
    assert "2 of 4 recordings already have results" in capsys.readouterr().out
    for name, before in changed.items():
        assert ((out / name / "summary.json").stat().st_mtime_ns == before) == (name != "week/tuesday")
    assert json.loads((out / "week" / "tuesday" / "summary.json").read_text())["streams"]


@pytest.mark.long
def test_a_killed_process_is_replaced(drives: Path, one_dnn: str, tmp_path: Path) -> None:
    """SIGKILL the first process that replays; its recording is complete in the end."""
    killed: list[int] = []
    stop = threading.Event()

    def kill_one() -> None:
        while not stop.is_set() and not killed:
            for process in psutil.Process().children(recursive=True):
                try:
                    if "replay_one" in " ".join(process.cmdline()) and (tmp_path / "out" / "monday.log").exists():
                        os.kill(process.pid, signal.SIGKILL)
                        killed.append(process.pid)
                        return
                except psutil.Error:
                    continue
            time.sleep(0.05)

    thread = threading.Thread(target=kill_one)
    thread.start()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "monday").symlink_to(drives / "monday", target_is_directory=True)
    try:
        command = ["replay", str(tmp_path / "in"), str(tmp_path / "out"), "--cluster", "--params-file", one_dnn]
        assert main([*command, "--device", "cpu"]) == 0
    finally:
        stop.set()
        thread.join()
    assert killed
    assert (tmp_path / "out" / "monday.log").read_text().count(": replay ") == 2
    assert read_bag(tmp_path / "out" / "monday")


@pytest.mark.parametrize(
    ("address", "code", "expected"),
    [
        ("127.0.0.1:1", 1, "the Ray cluster 127.0.0.1:1 cannot be reached: [Errno 111] Connection refused"),
        ("127.0.0.1:99999", 1, "the Ray cluster 127.0.0.1:99999 cannot be reached"),
        ("somewhere", 2, "--cluster is 'somewhere'; expected HOST:PORT"),
    ],
)
def test_an_unreachable_cluster_is_reported_in_one_line(
    address: str, code: int, expected: str, drives: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(drives), str(tmp_path / "out"), "--cluster", address]) == code
    assert expected in capsys.readouterr().err


@pytest.mark.long
def test_a_cluster_that_is_too_small_is_reported_in_one_line(
    drives: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(drives), str(tmp_path / "out"), "--cluster", "--gpus", "99"]) == 1
    assert "no host of the cluster has the 1 CPUs and 99 GPUs for one replay" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--cpus", "2"], "--cpus needs --cluster"),
        (["--live", "--cluster"], "--cluster does not use a running node"),
        (["--gpus", "0.5", "--live"], "--gpus does not use a running node"),
        (["--cluster", "--overlay", "o.mp4"], "--overlay is for one recording"),
        (["--cluster", "--params-file", "absent.yaml"], "--params-file absent.yaml: No such file or directory"),
    ],
)
def test_options_that_do_not_apply_are_refused(
    options: list[str], expected: str, drives: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(drives), str(tmp_path / "out"), *options]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
