"""Frames of many cameras on several devices, simulated: rate, age and shares of the results."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from multi_dnn_ros.serving.frame_dispatcher import FrameDispatcher

MS = 1_000_000
SECONDS = 10.0


@dataclass
class Simulated:
    """ages_ms: of the results, published in the order of each camera's frames. results: by camera."""

    ages_ms: list[float] = field(default_factory=list)
    results: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        return len(self.ages_ms) / SECONDS

    def age_ms(self, share: float) -> float:
        return sorted(self.ages_ms)[int(share * len(self.ages_ms))]


def simulate(cameras: int, hz: float, service_ms: dict[str, float], hangs: str = "", seed: int = 0) -> Simulated:
    """Cameras of varying periods; each device takes its waiting frames in turn, of each camera the newest.

    hangs: a device that never finishes its first frame.
    """
    draw, now, found = random.Random(seed), [0], Simulated()
    devices = list(service_ms)
    allowance_ns = 100 * MS  # the default of reorder_ms
    services = {("object", device): ms for device, ms in service_ms.items()}
    dispatcher = FrameDispatcher({"object": devices}, services, allowance_ns, lambda: now[0])
    arrivals = []
    for camera in range(cameras):
        at = draw.random() / hz
        while at < SECONDS:
            arrivals.append((round(at * 1e9), f"c{camera}"))
            at += draw.uniform(0.95, 1.05) / hz
    arrivals.sort()
    waiting: dict[str, dict[str, tuple[int, int]]] = {device: {} for device in devices}  # number, arrival by camera
    busy: set[str] = set()
    ends: list[tuple[int, int, int, str, str]] = []  # end, number, begin, device, camera
    open_frames: dict[str, list[tuple[int, int]]] = {}
    finished: set[int] = set()

    def start(device: str) -> None:
        if device not in busy and waiting[device]:
            camera = next(iter(waiting[device]))
            number, _ = waiting[device].pop(camera)
            busy.add(device)
            if device != hangs:
                took_ns = round(service_ms[device] * draw.uniform(0.95, 1.05) * MS)
                heapq.heappush(ends, (now[0] + took_ns, number, now[0], device, camera))

    def publish(camera: str) -> None:
        frames = open_frames[camera]
        while frames and (frames[0][0] in finished or (hangs and now[0] - frames[0][1] > allowance_ns)):
            number, arrived_ns = frames.pop(0)
            if number in finished:
                found.ages_ms.append((now[0] - arrived_ns) / MS)
                found.results[camera] += 1

    for number, (at, camera) in enumerate(arrivals):
        while ends and ends[0][0] <= at:
            now[0], done, began, device, of = heapq.heappop(ends)
            busy.remove(device)
            finished.add(done)
            dispatcher.answered(done, "object", device, SimpleNamespace(finished_ns=now[0], started_ns=began, batch=1))  # type: ignore[arg-type]
            publish(of)
            start(device)
        now[0] = at
        device = dispatcher.choose("object", camera, number, devices)
        replaced = waiting[device].get(camera)
        if replaced is not None:
            dispatcher.answered(replaced[0], "object", device, None)
            open_frames[camera].remove(replaced)
        waiting[device][camera] = number, at
        open_frames.setdefault(camera, []).append((number, at))
        start(device)
    return found


@pytest.mark.parametrize("devices", [2, 4])
def test_an_overloaded_dnn_gives_new_results_at_its_full_rate(devices: int) -> None:
    """A frame waits for at most the frames of the other cameras on one device, as if its DNN had a single device."""
    found = simulate(8, 90.0, {f"cuda:{index}": 8.8 for index in range(devices)})
    assert found.rate > 0.97 * devices * 1000 / 8.8
    assert found.age_ms(0.5) < 2.5 * 8.8
    assert found.age_ms(0.95) < 6 * 8.8
    assert min(found.results.values()) > 0.9 * max(found.results.values())


def test_a_slight_overload_does_not_make_results_old() -> None:
    found = simulate(4, 30.0, {"a": 17.0, "b": 17.0})
    assert found.rate > 0.97 * 2000 / 17.0
    assert found.age_ms(0.5) < 3 * 17.0


@pytest.mark.parametrize(
    ("cameras", "hz", "service_ms"),
    [(1, 55.0, {"a": 33.0, "b": 33.0}), (3, 30.0, {"a": 10.0, "b": 40.0}), (1, 100.0, dict.fromkeys("abcd", 35.0))],
)
def test_devices_that_are_fast_enough_together_lose_no_frame(
    cameras: int, hz: float, service_ms: dict[str, float]
) -> None:
    assert simulate(cameras, hz, service_ms).rate > 0.99 * cameras * hz


def test_cameras_with_a_frame_on_a_device_that_hangs_are_served_by_the_other() -> None:
    found = simulate(4, 60.0, {"a": 10.0, "b": 10.0}, hangs="a")
    assert found.rate > 0.9 * 100.0
    assert min(found.results.values()) > 0.7 * max(found.results.values())
