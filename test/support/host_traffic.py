"""Simulated cameras for a host, without ROS: images at a fixed rate, decoded as in the node; all results counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.reports import Callbacks, Failure
from multi_dnn_ros.engine.task import Drop, Result
from multi_dnn_ros.serving.camera_decoder import Allocate, CameraDecoder
from multi_dnn_ros.serving.descriptions import EngineDescription
from multi_dnn_ros.serving.host import Host
from multi_dnn_ros.serving.ledger import DnnSettings, Ledger
from multi_dnn_ros.serving.statistics import DnnCameraStatistics

#: (camera, index of the image) -> image, (H, W, 3) uint8.
Picture = Callable[[str, int], npt.NDArray[np.uint8]]


@dataclass
class Observed:
    """What the host reported, by DNN and camera. results_ns: times of results. counted: number of frames by outcome."""

    results_ns: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    counted: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)


class HostTraffic:
    """Feeds a configured host from :meth:`start` to :meth:`stop`.

    rates_hz: image rate of each camera. picture: makes the images. stop_timeout_s: passed to the host when it stops.
    """

    def __init__(
        self,
        host: Host,
        description: EngineDescription,
        rates_hz: Mapping[str, float],
        picture: Picture,
        stop_timeout_s: float = 2.0,
    ) -> None:
        self.seen = Observed()
        self._host = host
        self._rates_hz = rates_hz
        self._picture = picture
        self._stop_timeout_s = stop_timeout_s
        self._lock = threading.Lock()
        self.ledger = Ledger(
            {name: DnnSettings(dnn.cameras) for name, dnn in description.dnns.items()},
            Callbacks(self._on_result, self._on_drop, self.seen.failures.append),
            on_answered=lambda camera: self._decoders[camera].wake(),
        )
        for stream in self.ledger.statistics():
            self.seen.results_ns[stream], self.seen.counted[stream] = [], {}
        self._decoders = {camera: CameraDecoder(camera, host, self.ledger, lambda error: None) for camera in rates_hz}
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._feed, args=(camera,), daemon=True) for camera in rates_hz]

    def start(self) -> None:
        """Start the host and the cameras."""
        self._host.start(self.ledger)
        for thread in (*self._decoders.values(), *self._threads):
            thread.start()

    def stop(self) -> list[str]:
        """Stop the cameras, then the host; returns the names of threads that hang."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        for decoder in self._decoders.values():
            decoder.close(1.0)
        return self._host.stop(self._stop_timeout_s)

    def streams(self) -> Mapping[tuple[str, str], DnnCameraStatistics]:
        """The figures of all streams."""
        return self.ledger.statistics()

    def discrepancies(self) -> list[str]:
        """After :meth:`stop`: inconsistencies between ledger and reports, one line each."""
        found = []
        for (dnn, camera), figures in self.streams().items():
            dropped = sum(figures.dropped.values())
            if figures.offered != figures.published + dropped:
                found.append(f"{dnn} on {camera}: offered {figures.offered}, {figures.published} + {dropped} counted")
            seen = self.seen.counted[dnn, camera]
            counts = {reason.value: count for reason, count in figures.dropped.items() if count}
            if figures.published:
                counts["published"] = figures.published
            if seen != counts:
                found.append(f"{dnn} on {camera}: counted {counts}, reported {seen}")
        return found

    def gap_ms(self, dnn: str) -> float:
        """Longest time between consecutive results of a DNN, over all its cameras."""
        times = sorted(at for (name, _), stream in self.seen.results_ns.items() if name == dnn for at in stream)
        return max(((after - before) / 1e6 for before, after in pairwise(times)), default=0.0)

    def results(self, dnn: str) -> int:
        """Number of a DNN's results so far."""
        return sum(len(times) for (name, _), times in self.seen.results_ns.items() if name == dnn)

    # -- called in the cameras' threads

    def _feed(self, camera: str) -> None:
        period_s = 1.0 / self._rates_hz[camera]
        due = time.monotonic()
        number = 0
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            self._deliver(self._decoders[camera], Frame(camera, time.time_ns(), context=number))
            number += 1
            due = max(due + period_s, time.monotonic())

    def _deliver(self, decoder: CameraDecoder, frame: Frame) -> None:
        """Deliver an image of the frame's camera; the frame's context is the index of the image."""
        assert isinstance(frame.context, int)
        decoder.arrived(frame, self._decode(frame.camera, frame.context))

    def _decode(self, camera: str, number: int) -> Callable[[Allocate], npt.NDArray[np.uint8]]:
        def decode(allocate: Allocate) -> npt.NDArray[np.uint8]:
            picture = self._picture(camera, number)
            image = allocate(*picture.shape[:2])
            image[:] = picture
            return image

        return decode

    # -- called in the host's threads

    def _on_result(self, result: Result) -> None:
        stream = result.dnn, result.frame.camera
        with self._lock:
            self.seen.results_ns[stream].append(time.monotonic_ns())
            self._count(stream, "published")

    def _on_drop(self, drop: Drop) -> None:
        with self._lock:
            self._count((drop.dnn, drop.frame.camera), drop.reason.value)

    def _count(self, stream: tuple[str, str], what: str) -> None:
        counted = self.seen.counted[stream]
        counted[what] = counted.get(what, 0) + 1
