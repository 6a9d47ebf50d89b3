"""Which frames the overlay shows, in which order, and with which results."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from std_msgs.msg import Header

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import Drop, DropReason, Result, Timing
from multi_dnn_ros.ros import overlay_publisher
from multi_dnn_ros.ros.overlay_publisher import OverlayPublisher
from multi_dnn_ros.vision.result_kind import RESULT_KINDS
from multi_dnn_ros.vision.results import Lanes

WAIT_S = 60.0
_MS = 1_000_000


class Publisher:
    """The topics of a camera's overlay. While `go` is cleared, publishing blocks."""

    def __init__(self, name: str, order: list[tuple[str, str]]) -> None:
        self.name = name
        self.order = order
        self.go = threading.Event()
        self.go.set()
        self.begun = threading.Event()
        self.appended = threading.Condition()
        self.subscriptions = 1

    def publish(self, header: Header) -> None:
        self.begun.set()
        assert self.go.wait(WAIT_S)
        with self.appended:
            self.order.append((self.name, header.frame_id))
            self.appended.notify_all()

    def until(self, frame_id: str) -> None:
        with self.appended:
            assert self.appended.wait_for(lambda: (self.name, frame_id) in self.order, WAIT_S), self.order


class Overlay:
    """An overlay of two cameras with the DNNs `quick` and `slow`.

    layers: those that were drawn on each picture. corners: the first value of each picture's image.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.order: list[tuple[str, str]] = []
        self.layers: list[list[str]] = []
        self.corners: list[int] = []
        self.errors: list[str] = []
        draw = overlay_publisher.draw

        def note(image: Any, layers: Any, report: Any) -> Any:
            self.layers.append(sorted(layer.dnn for layer in layers))
            self.corners.append(int(image[0, 0, 0]))
            return draw(image, layers, report)

        monkeypatch.setattr(overlay_publisher, "draw", note)
        self.publishers = {name: Publisher(name, self.order) for name in ("front", "rear")}
        self.kinds = dict.fromkeys(("quick", "slow"), RESULT_KINDS.get("lanes"))
        self.overlay = OverlayPublisher(self, dict.fromkeys(self.publishers, 2), self)  # type: ignore[arg-type]

    def is_overlay_wanted(self, camera: str) -> bool:
        return bool(self.publishers[camera].subscriptions)

    def publish_overlay(self, camera: str, pixels: Any, header: Header) -> None:
        self.publishers[camera].publish(header)

    def warning(self, text: str, **_: float) -> None:
        self.errors.append(text)

    def answer(self, dnn: str, frame: Frame, at_ms: int = 0) -> None:
        timing = Timing(frame.received_ns, frame.received_ns, at_ms * _MS, 0, 0, 0, 0)
        mask = np.zeros(frame.size, np.uint8)
        self.overlay.add(Result(dnn, frame, Lanes(mask, ()), timing))

    def complete(self, frame: Frame) -> None:
        self.answer("quick", frame)
        self.answer("slow", frame)

    def drop(self, dnn: str, frame: Frame) -> None:
        self.overlay.skip(Drop(dnn, frame, DropReason.OVERWRITTEN, ""))


def frame(number: int, camera: str = "front", size: tuple[int, int] = (6, 8)) -> Frame:
    """A frame that arrived `number` milliseconds after the start."""
    found = Frame(camera, 0, np.zeros((*size, 3), np.uint8), Header(frame_id=str(number)))
    found.received_ns = number * _MS
    return found


@pytest.fixture
def overlay(monkeypatch: pytest.MonkeyPatch) -> Iterator[Overlay]:
    instance = Overlay(monkeypatch)
    yield instance
    instance.overlay.stop(WAIT_S)
    assert not instance.overlay.thread.is_alive()
    assert instance.errors == []


def test_overlays_are_in_order_of_time(overlay: Overlay) -> None:
    first, second, third = frame(100), frame(200), frame(300)
    overlay.answer("quick", first, 110)
    overlay.answer("quick", second, 210)
    overlay.drop("slow", second)
    overlay.publishers["front"].until("200")
    overlay.answer("slow", first, 250)  # complete now, but a newer frame was shown
    overlay.complete(frame(260, "rear"))
    overlay.publishers["rear"].until("260")  # if the old frame were drawn, it would be before this one
    overlay.answer("quick", third, 310)
    overlay.drop("slow", third)
    overlay.publishers["front"].until("300")
    assert [number for camera, number in overlay.order if camera == "front"] == ["200", "300"]
    assert overlay.layers[0] == overlay.layers[-1] == ["quick"]


@pytest.mark.parametrize("last", ["answer", "drop"])
def test_the_image_is_copied_before_its_memory_is_reused(overlay: Overlay, last: str) -> None:
    """Its memory is overwritten afterwards."""
    publisher = overlay.publishers["front"]
    publisher.go.clear()
    overlay.complete(frame(100))
    assert publisher.begun.wait(WAIT_S)  # and is being drawn, while the next one waits
    memory = np.full((6, 8, 3), 50, np.uint8)
    waiting = Frame("front", 0, memory, Header(frame_id="200"))
    waiting.received_ns = 200 * _MS
    overlay.answer("quick", waiting, 210)
    getattr(overlay, last)("slow", waiting)
    memory[:] = 99
    publisher.go.set()
    publisher.until("200")
    assert overlay.corners == [0, 50]
