"""Messages and results between the processes."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from engine_rig import same
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from multi_dnn_ros.engine.task import Timing
from multi_dnn_ros.serving.messages import LARGE_BYTES, Channel, FrameResult, pack, unpack
from multi_dnn_ros.vision.results import Detections, Lane, Lanes

TIMING = Timing(1, 2, 3, 4, 5, 6, 7)
SIZES = st.one_of(st.integers(0, 300), st.integers(60_000, 70_000), st.integers(130_000, 300_000))


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, other = (Channel(end) for end in socket.socketpair())
    yield one, other
    one.close()
    other.close()


@given(sizes=st.lists(SIZES, max_size=12))
def test_messages_of_any_size_arrive_complete_and_in_order(sizes: list[int]) -> None:
    """Smaller than, equal to, and larger than the receive buffer."""
    one, other = (Channel(end) for end in socket.socketpair())
    messages = [bytes([number]) * size for number, size in enumerate(sizes)]
    sender = threading.Thread(target=lambda: [one.send(message) for message in messages])
    sender.start()
    assert [other.receive() for _ in messages] == messages
    sender.join()
    one.close()
    with pytest.raises(EOFError):
        other.receive()
    other.close()


def test_several_threads_may_send(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    count = 200
    threads = [
        threading.Thread(target=lambda name=name: [one.send((name, number, b"x" * 5000)) for number in range(count)])
        for name in "abc"
    ]
    for thread in threads:
        thread.start()
    received = [other.receive()[:2] for _ in range(3 * count)]
    for thread in threads:
        thread.join()
    for name in "abc":
        assert [number for sender, number in received if sender == name] == list(range(count))


def test_a_truncated_message_ends_the_connection(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    one._socket.sendall((100).to_bytes(4, sys.byteorder) + b"half")
    one.close()
    with pytest.raises(EOFError):
        other.receive()
    with pytest.raises(BrokenPipeError):
        other.send("not received")


@given(
    mask=arrays.arrays(np.uint8, st.tuples(st.integers(1, 300), st.integers(1, 300))),
    count=st.integers(0, 3000),
    room=st.sampled_from([0, 1, 16_384, 90_000, 1_000_000]),
)
def test_results_are_unchanged_with_any_space_in_the_slot(mask: Any, count: int, room: int) -> None:
    numbers = np.random.default_rng(count)
    boxes = numbers.random((count, 4), dtype=np.float32)
    results = (
        Lanes(mask, ()),
        Detections(boxes, boxes[:, 0].copy(), np.arange(count), ("car", "truck")),
        Lanes(mask.T, ()),  # not in C order
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
        else:
            assert same(found, result)
    assert pack(Lanes(np.zeros((300, 300), np.uint8), ()), np.zeros(90_000, np.uint8))[1] == (90_000,)


@given(st.lists(st.integers(1, 48), max_size=12))
def test_lines_are_unchanged(counts: list[int]) -> None:
    random = np.random.default_rng(4)
    lanes = tuple(
        Lane(number, random.random((count, 2), dtype=np.float32), random.random(3), random.random())
        for number, count in enumerate(counts, start=1)
    )
    data, large = pack(Lanes(np.ones((3, 4), np.uint8), lanes, (480, 640)), np.zeros(0, np.uint8))
    found = unpack(FrameResult(1, "lane", TIMING, data, large), np.zeros(0, np.uint8))
    assert found.size == (480, 640)
    assert (found.numbers == 1).all()
    assert len(found.lanes) == len(lanes)
    assert all(same(one, other) for one, other in zip(found.lanes, lanes, strict=True))
