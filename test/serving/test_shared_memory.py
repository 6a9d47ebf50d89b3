"""Slots of shared memory, and the messages and results between the processes."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from multi_dnn_ros.engine.task import Timing
from multi_dnn_ros.serving.messages import LARGE_BYTES, Channel, Disconnected, FrameResult, pack, unpack
from multi_dnn_ros.serving.shared_memory import SlotLayout, SlotPool
from multi_dnn_ros.vision.results import Detections, Lane, Lanes


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal."""
    return type(one) is type(other) and all(
        np.array_equal(value, getattr(other, name)) if isinstance(value, np.ndarray) else value == getattr(other, name)
        for name, value in vars(one).items()
    )


TIMING = Timing(1, 2, 3, 4, 5, 6, 7)


@pytest.fixture
def pool() -> Iterator[SlotPool]:
    created = SlotPool(SlotLayout("front", 8, 2_000_000, ("lane", "road")))
    yield created
    created.close()


def test_only_images_and_results_occupy_memory(pool: SlotPool) -> None:
    def occupied_bytes() -> int:
        return os.fstat(pool.fd).st_blocks * 512

    assert occupied_bytes() == 0
    first, second = pool.take(), pool.take()
    assert first is not None
    assert second is not None
    first.image(480, 640)[:] = 7
    first.output("road")[:50_000] = 3
    second.image(480, 640)[:] = 9
    assert (first.image(480, 640) == 7).all()
    assert (first.output("road")[:50_000] == 3).all()
    assert first.output("object").size == 0
    needed = 2 * 3 * 480 * 640 + 50_000
    assert needed <= occupied_bytes() <= needed + 3 * 4096
    with pytest.raises(ValueError, match="an image of 2000 x 2000 pixels does not fit into a slot of 2000000 pixels"):
        first.image(2000, 2000)


@given(st.lists(st.one_of(st.integers(0, 300), st.integers(15_000, 300_000)), max_size=12))
def test_messages_of_any_size_and_of_several_threads_arrive_complete_and_in_order(sizes: list[int]) -> None:
    one, other = (Channel(end) for end in socket.socketpair())
    messages = {name: [(name, number, b"x" * size) for number, size in enumerate(sizes)] for name in "ab"}
    threads = [threading.Thread(target=lambda it=it: [one.send(message) for message in it]) for it in messages.values()]
    for thread in threads:
        thread.start()
    received = [other.receive() for _ in range(2 * len(sizes))]
    for thread in threads:
        thread.join()
    for name, sent in messages.items():
        assert [message for message in received if message[0] == name] == sent
    one.send("sent before the end")
    one.close()
    assert other.receive() == "sent before the end"
    with pytest.raises(Disconnected):
        other.receive()
    with pytest.raises(Disconnected):
        other.send("not received")
    other.close()


@given(
    mask=arrays.arrays(np.uint8, st.tuples(st.integers(1, 300), st.integers(1, 300))),
    count=st.integers(0, 3000),
    room=st.sampled_from([0, 1, 16_384, 90_000, 1_000_000]),
)
def test_results_are_unchanged_with_any_space_in_the_slot(mask: Any, count: int, room: int) -> None:
    boxes = np.random.default_rng(count).random((count, 4), dtype=np.float32)
    results = (
        Lanes(mask, ()),
        Detections(boxes, boxes[:, 0].copy(), np.arange(count), ("car", "truck")),
        Lanes(mask.T, (Lane(1, boxes[:, :2], np.zeros(3), 0.5),) * (count > 0), (480, 640)),  # not in C order
        {"plain": [1, "two"], "large": [mask, boxes]},
    )
    for result in results:
        memory = np.zeros(room, np.uint8)
        data, large = pack(result, memory)
        assert sum(large) <= room
        assert all(size >= LARGE_BYTES for size in large)
        found = unpack(FrameResult(1, "object", TIMING, data, large), memory)
        memory[:] = 99  # the slot is reused
        if isinstance(result, dict):
            np.testing.assert_array_equal(found["large"][0], mask)
            np.testing.assert_array_equal(found["large"][1], boxes)
        elif isinstance(result, Lanes):
            np.testing.assert_array_equal(found.mask, result.mask)
            assert found.size == result.size
            assert all(same(one, other) for one, other in zip(found.lanes, result.lanes, strict=True))
        else:
            assert same(found, result)
    assert pack(Lanes(np.zeros((300, 300), np.uint8), ()), np.zeros(90_000, np.uint8))[1] == (90_000,)
