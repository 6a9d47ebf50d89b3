"""Slots of shared memory: when they occupy memory, and how much."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Any

import pytest
from fake_pipelines import settings

from multi_dnn_ros.serving.descriptions import ConfigureError
from multi_dnn_ros.serving.host import Host
from multi_dnn_ros.serving.slots import SlotLayout, SlotPool


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


def test_a_slot_is_free_again_when_it_is_released(pool: SlotPool) -> None:
    slots = [pool.take() for _ in range(8)]
    assert all(slots)
    assert pool.take(0.01) is None
    assert slots[3] is not None
    slots[3].release()
    again = pool.take()
    assert again is not None
    assert again.index == slots[3].index


def test_an_image_or_a_file_that_does_not_fit(pool: SlotPool) -> None:
    slot = pool.take()
    assert slot is not None
    with pytest.raises(ValueError, match="an image of 2000 x 2000 pixels does not fit into a slot of 2000000 pixels"):
        slot.image(2000, 2000)
    assert slot.file(7_000_000) is None


def test_shared_memory_that_is_full_is_an_error_of_configuring(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "ftruncate", refuse)
    host = Host()
    with pytest.raises(ConfigureError, match="No space left on device"):
        host.configure(settings("object"), lambda step: None)
    host.close()
