"""The output folder of a demo: the files of an earlier demo are replaced, all others are not touched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from multi_dnn_ros.common.errors import UsageError

#: Empty file that marks the folder, and its recording, as written by a demo.
MARK = ".multi_dnn_demo"
_BAG = "bag"
_FILES = ("overlay.mp4", "overlay.png", "summary.json", "diagnostics.json", "comparison.json", "node.log", "camera.log")


def check_output(output: Path, video: Path | None = None) -> None:
    """Raise UsageError if clear_output() would delete results or a recording that an earlier demo did not write.

    video: input of the demo, which must not be deleted either; a file or a folder of images.
    """
    if output.exists() and not output.is_dir():
        raise UsageError(f"--output {output} is a file; expected a folder")
    for path in (output / _BAG, *(output / name for name in _FILES)):
        if not os.path.lexists(path):
            continue
        if video is not None and _holds(path, video):
            raise UsageError(f"--video {video}: {path} would be deleted first; choose another --output")
        mark, what = (path / MARK, "a recording") if path.name == _BAG else (output / MARK, "a file")
        if not mark.is_file():
            raise UsageError(
                f"{path} exists and is not {what} of a demo; nothing is overwritten: choose another --output"
            )


def clear_output(output: Path) -> None:
    """Create the folder, or remove the files of an earlier demo, and mark it. Raises what check_output() raises."""
    check_output(output)
    output.mkdir(parents=True, exist_ok=True)
    (output / MARK).touch()  # first, so that the files of a killed demo are recognized
    for name in _FILES:
        (output / name).unlink(missing_ok=True)
    if (output / _BAG).exists():
        shutil.rmtree(output / _BAG)


def _holds(path: Path, video: Path) -> bool:
    """Whether deleting `path` would delete the video, or one of its images."""
    target = path.parent.resolve() / path.name
    return any(
        target == source or target in source.parents or (source.is_dir() and source == target.parent)
        for source in (video.resolve(), video.parent.resolve() / video.name)
    )
