"""The generated road as an image source."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from multi_dnn_ros.camera.source import SourceError, SourceImage
from multi_dnn_ros.training.scenes import SceneGenerator

#: Interval in seconds after which a generated drive changes road and weather.
_SECTION_S = 5.0


class SceneSource:
    """A generated drive with exact ground truth; deterministic for `seed`, size and rate.

    length: number of frames of the drive.
    """

    live = False

    def __init__(self, size: tuple[int, int], seed: int, rate_hz: float, length: int) -> None:
        self.name = f"scenes (seed {seed})"
        self.notes: list[str] = []
        self.rate_hz: float | None = rate_hz
        self.length = length
        self._drive = SceneGenerator(*size, seed).drive(length, rate_hz, _SECTION_S)

    def items(self) -> Iterator[SourceImage]:
        for index in range(self.length):
            scene = self._drive.frame(index)
            yield SourceImage(scene.image, scene)


class PreparedSource:
    """All images of another source, rendered in advance and kept in memory.

    limit_bytes: maximum size of the image data. progress: called after every image.
    Raises SourceError if the images exceed the limit.
    """

    live = False

    def __init__(
        self,
        source: SceneSource,
        limit_bytes: int = 4 << 30,
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        self.name = source.name
        self.notes = source.notes
        self.rate_hz = source.rate_hz
        self._images: list[SourceImage] = []
        total_bytes = 0
        for image in source.items():
            total_bytes += image.image.nbytes + (image.scene.lane_mask.nbytes if image.scene else 0)
            if total_bytes > limit_bytes:
                raise SourceError(
                    f"{self.name}: {source.length} images take more than {limit_bytes >> 20} MiB; prepare fewer"
                )
            self._images.append(image)
            progress()

    def items(self) -> Iterator[SourceImage]:
        return iter(self._images)
