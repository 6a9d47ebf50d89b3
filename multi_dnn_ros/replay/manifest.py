"""The manifest of many replays: what became of each recording. It makes them resumable."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.common.reporting import write_json

MANIFEST = "manifest.json"
#: The file in the output folder that the command locks.
LOCK = ".lock"
#: The files that a replay may write into the folder of its results.
RESULT_FILES = frozenset({"metadata.yaml", "recording.db3", "recording.mcap", "summary.json"})
_SUFFIXES = (".mcap", ".db3")
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Recording:
    """A recording under the input folder. name: name of its results, relative to the output folder."""

    name: str
    path: Path

    def files(self) -> list[Path]:
        """Its files, sorted, without subfolders."""
        files = sorted(self.path.iterdir()) if self.path.is_dir() else [self.path]
        return [file for file in files if file.is_file()]

    def state(self) -> dict[str, list[int]]:
        """Size and modification time (ns) of each file, which tell whether its content has changed."""
        return {file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in self.files()}


class Entry(BaseModel):
    """What became of one recording.

    status: `damaged`: everything readable was replayed; `failed`: nothing was written. input: see Recording.state.
    input_sha256, output_sha256: checksums by file name. message: why it failed, or the damage. seconds: duration of the
    last attempt. host: where it ran.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    status: Literal["done", "damaged", "failed"]
    input: dict[str, list[int]]
    input_sha256: dict[str, str] = Field(default_factory=dict)
    output_sha256: dict[str, str] = Field(default_factory=dict)
    message: str = ""
    seconds: float = 0.0
    host: str = ""


class Manifest(BaseModel):
    """The file `manifest.json` in the output folder.

    options: the options of every replay, and the digest of its parameter file. recordings: by name.
    """

    model_config = ConfigDict(extra="forbid")

    format: Literal["multi_dnn_ros replays 1"] = "multi_dnn_ros replays 1"
    options: dict[str, Any]
    provenance: dict[str, Any] = Field(default_factory=dict)
    recordings: dict[str, Entry] = Field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the manifest atomically into the output folder."""
        write_json(folder / MANIFEST, self.model_dump())


def open_manifest(folder: Path, options: Mapping[str, Any]) -> Manifest:
    """The manifest of an output folder, or an empty one for a new folder.

    Raises UsageError if the folder is not empty and has no manifest, or if its replays had other options, and
    CommandError if the file is not a manifest.
    """
    path = folder / MANIFEST
    if not path.is_file():
        if folder.exists() and (not folder.is_dir() or any(file.name != LOCK for file in folder.iterdir())):
            raise UsageError(f"OUT_BAG {folder} already exists and has no {MANIFEST}; name a new folder")
        return Manifest(options=dict(options))
    try:
        manifest = Manifest.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, ValidationError) as error:
        raise CommandError(f"{path} is not a manifest: {str(error).splitlines()[0]}") from None
    differing = sorted(key for key in {*options, *manifest.options} if options.get(key) != manifest.options.get(key))
    if differing:
        key = differing[0]
        raise UsageError(
            f"{path} belongs to replays with {key} {manifest.options.get(key)!r}, not {options.get(key)!r}; "
            "name a new folder"
        )
    return manifest


def find_recordings(folder: Path, output: Path) -> list[Recording]:
    """All recordings under a folder, sorted by name: rosbag2 folders, and single .mcap and .db3 files outside them.

    output: folder of the results, which are not replayed. Raises UsageError if there is no recording, or if the results
    of two recordings would have the same name or lie one inside the other.
    """
    found: dict[str, Recording] = {}
    if not folder.is_dir():
        raise UsageError(f"IN_BAG is {folder}; with --cluster it is a folder of recordings")
    for path in _recordings(folder, output.resolve(), frozenset()):
        relative = path.relative_to(folder)
        name = (relative if path.is_dir() else relative.with_suffix("")).as_posix()
        if name in found:
            raise UsageError(f"the results of {found[name].path} and {path} would have the same name, {name}")
        found[name] = Recording(name, path)
    if not found:
        raise UsageError(f"{folder} holds no recording: no folder with metadata.yaml, no .mcap and no .db3 file")
    for name, inner in found.items():
        for outer in map(str, PurePosixPath(name).parents):
            if outer in found:
                raise UsageError(
                    f"the results of {inner.path} would be inside those of {found[outer].path}, {name} in {outer}"
                )
    return [found[name] for name in sorted(found)]


def _recordings(folder: Path, excluded: Path, outer: frozenset[Path]) -> Iterable[Path]:
    """outer: the real paths of the folders that `folder` is in, which a link in it may name."""
    inside = outer | {folder.resolve()}
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if (path / "metadata.yaml").is_file():
                yield path
            elif (real := path.resolve()) != excluded and real not in inside:
                yield from _recordings(path, excluded, inside)
        elif path.suffix in _SUFFIXES and not path.name.startswith("."):  # a Mac's ._name
            yield path


def is_complete(entry: Entry | None, recording: Recording, output: Path) -> bool:
    """Whether the recording was replayed, and neither the recording nor its results have changed since. Files that no
    replay wrote do not matter.
    """
    if entry is None or entry.status == "failed" or entry.input != recording.state():
        return False
    return result_checksums(output) == entry.output_sha256


def result_checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of each file that a replay wrote into the folder of its results, by its name."""
    return checksums([file for name in sorted(RESULT_FILES) if (file := folder / name).is_file()])


def foreign_files(folder: Path) -> list[str]:
    """The names of what is in the folder of the results of a replay, but was not written by it."""
    return sorted(path.name for path in folder.iterdir() if path.name not in RESULT_FILES or path.is_dir())


def checksums(files: Sequence[Path]) -> dict[str, str]:
    """SHA-256 of each file by its name."""
    found = {}
    for file in files:
        digest = hashlib.sha256()
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
        found[file.name] = digest.hexdigest()
    return found
