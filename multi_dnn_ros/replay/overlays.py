"""The overlay files of a replay, one per camera. One that cannot be written does not end the replay."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from multi_dnn_ros.vision.overlay_files import AtomicWriter, OverlayFileError, OverlayFiles, Picture


def overlay_paths(path: Path, cameras: Collection[str]) -> dict[str, Path]:
    """The video or folder of each camera: `path`, or with several cameras `path` with their names appended."""
    if len(cameras) == 1:
        return dict.fromkeys(cameras, path)
    return {name: path.with_name(f"{path.stem}_{name}{path.suffix}") for name in cameras}


class Overlays(AtomicWriter):
    """Writes the pictures of several cameras; a context manager.

    A replay takes hours, and its results are complete without pictures: a file that cannot be written is given up,
    and named in `problems` with the reason. paths: video or folder of each camera. Raises OverlayFileError and OSError
    for a path that cannot be used.
    """

    def __init__(self, paths: dict[str, Path]) -> None:
        self.problems: list[str] = []
        self._files = {camera: OverlayFiles(path) for camera, path in paths.items()}

    def write(self, camera: str, stamp_ns: int, draw: Callable[[], Picture]) -> None:
        """Add a picture to the file of a camera, if it has one. stamp_ns: its time stamp in nanoseconds.

        draw: makes the picture, (H, W, 3) uint8 RGB.
        """
        if (file := self._files.get(camera)) is not None:
            picture = draw()
            self._attempt(camera, file, lambda: file.write(picture, stamp_ns))

    def close(self) -> None:
        """Finish all files."""
        for camera, file in list(self._files.items()):
            self._attempt(camera, file, file.close)

    def discard(self) -> None:
        """Close all files without videos; pictures in folders stay."""
        for file in self._files.values():
            file.discard()

    def _attempt(self, camera: str, file: OverlayFiles, action: Callable[[], None]) -> None:
        try:
            action()
        except (OverlayFileError, OSError) as error:
            self.problems.append(str(error))
            del self._files[camera]
            file.discard()
