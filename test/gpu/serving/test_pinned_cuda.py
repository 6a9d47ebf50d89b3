"""Images in shared memory are uploaded from where they lie."""

from __future__ import annotations

import numpy as np
import torch

from multi_dnn_ros.serving.shared_memory import PinnedImages, SlotLayout, SlotMemory, SlotPool

GPU = torch.device("cuda", 0)
SIZES = ((48, 64), (720, 1280), (480, 640), (1080, 1920))


def test_slots_are_pinned_memory_whatever_the_size_of_the_image_is():
    pool = SlotPool(SlotLayout("front", 2, 1920 * 1080, ("lane",)))
    memory = SlotMemory(pool.layout, pool.fd)  # as another process maps it
    pins = PinnedImages(GPU)
    source = np.random.default_rng(0)
    for height, width in SIZES:
        for _ in range(2):
            for slot in (0, 1):
                image = memory.slots[slot].image(height, width)
                pins.pin(image)
                assert torch.from_numpy(image).is_pinned()
                pool.slots[slot].image(height, width)[:] = source.integers(0, 256, (height, width, 3), np.uint8)
                uploaded = torch.from_numpy(image).to(GPU, non_blocking=True)
                torch.cuda.synchronize()
                np.testing.assert_array_equal(uploaded.cpu().numpy(), image)
    pins.close()
    assert not torch.from_numpy(memory.slots[0].image(48, 64)).is_pinned()
    pins.pin(memory.slots[0].image(48, 64))  # and again, as after the next start
    assert torch.from_numpy(memory.slots[0].image(48, 64)).is_pinned()
    pins.close()
    pool.close()
