"""The generated road as a source of pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from multi_dnn_ros.camera.source import Recorded, SourceError, SourceImage
from multi_dnn_ros.training.scenes import SceneGenerator

#: A generated drive goes on along another road, under another weather, every so many seconds.
_STRETCH_S = 5.0


class SceneSource:
    """A generated drive with exact truth; the same `seed`, size and rate give the same pictures.

    length: frames of one drive; a longer run goes through it again.
    """

    live = False

    def __init__(self, size: tuple[int, int], seed: int, rate_hz: float, length: int) -> None:
        self.name = f"scenes (seed {seed})"
        self.notes: list[str] = []
        self.rate_hz: float | None = rate_hz
        self.length = length
        self._drive = SceneGenerator(*size, seed).drive(length, rate_hz, _STRETCH_S)

    def items(self) -> Iterator[SourceImage]:
        for index in range(self.length):
            scene = self._drive.frame(index)
            yield SourceImage(scene.image, scene)


class PreparedSource:
    """All pictures of another source made in advance and held in memory, so that making them takes no time later.

    limit_bytes: of picture data. progress: called with every picture made.
    Raises SourceError: more than the limit.
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
        self._shots: list[SourceImage | Recorded] = []
        held = 0
        for shot in source.items():
            held += shot.image.nbytes + (shot.scene.lane_mask.nbytes if shot.scene else 0)
            if held > limit_bytes:
                raise SourceError(
                    f"{self.name}: {source.length} pictures take more than {limit_bytes >> 20} MiB; prepare fewer"
                )
            self._shots.append(shot)
            progress()

    def items(self) -> Iterator[SourceImage | Recorded]:
        return iter(self._shots)
