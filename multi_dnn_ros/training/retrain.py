"""Retrain an existing network, usually a decomposed one, on data given by name."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.models.artifact import weights_digest
from multi_dnn_ros.training import distributed
from multi_dnn_ros.training.data import Batches, Data, Part
from multi_dnn_ros.training.loop import Schedule, TrainingError, train
from multi_dnn_ros.training.losses import distilled
from multi_dnn_ros.training.metrics import NoTruth
from multi_dnn_ros.training.scoring import MAIN, device_of, score_rows
from multi_dnn_ros.training.trainable import Trainable


def retrain(
    student: Trainable,
    sets: Sequence[Data],
    schedule: Schedule,
    *,
    batch_size: int,
    device: torch.device,
    teacher: Trainable | None = None,
    teacher_weight: float = 0.5,
    checkpoint: Path | None = None,
) -> dict[str, Any]:
    """Train `student.network` in place on all of `sets`, keep the weights that are best on their validation parts, and
    score the test part of the first set. Returns what an artifact records of it: settings, numbers of images, history
    and scores, all as JSON values.

    teacher: a network with the same task, inputs (size, framing, colours) and outputs. Its outputs count with
    `teacher_weight` (0..1), the truth with the rest; if the student has no loss of its own, only the teacher counts.
    All processes of a `distributed.process_group` must call this. Raises TrainingError if data, teacher and network do
    not match, or like `train`; also DatasetError.
    """
    for data in sets:
        check_labels(student, data)
    loss, main = student.loss, MAIN[student.task]
    if teacher is not None:
        _check_teacher(student, teacher)
        teaching = teacher.network.to(device)  # already in eval mode; exported programs do not support eval()
        loss = distilled(loss, teaching, teacher_weight, student.task == "classes", schedule.precision)
    if loss is None:
        raise TrainingError(f"the outputs of {student.model} have no loss of their own; give a teacher")
    network = student.network.to(device)
    if device.type == "cuda":
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    parts = [data.part("train") for data in sets]
    batches = Batches(parts, student.task, student.inputs, batch_size, schedule.seed, device)

    def score(scored: nn.Module) -> dict[str, float]:
        each = [_scores(student, scored, data, "choice") for data in sets]
        # Mean over the sets, so that none is sacrificed for another.
        return {**each[0], main: sum(scores[main] for scores in each) / len(each)}

    settings: dict[str, Any] = {
        "data": {data.name: {part: len(data.part(part)) for part in data.stored} for data in sets},
        "schedule": asdict(schedule),
        "batch_size": batch_size,
        "loss": {"kind": type(student.loss).__name__, "smoothing": getattr(student.loss, "smoothing", None)},
        "processes": distributed.world(),
        "teacher": {"model": teacher.model, "weight": teacher_weight} if teacher is not None else None,
    }
    identity = {**settings, "model": student.model, "size": list(student.size)}
    if teacher is not None:
        identity["teacher weights"] = weights_digest(teacher.network.state_dict())
    before = _test(student, network, sets[0], "before")
    begin = time.monotonic()
    with torch.backends.cudnn.flags(enabled=True, benchmark=device.type == "cuda"):  # all batches have one size
        outcome = train(network, batches, loss, score, schedule, main=main, checkpoint=checkpoint, identity=identity)
    seconds = time.monotonic() - begin
    after = _test(student, network, sets[0], f"after {seconds:.0f} s")
    network.cpu()
    return {
        **settings,
        "kept_epoch": outcome.epoch,
        "choice_scores": outcome.best,
        "test_scores": {"before": before, "after": after},
        "seconds": round(seconds, 1),
        "history": outcome.history,
    }


def check_labels(student: Trainable, data: Data) -> None:
    """Raise TrainingError unless a classifier has as many classes as the data."""
    if student.task != "classes":
        return
    shapes = _output_shapes(student)
    if shapes != [(len(data.labels),)]:
        raise TrainingError(
            f"{student.model} returns {shapes} for an image, data '{data.name}' has {len(data.labels)} classes; a "
            f"torchvision builder gets that many with --num-classes {len(data.labels)}"
        )


def _check_teacher(student: Trainable, teacher: Trainable) -> None:
    inputs = [(each.task, each.preprocess.key) for each in (student, teacher)]
    if inputs[0] != inputs[1]:
        raise TrainingError(
            f"the teacher {teacher.model} takes {inputs[1]}, {student.model} {inputs[0]}: both must take the same input"
        )
    own, theirs = _output_shapes(student), _output_shapes(teacher)
    if own != theirs:
        raise TrainingError(f"{student.model} returns {own} for an image, the teacher {teacher.model} {theirs}")


def _output_shapes(network: Trainable) -> list[tuple[int, ...]]:
    """Shapes of the outputs for an image. Raises TrainingError if the network cannot run on images of its size."""
    width, height = network.size
    try:
        with torch.no_grad():
            outputs = network.network(torch.zeros(2, 3, height, width, device=device_of(network.network)))
    except RuntimeError as error:
        raise TrainingError(
            f"{network.model} cannot be run on images of {width}x{height}: {summarize_error(error)}"
        ) from None
    return [tuple(leaf.shape[1:]) for leaf in pytree.tree_leaves(outputs)]


def _test(student: Trainable, network: nn.Module, data: Data, when: str) -> dict[str, float]:
    """Scores on the test part, computed and shown by rank 0; returned in all processes."""
    scores: dict[str, float] = {}
    if distributed.rank() == 0:
        scores = _scores(student, network, data, "test")
        print(f"{when}: {', '.join(f'{name} {value:.4f}' for name, value in scores.items())}", file=sys.stderr)
    return dict(distributed.from_first(scores))


def _scores(student: Trainable, network: nn.Module, data: Data, part: Part) -> dict[str, float]:
    try:
        scores = score_rows(student, data.part(part), network)
    except NoTruth as error:
        raise TrainingError(f"data '{data.name}', part {'validation' if part == 'choice' else part}: {error}") from None
    main = MAIN[student.task]
    if main not in scores:  # of a result kind of another package
        raise TrainingError(f"the scores {', '.join(scores)} lack {main}, by which the best epoch is chosen")
    return scores
