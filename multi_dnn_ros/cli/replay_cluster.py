"""``multi-dnn replay --cluster``: every recording under a folder, on a Ray cluster."""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros import __version__
from multi_dnn_ros.common.errors import UsageError

if TYPE_CHECKING:
    from multi_dnn_ros.replay.manifest import Entry, Recording

_RETRIES = 2
#: Attributes of the arguments that are passed on to each replay as options.
_PASSED = ("params_file", "node", "device", "storage")


def run_cluster(args: argparse.Namespace) -> int:
    """Replay every recording that has no complete results yet. Returns 1 if one failed or is damaged.

    Raises CommandError if another command uses the output folder.
    """
    from multi_dnn_ros.common.file_lock import lock_file
    from multi_dnn_ros.replay.manifest import LOCK, find_recordings, open_manifest

    output = args.out_bag.absolute()
    recordings = find_recordings(args.in_bag.absolute(), output)
    identity = _identity(args)
    open_manifest(output, identity)  # nothing is written into a folder of something else
    taken = f"{output} is used by another replay --cluster; end it first, or name a new folder"
    with lock_file(output / LOCK, taken, "do not use the folder for two commands at once"):
        return _run_locked(args, output, recordings, identity)


def _run_locked(
    args: argparse.Namespace, output: Path, recordings: Sequence[Recording], identity: dict[str, Any]
) -> int:
    from tqdm import tqdm

    from multi_dnn_ros.common.ray_cluster import LOCAL, connected
    from multi_dnn_ros.common.reporting import provenance
    from multi_dnn_ros.replay.cluster import Needs, replay_all
    from multi_dnn_ros.replay.manifest import MANIFEST, is_complete, open_manifest

    manifest = open_manifest(output, identity)
    left = [
        recording for recording in recordings
        if not is_complete(manifest.recordings.get(recording.name), recording, output / recording.name)
    ]  # fmt: skip
    if len(left) < len(recordings):
        print(f"{len(recordings) - len(left)} of {len(recordings)} recordings already have results")
    for recording in left:  # all of them, before the first is removed
        _check_removable(output / recording.name)
    manifest.provenance = provenance()
    retries = _RETRIES if args.retries is None else args.retries
    needs = Needs(args.cpus or 1.0, args.gpus or 0.0, retries)
    with connected(args.cluster or LOCAL) as ray, tqdm(total=len(left), unit="recording", disable=None) as bar:
        manifest.write(output)

        def settled(recording: Recording, entry: Entry) -> None:
            manifest.recordings[recording.name] = entry
            manifest.write(output)
            bar.update(1)
            if entry.status != "done":
                bar.write(f"{recording.name}: {entry.status}: {entry.message}", file=sys.stderr)

        for recording in left:
            _remove_results(output / recording.name)
        replay_all(ray, left, output, _options(args), needs, settled, replay_one)
    entries = [manifest.recordings[recording.name] for recording in recordings]
    counts = {status: sum(entry.status == status for entry in entries) for status in ("done", "damaged", "failed")}
    print(f"{len(entries)} recordings: {', '.join(f'{count} {status}' for status, count in counts.items())}")
    print(f"written to {output}; {MANIFEST} lists the recordings with checksums")
    return 0 if counts["done"] == len(entries) else 1


def _options(args: argparse.Namespace) -> list[str]:
    """The options of each replay. Relative paths become absolute, as other processes have other working folders."""
    options: list[str] = []
    for name in _PASSED:
        value = getattr(args, name)
        if value is not None:
            options += [f"--{name.replace('_', '-')}", str(value.absolute() if isinstance(value, Path) else value)]
    for camera, topic in args.topic:
        options += ["--topic", f"{camera}:={topic}"]
    return options + ["--with-input"] * args.with_input


def _identity(args: argparse.Namespace) -> dict[str, Any]:
    """What the results depend on, as far as the options say."""
    from multi_dnn_ros.replay.manifest import checksums

    passed = _options(args)
    if args.params_file is None:
        return {"options": passed}
    try:
        (digest,) = checksums([args.params_file]).values()
    except OSError as error:
        raise UsageError(f"--params-file {args.params_file}: {error.strerror}") from None
    return {"options": passed, "params_file_sha256": digest}


def _check_removable(folder: Path) -> None:
    """Raise UsageError unless everything in the folder, if it exists, was written by a replay."""
    from multi_dnn_ros.replay.manifest import foreign_files

    if not folder.exists():
        return
    if not (folder / "summary.json").is_file():
        raise UsageError(f"{folder} exists and holds no results of a replay; nothing is overwritten")
    if foreign := foreign_files(folder):
        names = ", ".join(foreign[:5]) + (", ..." if foreign[5:] else "")
        raise UsageError(f"{folder} is to be replaced, but also holds {names}, which no replay wrote: move it")


def _remove_results(folder: Path) -> None:
    """Remove results that are incomplete or of another recording. Raises UsageError if the folder holds anything that
    no replay wrote.
    """
    import shutil

    _check_removable(folder)
    if folder.exists():
        shutil.rmtree(folder)


def replay_one(recording: str, output: str, options: list[str], version: str) -> dict[str, Any]:
    """One replay, in a process of the cluster; see :data:`multi_dnn_ros.replay.cluster.ReplayOne`.

    What it prints is appended to a log file beside the results.
    """
    from multi_dnn_ros.cli.main import main
    from multi_dnn_ros.replay.manifest import Recording, checksums, result_checksums

    began = time.monotonic()
    entry: dict[str, Any] = {"host": socket.gethostname()}
    if version != __version__:
        reason = f"host {entry['host']} has multi_dnn_ros {__version__}, the command {version}"
        return {**entry, "status": "failed", "message": reason}
    target = Path(output)
    target.parent.mkdir(parents=True, exist_ok=True)
    log = target.with_name(f"{target.name}.log")
    try:
        _remove_results(target)  # of an attempt whose process was lost before it could report them
    except UsageError as error:
        return {**entry, "status": "failed", "message": str(error)}
    with (
        log.open("a", buffering=1, encoding="utf-8") as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        print(f"{datetime.now(timezone.utc).isoformat(timespec='seconds')} {entry['host']}: replay {recording}")
        try:
            code: object = main(["replay", recording, output, *options])
        except SystemExit as ended:
            code = ended.code
    entry["seconds"] = round(time.monotonic() - began, 3)
    damage: list[str] = []
    with contextlib.suppress(OSError):
        damage = json.loads((target / "summary.json").read_text(encoding="utf-8"))["input_damage"]
    # A replay of a damaged recording exits with 1, as after an error: then the folder is of another command.
    if not target.is_dir() or code != (1 if damage else 0):
        lines = [line.strip() for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
        return {**entry, "status": "failed", "message": f"{lines[-1]} (exit code {code}; {log.name})"}
    return {
        **entry,
        "status": "damaged" if damage else "done",
        "message": "; ".join(damage),
        "input_sha256": checksums(Recording(target.name, Path(recording)).files()),
        "output_sha256": result_checksums(target),
    }
