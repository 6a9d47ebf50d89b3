"""Train a network that is there already, most often one that was decomposed, on data given by name."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.training import distributed
from multi_dnn_ros.training.batches import Inputs
from multi_dnn_ros.training.checkpoint import TrainingError
from multi_dnn_ros.training.data import Data, Rows
from multi_dnn_ros.training.distillation import Distilled, SoftTargets, raw_outputs
from multi_dnn_ros.training.loop import Loss, Outcome, Schedule, train
from multi_dnn_ros.training.setup import MAIN, make_batches, score_rows
from multi_dnn_ros.training.trainable import Trainable


@dataclass(frozen=True)
class Result:
    """outcome: of the loop. before, after: scores on the test part, of the first data set where there are several.
    seconds: of training, scores included.
    """

    outcome: Outcome
    before: dict[str, float]
    after: dict[str, float]
    seconds: float

    def provenance(self) -> dict[str, Any]:
        return {
            "kept_epoch": self.outcome.epoch,
            "choice_scores": self.outcome.best,
            "test_scores": {"before": self.before, "after": self.after},
            "seconds": round(self.seconds, 1),
            "history": self.outcome.history,
        }


def retrain(
    pupil: Trainable,
    sets: Sequence[Data],
    schedule: Schedule,
    *,
    batch_size: int,
    device: torch.device,
    teacher: Trainable | None = None,
    teacher_weight: float = 0.5,
    checkpoint: Path | None = None,
    checkpoint_every: int = 1,
    progress: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Train `pupil.network` in place on all of `sets`, keep what is best on their choice parts, score the test part.

    teacher: a network of the same task, framing and output, whose answers count with `teacher_weight` (0..1) beside the
    truth; alone where the pupil has no loss of its own. All processes of a `distributed.process_group` call this.
    TrainingError when data, teacher and network do not fit together, and as the loop; DatasetError.
    """
    inputs = _inputs(pupil, schedule)
    first = sets[0]
    for data in sets:
        check_labels(pupil, data)
    loss = _loss(pupil, teacher, teacher_weight, device, schedule.precision)
    network = pupil.network.to(device)
    if device.type == "cuda":
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    train_rows = [data.part("train") for data in sets]
    choice_rows = [data.part("choice") for data in sets]
    batches = make_batches(train_rows, pupil.task, inputs, batch_size, schedule.seed, device, mix=schedule.mix)
    main = MAIN[pupil.task]

    def score(scored: nn.Module) -> dict[str, float]:
        each = [
            score_rows(scored, pupil.task, rows, pupil.inputs, pupil.decoder, pupil.labels, kind=pupil.kind)
            for rows in choice_rows
        ]
        # The mean over the sets: none may be given up for another.
        return {**each[0], main: sum(scores[main] for scores in each) / len(each)}

    test_rows = first.part("test") if distributed.rank() == 0 else None
    before = _test(pupil, network, test_rows)
    say(f"before: {describe(before)}")
    begin = time.monotonic()
    identity = f"{pupil.model} {[data.name for data in sets]} {batch_size} {teacher.model if teacher else None} " + (
        f"{teacher_weight} {pupil.size}"
    )
    with torch.backends.cudnn.flags(enabled=True, benchmark=device.type == "cuda"):  # all batches are of one size
        outcome = train(
            network, batches, loss, score, schedule, main=main, checkpoint=checkpoint,
            checkpoint_every=checkpoint_every, identity=identity, progress=progress,
        )  # fmt: skip
    seconds = time.monotonic() - begin
    gc.collect()  # captured passes hold themselves, and the GPU's memory
    after = _test(pupil, network, test_rows)
    say(f"after {seconds:.0f} s: {describe(after)}")
    network.cpu()
    return Result(outcome, before, after, seconds)


def _inputs(pupil: Trainable, schedule: Schedule) -> Inputs:
    """The pupil's, smaller in the first epochs where the schedule says so."""
    if not schedule.small_epochs:
        return pupil.inputs
    if pupil.task != "classes":
        raise TrainingError(
            f"{pupil.model}: the truth of {pupil.task} is for images of one size; only classes may grow"
        )
    width, height = (max(1, round(side * schedule.small)) for side in pupil.size)
    _run(pupil, (width, height))
    return replace(pupil.inputs, small=(width, height), small_epochs=schedule.small_epochs)


def check_labels(pupil: Trainable, data: Data) -> None:
    """TrainingError unless the network's classes are those of the data (of boxes: some of them)."""
    if pupil.task != "classes":
        return
    outputs = _run(pupil, pupil.size)
    count = outputs.shape[1] if isinstance(outputs, torch.Tensor) and outputs.ndim == 2 else 0
    if count != len(data.labels):
        raise TrainingError(
            f"{pupil.model} knows {count} classes, data '{data.name}' has {len(data.labels)}; a torchvision builder "
            f"gets that many with --num-classes {len(data.labels)}"
        )


def _run(pupil: Trainable, size: tuple[int, int]) -> Any:
    """Its answers to empty images. TrainingError where they are too small for it."""
    width, height = size
    device = next(pupil.network.parameters()).device
    try:
        with torch.no_grad():
            return pupil.network(torch.zeros(2, 3, height, width, device=device))
    except RuntimeError as error:
        raise TrainingError(
            f"{pupil.model} cannot be run on images of {width}x{height}: {summarize_error(error)}"
        ) from None


def settings(
    schedule: Schedule, batch_size: int, sets: Sequence[Data], teacher: Trainable | None, weight: float
) -> Any:
    """What a retrained artifact says of how it was trained."""
    return {
        "data": [data.name for data in sets],
        "schedule": asdict(schedule),
        "batch_size": batch_size,
        "processes": distributed.world(),
        "teacher": {"model": teacher.model, "weight": weight} if teacher is not None else None,
    }


def describe(scores: dict[str, float]) -> str:
    """Scores for people."""
    return ", ".join(f"{name} {value:.4f}" for name, value in scores.items())


def _loss(pupil: Trainable, teacher: Trainable | None, weight: float, device: torch.device, precision: str) -> Loss:
    if teacher is None:
        if pupil.loss is None:
            raise TrainingError(f"the outputs of {pupil.model} have no loss of their own; give a teacher")
        return pupil.loss
    if (teacher.task, teacher.size, teacher.inputs) != (pupil.task, pupil.size, pupil.inputs):
        raise TrainingError(
            f"the teacher {teacher.model} is for {teacher.task} at {teacher.size[0]}x{teacher.size[1]}, {pupil.model} "
            f"for {pupil.task} at {pupil.size[0]}x{pupil.size[1]}: both must take the same input"
        )
    _check_same_outputs(pupil, teacher)
    knows = teacher.network.to(device)  # in eval mode, as it was read; exported programs refuse to be told
    difference = SoftTargets() if pupil.task == "classes" else raw_outputs
    return Distilled(pupil.loss, knows, difference, weight=weight, precision=precision)


def _check_same_outputs(pupil: Trainable, teacher: Trainable) -> None:
    width, height = pupil.size
    shapes = []
    with torch.no_grad():
        for one in (pupil, teacher):
            leaves = pytree.tree_leaves(one.network(torch.zeros(2, 3, height, width)))
            shapes.append([tuple(leaf.shape[1:]) for leaf in leaves])
    if shapes[0] != shapes[1]:
        raise TrainingError(f"{pupil.model} returns {shapes[0]} for an image, the teacher {teacher.model} {shapes[1]}")


def _test(pupil: Trainable, network: nn.Module, rows: Rows | None) -> dict[str, float]:
    """Scores on the test part, by the first process, which alone has the rows, on all."""
    scores: dict[str, float] = {}
    if rows is not None:
        scores = score_rows(network, pupil.task, rows, pupil.inputs, pupil.decoder, pupil.labels, kind=pupil.kind)
    result: dict[str, float] = distributed.from_first(scores)
    return result
