"""Checks the fit for the image sizes that the cameras really deliver.

A :class:`Fit` contains plain numbers only: another process can evaluate it without measuring and without PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from multi_dnn_ros.planning.fit import Decoding, Demand, Verdict, check_fit

#: (width, height) in pixels.
Size = tuple[int, int]
#: Hertz by DNN and camera.
Rates = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class CameraLoad:
    """Images of one camera. size: size for which times were measured. known: whether it is the camera's real size;
    False: assumed. decode_ms: per megapixel, on one core.
    """

    hz: float
    size: Size
    known: bool
    decode_ms: float


@dataclass(frozen=True)
class Fit:
    """Measured figures that can be evaluated for any image sizes.

    demands: for images of the cameras' measured `size`. preprocess_ms: by DNN, upload and preprocessing per additional
    megapixel. workers, gpu, unpredicted: see check_fit. cores: number of cores of the machine.
    """

    demands: tuple[Demand, ...]
    cameras: Mapping[str, CameraLoad]
    preprocess_ms: Mapping[str, float]
    workers: int
    cores: int
    gpu: bool = False
    unpredicted: tuple[str, ...] = field(default=())

    def verdict(self, sizes: Mapping[str, Size] | None = None) -> Verdict:
        """Check the fit. sizes: real image sizes by camera; for other cameras the measured sizes count.

        The text names assumed sizes.
        """
        real = dict(sizes or {})
        used = {name: real.get(name, camera.size) for name, camera in self.cameras.items()}
        decode_ms = {name: camera.decode_ms * megapixels(used[name]) for name, camera in self.cameras.items()}
        verdict = check_fit(
            [self._at(demand, used, decode_ms) for demand in self.demands],
            self.workers,
            gpu=self.gpu,
            unpredicted=self.unpredicted,
            decoding=[Decoding(name, camera.hz, decode_ms[name]) for name, camera in self.cameras.items()],
            cores=self.cores,
        )
        unknown = [name for name, camera in self.cameras.items() if not camera.known and name not in real]
        if not unknown:
            return verdict
        width, height = self.cameras[unknown[0]].size
        whose = f"camera{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}"
        return replace(verdict, text=f"{verdict.text} (images of {whose} assumed to be {width} x {height})")

    def at_rates(self, before: Rates, after: Rates, cameras_hz: Mapping[str, float]) -> Fit:
        """The same figures after the rates of the DNNs were changed. before: rates at which the demands were made,
        which may have been divided among several devices since. cameras_hz: hertz of the images by camera.
        """
        demands = tuple(
            replace(
                demand,
                cameras={
                    camera: hz * after[demand.dnn][camera] / before[demand.dnn][camera]
                    for camera, hz in demand.cameras.items()
                },
            )
            for demand in self.demands
        )
        cameras = {
            name: replace(camera, hz=min(cameras_hz[name], sum(after[demand.dnn].get(name, 0.0) for demand in demands)))
            for name, camera in self.cameras.items()
        }
        return replace(self, demands=demands, cameras=cameras)

    def _at(self, demand: Demand, sizes: Mapping[str, Size], decode_ms: Mapping[str, float]) -> Demand:
        """The demand for these image sizes.

        Preprocessing is a mean weighted by the cameras' rates; for decoding, the slowest camera counts.
        """
        additional = sum(
            hz * (megapixels(sizes[camera]) - megapixels(self.cameras[camera].size))
            for camera, hz in demand.cameras.items()
        ) / max(demand.hz, 1e-9)  # fmt: skip
        additional_ms = additional * self.preprocess_ms[demand.dnn]
        return replace(
            demand,
            alone_ms=max(0.0, demand.alone_ms + additional_ms),
            crowded_ms=max(0.0, demand.crowded_ms + additional_ms),
            wait_ms=demand.wait_ms + max(decode_ms[camera] for camera in demand.cameras),
        )


class ObservedSizes:
    """Repeats the check when a camera's images differ in size from the assumption.

    If a camera delivers several sizes, the largest counts.
    """

    def __init__(self, fit: Fit) -> None:
        self._fit = fit
        self._sizes: dict[str, Size] = {}

    def observe(self, camera: str, size: Size) -> Verdict | None:
        """Report the size of each image; returns a new verdict if the size to count has changed."""
        largest = self._sizes.get(camera)
        if camera not in self._fit.cameras or (largest is not None and megapixels(size) <= megapixels(largest)):
            return None
        self._sizes[camera] = size
        if largest is None and self._fit.cameras[camera].known and self._fit.cameras[camera].size == size:
            return None
        return self._fit.verdict(dict(self._sizes))

    def change_rates(self, before: Rates, after: Rates, cameras_hz: Mapping[str, float]) -> Verdict:
        """The verdict after the rates of the DNNs were changed; see Fit.at_rates."""
        self._fit = self._fit.at_rates(before, after, cameras_hz)
        return self._fit.verdict(dict(self._sizes))


def megapixels(size: Size) -> float:
    """Millions of pixels."""
    return size[0] * size[1] / 1e6
