"""The verdict on a set of DNNs and cameras for the sizes of images that the cameras really send.

Numbers only: what holds them can be sent to another process, and judges there without measuring and without PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from multi_dnn_ros.planning.fit import Decoding, Demand, Verdict, check_fit

#: (width, height), pixels.
Size = tuple[int, int]


@dataclass(frozen=True)
class CameraLoad:
    """size: of the images that were measured. known: whether it is the camera's; else it was assumed. decode_ms: of a
    megapixel, on a core.
    """

    hz: float
    size: Size
    known: bool
    decode_ms: float


@dataclass(frozen=True)
class Fit:
    """What was measured, and is judged for sizes of images.

    demands: with images of the cameras' `size`. preprocess_ms: of a megapixel more, by DNN: upload and preprocessing.
    workers, gpu, doubts: see check_fit. cores: of the machine.
    """

    demands: tuple[Demand, ...]
    cameras: Mapping[str, CameraLoad]
    preprocess_ms: Mapping[str, float]
    workers: int
    cores: int
    gpu: bool = False
    doubts: tuple[str, ...] = field(default=())

    def verdict(self, sizes: Mapping[str, Size] | None = None) -> Verdict:
        """Judge. sizes: of the images by camera, as far as they have come in; others as they were measured.

        The text says which sizes are assumed.
        """
        real = dict(sizes or {})
        now = {name: real.get(name, camera.size) for name, camera in self.cameras.items()}
        decode_ms = {name: camera.decode_ms * megapixels(now[name]) for name, camera in self.cameras.items()}
        verdict = check_fit(
            [self._at(demand, now, decode_ms) for demand in self.demands],
            self.workers,
            gpu=self.gpu,
            doubts=self.doubts,
            decoding=[Decoding(name, camera.hz, decode_ms[name]) for name, camera in self.cameras.items()],
            cores=self.cores,
        )
        unknown = [name for name, camera in self.cameras.items() if not camera.known and name not in real]
        if not unknown:
            return verdict
        width, height = self.cameras[unknown[0]].size
        whose = f"camera{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}"
        return replace(verdict, text=f"{verdict.text} (images of {whose} taken to be {width} x {height})")

    def _at(self, demand: Demand, sizes: Mapping[str, Size], decode_ms: Mapping[str, float]) -> Demand:
        """Its times with images of these sizes: frames of its cameras by their rates; the longest decoding of any."""
        more = sum(
            hz * (megapixels(sizes[camera]) - megapixels(self.cameras[camera].size))
            for camera, hz in demand.cameras.items()
        ) / max(demand.hz, 1e-9)  # fmt: skip
        more_ms = more * self.preprocess_ms[demand.dnn]
        return replace(
            demand,
            alone_ms=max(0.0, demand.alone_ms + more_ms),
            crowded_ms=max(0.0, demand.crowded_ms + more_ms),
            wait_ms=demand.wait_ms + max(decode_ms[camera] for camera in demand.cameras),
        )


class ObservedSizes:
    """Judges anew when a camera's images turn out to be of another size than was reckoned with.

    Of a camera that sends several sizes the largest counts.
    """

    def __init__(self, fit: Fit) -> None:
        self._fit = fit
        self._sizes: dict[str, Size] = {}

    def observe(self, camera: str, size: Size) -> Verdict | None:
        """To be told of each image; the new verdict, if there is one."""
        largest = self._sizes.get(camera)
        if camera not in self._fit.cameras or (largest is not None and megapixels(size) <= megapixels(largest)):
            return None
        self._sizes[camera] = size
        if largest is None and self._fit.cameras[camera].known and self._fit.cameras[camera].size == size:
            return None
        return self._fit.verdict(dict(self._sizes))


def megapixels(size: Size) -> float:
    """Millions of pixels."""
    return size[0] * size[1] / 1e6
