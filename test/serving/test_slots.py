"""Slots of shared memory: when they occupy memory, and how much."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from multi_dnn_ros.serving.slots import SlotLayout, SlotPool

COUNT = 8
MAX_PIXELS = 2_000_000
SMALL, LARGE = (240, 320), (480, 640)


@pytest.fixture
def pool() -> Iterator[SlotPool]:
    created = SlotPool(SlotLayout("front", COUNT, MAX_PIXELS, ("lane", "road")))
    yield created
    created.close()


def occupied_bytes(pool: SlotPool) -> int:
    return os.fstat(pool.fd).st_blocks * 512


def bytes_for(size: tuple[int, int]) -> int:
    """Memory of the images in all slots: 3 bytes per pixel. Results occupy memory only if they are large."""
    return COUNT * 3 * size[0] * size[1]


def test_the_first_image_of_a_size_reserves_the_memory_of_all_slots(pool: SlotPool) -> None:
    """Otherwise memory would grow for hours, whenever more frames than ever before are in progress."""
    assert occupied_bytes(pool) == 0
    for size in (SMALL, LARGE):
        slot = pool.take()
        assert slot is not None
        slot.image(*size)[:] = 1
        slot.release()
        before = occupied_bytes(pool)
        assert 0.9 * bytes_for(size) <= before <= bytes_for(size) + COUNT * 4096
        slots = [taken for _ in range(COUNT) if (taken := pool.take()) is not None]
        assert len(slots) == COUNT
        for one in slots:
            one.image(*size)[:] = 2
        assert occupied_bytes(pool) == before
        for one in slots:
            one.release()


def test_the_first_large_result_of_a_dnn_reserves_the_memory_of_all_slots(pool: SlotPool) -> None:
    first = pool.take()
    assert first is not None
    first.image(*LARGE)[:] = 1
    images = occupied_bytes(pool)
    for size in (20_000, 50_000, 30_000):  # bytes
        first.output("road")[:size] = 3
        first.reserve_output("road", size)
    assert (first.output("road")[:30_000] == 3).all()
    assert (first.image(*LARGE) == 1).all()
    before = occupied_bytes(pool)
    assert COUNT * 50_000 <= before - images <= COUNT * (50_000 + 4096)
    first.release()
    for slot in [taken for _ in range(COUNT) if (taken := pool.take()) is not None]:
        slot.image(*LARGE)[:] = 2
        slot.output("road")[:50_000] = 4
        slot.reserve_output("road", 50_000)
    assert occupied_bytes(pool) == before


def test_an_image_is_not_changed_while_the_other_slots_reserve_memory(pool: SlotPool) -> None:
    first = pool.take()
    assert first is not None
    first.image(*SMALL)[:] = 7
    second = pool.take()
    assert second is not None
    second.image(*LARGE)[:] = 9
    assert (first.image(*SMALL) == 7).all()
    assert (second.image(*LARGE) == 9).all()


def test_an_image_that_does_not_fit_takes_no_memory(pool: SlotPool) -> None:
    slot = pool.take()
    assert slot is not None
    with pytest.raises(ValueError, match="an image of 2000 x 2000 pixels does not fit into a slot of 2000000 pixels"):
        slot.image(2000, 2000)
    assert occupied_bytes(pool) == 0
