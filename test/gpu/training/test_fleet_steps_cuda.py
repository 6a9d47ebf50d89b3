"""Steps of a fleet's process on a GPU. CPU twins: test/fleet/test_worker.py, test/training/test_random_rows.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.worker import JobWorker
from multi_dnn_ros.training.batches import Inputs
from multi_dnn_ros.training.data import ArrayRows, Rows, SomeRows, Task
from multi_dnn_ros.training.setup import make_batches

GPU = torch.device("cuda:0")


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """Context in which an operation for which the host waits raises RuntimeError; waiting for an event is allowed."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_step_waits_for_its_loss_only(tmp_path: Path) -> None:
    """Also over the end of an epoch of four steps."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 60), ("val", 6)):
        for name in ("a", "b"):
            (tmp_path / part / name).mkdir(parents=True)
            for k in range(count):
                cv2.imwrite(str(tmp_path / part / name / f"{k}.png"), rng.integers(0, 256, (32, 32, 3), dtype=np.uint8))
    job = FleetJob(
        name="a", model="torchvision:resnet18", weights="random", num_classes=2, size=(64, 64),
        data=f"classes:{tmp_path}", global_batch=20, steps=15, optimizer="sgd",
    )  # fmt: skip
    worker = JobWorker(job, 0, tmp_path)
    worker.prepare(tmp_path / "none.pt")
    worker.join(0, 1, "")
    worker.train(3)
    with waiting_is_an_error():
        worker.train(11)
    assert worker.train(1).done == 15


@pytest.mark.parametrize("task", ["classes", "boxes", "lanes"])
@pytest.mark.parametrize("in_memory", [True, False])
def test_the_host_does_not_wait_for_batches(task: Task, in_memory: bool) -> None:
    """Those of a fleet and those of `retrain`; they are the same however the tenths are divided."""
    rng = torch.Generator().manual_seed(0)
    count = 40
    truth = {
        "classes": {"label": torch.arange(count) % 5},
        "boxes": {
            "boxes": torch.rand(count, 4, 4, generator=rng) * 16,
            "classes": torch.randint(-2, 3, (count, 4), generator=rng),
        },
        "lanes": {"mask": torch.randint(0, 256, (count, 1, 16, 24), generator=rng, dtype=torch.uint8)},
    }[task]
    stored = ArrayRows({"image": torch.randint(0, 256, (count, 3, 16, 24), generator=rng, dtype=torch.uint8), **truth})
    rows: Rows = stored if in_memory else SomeRows(stored, range(count))
    inputs = Inputs((48, 32), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), bgr=True)
    batches = make_batches([rows], task, inputs, 20, 3, GPU)
    list(batches.tenths(0, 0, 0, 10))  # the values of mean and std are copied once
    with waiting_is_an_error():
        assert len(list(batches.epoch(1))) == 2
        whole = list(batches.tenths(1, 0, 0, 10))
        parts = [list(batches.tenths(1, 0, *tenths)) for tenths in ((0, 3), (3, 10))]
    for k, batch in enumerate(whole):
        for name, tensor in batch.items():
            divided = torch.cat([part[k][name] for part in parts])
            # uint8: values that are rounded from nearly equal ones may differ by one.
            atol = 1.0 if name == "mask" else 1e-4
            torch.testing.assert_close(divided.float(), tensor.float(), atol=atol, rtol=1e-4)
