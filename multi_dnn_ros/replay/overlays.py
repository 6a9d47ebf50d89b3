"""The overlay files of a replay, one per camera. One that cannot be written does not end the replay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from multi_dnn_ros.common.atomic_files import AtomicWriter
from multi_dnn_ros.vision.overlay_files import OverlayFileError, OverlayFiles, Picture


def overlay_paths(path: Path, cameras: Iterable[str]) -> dict[str, Path]:
    """The video or folder of each camera: `path`, or with several cameras `path` with their names appended to its
    name.
    """
    names = tuple(cameras)
    if len(names) == 1:
        return {names[0]: path}
    return {name: path.with_name(f"{path.stem}_{name}{path.suffix}") for name in names}


class Overlays(AtomicWriter):
    """Writes the pictures of several cameras; a context manager.

    A replay takes hours, and its results are complete without pictures: a file that cannot be written is given up,
    and named in `problems` with the reason. paths: video or folder of each camera. Raises OverlayFileError and OSError
    for a path that cannot be used.
    """

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self.problems: list[str] = []
        self._files = {camera: OverlayFiles(path) for camera, path in paths.items()}

    @property
    def open_cameras(self) -> frozenset[str]:
        """The cameras whose pictures are written."""
        return frozenset(self._files)

    def write(self, camera: str, picture: Picture, stamp_ns: int) -> None:
        """Add a picture, (H, W, 3) uint8 RGB, of one of `open_cameras`. stamp_ns: its time stamp in nanoseconds."""
        file = self._files[camera]
        try:
            file.write(picture, stamp_ns)
        except (OverlayFileError, OSError) as error:
            self.problems.append(str(error))
            del self._files[camera]
            file.discard()

    def close(self) -> None:
        """Finish all files."""
        for file in self._files.values():
            try:
                file.close()
            except (OverlayFileError, OSError) as error:
                self.problems.append(str(error))

    def discard(self) -> None:
        """Close all files without videos; pictures in folders stay."""
        for file in self._files.values():
            file.discard()
