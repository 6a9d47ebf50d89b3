"""The output folder of a demo: the files of an earlier demo are replaced, all others are not touched."""

from __future__ import annotations

import shutil
from pathlib import Path

from multi_dnn_ros.common.errors import UsageError

#: Empty file that marks a folder as that of a demo.
_MARK = ".multi_dnn_demo"
_FILES = ("overlay.mp4", "overlay.png", "summary.json", "node.log", "camera.log", "bag")


def check_output(output: Path, video: Path | None = None) -> None:
    """Raise UsageError if clear_output() would delete what no demo has written. video: input, which must not be in the
    folder.
    """
    if output.exists() and not output.is_dir():
        raise UsageError(f"--output {output} is a file; expected a folder")
    if video is not None and video.resolve().is_relative_to(output.resolve()):
        raise UsageError(f"--video {video} is in the folder of --output, {output}; choose another --output")
    if not (output / _MARK).is_file() and (found := [name for name in _FILES if (output / name).exists()]):
        raise UsageError(
            f"{output / found[0]} exists and is not of a demo; nothing is overwritten: choose another --output"
        )


def clear_output(output: Path) -> None:
    """Create the folder, or remove the files of an earlier demo, and mark it. Raises what check_output() raises."""
    check_output(output)
    output.mkdir(parents=True, exist_ok=True)
    (output / _MARK).touch()  # first, so that the files of a killed demo are recognized
    for name in _FILES:
        path = output / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
