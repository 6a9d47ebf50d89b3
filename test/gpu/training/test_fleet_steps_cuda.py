"""Steps of a fleet's rank on a GPU. CPU twins: test/fleet/test_step_batches.py, test/training/test_random_rows.py."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from multi_dnn_ros.fleet.job_training import JobTraining
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.training.batches import Batch, Inputs
from multi_dnn_ros.training.checks import CheckedData
from multi_dnn_ros.training.classification import ClassificationLoss
from multi_dnn_ros.training.data import PARTS, ArrayRows, Rows, SomeRows, Task
from multi_dnn_ros.training.loop import Schedule, make_optimizer
from multi_dnn_ros.training.precision import autocast
from multi_dnn_ros.training.setup import make_batches

GPU = torch.device("cuda:0")
SIZE, BATCH = 224, 128
_WARM_UP, _STEPS = 10, 40


class Labelled:
    """Random images of ten classes, in memory."""

    name, task, labels = "random", "classes", tuple("abcdefghij")

    def part(self, part: str) -> ArrayRows:
        rng = torch.Generator().manual_seed(PARTS.index(part))
        image = torch.randint(0, 256, (6 * BATCH, 3, 32, 32), generator=rng, dtype=torch.uint8)
        return ArrayRows({"image": image, "label": torch.arange(len(image)) % 10})


def resnet(steps: int) -> JobTraining:
    job = FleetJob(
        name="a", model="torchvision:resnet18", weights="random", num_classes=10, size=(SIZE, SIZE),
        data="cifar10:none", global_batch=BATCH, steps=steps, lr=1e-3, optimizer="sgd", precision="bf16",
    )  # fmt: skip
    parts: dict[str, Rows] = {part: Labelled().part(part) for part in PARTS}
    data = CheckedData(Labelled(), parts, {part: len(rows) for part, rows in parts.items()}, "")  # type: ignore[arg-type]
    training = JobTraining(job, GPU, data)
    training.take((10,), 0)
    return training


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """Context in which an operation for which the host waits raises RuntimeError; waiting for an event is allowed."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_step_waits_for_its_loss_only() -> None:
    """Also over the end of an epoch of six steps."""
    training = resnet(15)
    for _ in range(3):
        training.step()
    with waiting_is_an_error():
        for _ in range(11):
            training.step()
    assert len(training.losses) == 14


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


def step_ms(once: Callable[[], object]) -> float:
    """Median host time of a step, after some to warm up."""
    times = []
    for _ in range(_WARM_UP + _STEPS):
        begin = time.monotonic()
        once()
        times.append(1e3 * (time.monotonic() - begin))
    return statistics.median(times[_WARM_UP:])


def batches_of_steps(first: int, last: int) -> Iterator[Batch]:
    made = make_batches([Labelled().part("train")], "classes", Inputs((SIZE, SIZE)), BATCH, 0, GPU)
    epoch = 0
    while True:
        yield from made.tenths(epoch, 0, first, last)
        epoch += 1


class OwnLoop:
    """The work of a step, in the order of the caller."""

    def __init__(self) -> None:
        self.network = resnet(1).network
        self.loss = ClassificationLoss()
        self.optimizer = make_optimizer(self.network, Schedule(1, 1e-3, "sgd"))

    def passes(self, batch: Batch) -> Tensor:
        with autocast(GPU, "bf16"):
            outputs = self.network(batch["image"])
        loss = self.loss(outputs, batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        return loss.detach()

    def update(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 10.0)
        self.optimizer.step()


def gpu_ms() -> float:
    """Time of a step for the GPU: the host never waits, so that the GPU always has work."""
    loop, batches = OwnLoop(), batches_of_steps(0, 10)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for number in range(_WARM_UP + _STEPS):
        if number == _WARM_UP:
            begin.record()
        loop.passes(next(batches))
        loop.update()
    end.record()
    end.synchronize()
    elapsed: float = begin.elapsed_time(end)
    return elapsed / _STEPS


def former_ms() -> float:
    """Time of a step in the former order: the tenths one after another, the passes, and the loss before the update."""
    loop = OwnLoop()
    tenths = [batches_of_steps(tenth, tenth + 1) for tenth in range(10)]

    def once() -> None:
        parts = [next(each) for each in tenths]
        float(loop.passes({name: torch.cat([part[name] for part in parts]) for name in parts[0]}))
        loop.update()

    return step_ms(once)


def test_the_gpu_is_not_idle_between_steps() -> None:
    """ResNet18, 128 images of 224x224 pixels, bf16, alone on the GPU: step time relative to that of the GPU's work."""
    training = resnet(_WARM_UP + _STEPS + 1)
    now, former, gpu = step_ms(training.step), former_ms(), gpu_ms()
    print(
        f"step {now:.2f} ms, GPU {gpu:.2f} ms, ratio {now / gpu:.3f}; former order {former:.2f} ms, {former / gpu:.3f}"
    )
    assert now < 1.15 * gpu
    assert now < former
