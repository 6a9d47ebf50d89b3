"""When a rank prepares its batches, and which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from multi_dnn_ros.fleet import job_training
from multi_dnn_ros.fleet.job_training import JobTraining
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.step_batches import StepBatches
from multi_dnn_ros.training import setup
from multi_dnn_ros.training.batches import ArrayBatches, Batch, augment_classes
from multi_dnn_ros.training.checkpoint import TrainingError
from multi_dnn_ros.training.random_rows import Random
from multi_dnn_ros.training.transfers import HostCopy

CPU = torch.device("cpu")


def by_tenths() -> StepBatches:
    """Batches of 20 from 70 rows: three per epoch. The label is the number of the row."""
    image = torch.zeros(70, 3, 2, 2, dtype=torch.uint8)
    return StepBatches(ArrayBatches({"image": image, "label": torch.arange(70)}, 20, seed=5))


def labels(batches: StepBatches, step: int) -> list[int]:
    found: list[int] = batches.get(step)["label"].tolist()
    return found


def test_batches_that_were_prepared_are_those_of_their_steps() -> None:
    """Also over the end of an epoch, after a step that is repeated, and after one that is skipped."""
    expected = [labels(by_tenths(), step) for step in range(7)]
    assert len({tuple(each) for each in expected}) == 7
    batches = by_tenths()
    for step in (0, 1, 2, 3, 1, 2, 5, 6):
        assert labels(batches, step) == expected[step]
        batches.prepare(step + 1)


def test_a_change_of_shares_neither_loses_nor_repeats_rows() -> None:
    expected = [labels(by_tenths(), step) for step in range(6)]
    batches = by_tenths()
    for step, tenths in enumerate([(0, 10), (0, 10), (3, 7), (3, 7), (3, 4), (0, 10)]):
        batches.take(*tenths)
        assert labels(batches, step) == expected[step][2 * tenths[0] : 2 * tenths[1]]
        batches.prepare(step + 1)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a training does, in order: `prepare` for each tenth that is augmented, `read` for each loss."""
    found: list[str] = []

    def augment(batch: Batch, rng: Random, mix: float = 0.0) -> Batch:
        found.append("prepare")
        return augment_classes(batch, rng, mix)

    class Copy(HostCopy):
        def values(self) -> list[float]:
            found.append("read")
            return super().values()

    monkeypatch.setattr(setup, "augment_classes", augment)
    monkeypatch.setattr(job_training, "HostCopy", Copy)
    return found


def small(job: FleetJob) -> FleetJob:
    return job.model_copy(update={"model": "torchvision:shufflenet_v2_x0_5", "steps": 4})


def test_the_next_batch_is_prepared_before_the_loss_is_read(job: FleetJob, events: list[str]) -> None:
    """And none after the last step."""
    training = JobTraining(small(job), CPU)
    training.take((10,), 0)
    batch = ["prepare"] * 10
    seen = []
    while training.done < training.total:
        training.step()
        seen.append(events.copy())
        events.clear()
    assert seen == [[*batch, *batch, "read"], [*batch, "read"], [*batch, "read"], ["read"]]


def test_a_rank_prepares_its_own_tenths_only(job: FleetJob, events: list[str]) -> None:
    training = JobTraining(small(job), CPU)
    training.take((3, 7), 0)
    training.step()
    assert events == ["prepare"] * 6 + ["read"]
    events.clear()
    training.take((2, 8), 0)  # the batch that was prepared has other tenths
    training.step()
    assert events == ["prepare"] * 4 + ["read"]


def shares_change(training: JobTraining, step: int) -> None:
    """One process has all tenths again after each change, so that losses can be compared."""
    training.take((10,) if step % 2 else (4, 6), 0)
    training.take((10,), 0)


def checkpoint_is_loaded(training: JobTraining, step: int) -> None:
    training.load_bytes(training.state_bytes())


@pytest.mark.parametrize("between", [shares_change, checkpoint_is_loaded])
def test_what_happens_between_steps_changes_no_loss(
    between: Callable[[JobTraining, int], None], job: FleetJob
) -> None:  # fmt: skip
    job = small(job).model_copy(update={"steps": 8, "precision": "fp64"})  # more than an epoch
    first, other = JobTraining(job, CPU), JobTraining(job, CPU)
    for training in (first, other):
        training.take((10,), 0)
    for step in range(8):
        first.step()
        between(other, step)
        other.step()
    assert other.losses == pytest.approx(first.losses, rel=1e-9)


def test_a_training_that_was_killed_continues_with_the_same_batches(job: FleetJob, tmp_path: Path) -> None:
    """At every step, also when the next batch was prepared already."""
    job = small(job).model_copy(update={"precision": "fp64"})
    whole = JobTraining(job, CPU)
    for _ in range(4):
        whole.step()
        whole.save(tmp_path / f"{whole.done}.pt")
    for done in (1, 2, 3):
        again = JobTraining(job, CPU, whole.data)
        again.load(tmp_path / f"{done}.pt")
        while again.done < again.total:
            again.step()
        assert again.losses == pytest.approx(whole.losses, rel=1e-9)
        for old, new in zip(whole.network.parameters(), again.network.parameters(), strict=True):
            torch.testing.assert_close(new, old, rtol=1e-9, atol=1e-12)


def test_a_loss_that_is_not_finite_is_reported_for_its_step(job: FleetJob) -> None:
    training = JobTraining(small(job), CPU)
    training.step()
    with torch.no_grad():
        next(iter(training.network.parameters())).fill_(float("nan"))
    with pytest.raises(TrainingError, match="step 2: the loss is nan"):
        training.step()
    assert (training.done, len(training.losses)) == (1, 1)
