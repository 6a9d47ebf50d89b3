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
from multi_dnn_ros.training.batches import Batches
from multi_dnn_ros.training.checkpoint import TrainingError
from multi_dnn_ros.training.data import Data, Part
from multi_dnn_ros.training.loop import Schedule, train
from multi_dnn_ros.training.losses import Distilled, Loss
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
    loss = _loss(student, teacher, teacher_weight, device, schedule.precision)
    network = student.network.to(device)
    if device.type == "cuda":
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batches = Batches(
        [data.part("train") for data in sets], student.task, student.inputs, batch_size, schedule.seed, device,
        schedule.mix, len(sets[0].labels),
    )  # fmt: skip
    main = MAIN[student.task]

    def score(scored: nn.Module) -> dict[str, float]:
        each = [_scores(student, scored, data, "choice") for data in sets]
        # Mean over the sets, so that none is sacrificed for another.
        return {**each[0], main: sum(scores[main] for scores in each) / len(each)}

    settings: dict[str, Any] = {
        "data": {data.name: {part: len(data.part(part)) for part in data.stored} for data in sets},
        "schedule": asdict(schedule),
        "batch_size": batch_size,
        "loss": _loss_settings(student.loss),
        "processes": distributed.world(),
        "teacher": {"model": teacher.model, "weight": teacher_weight} if teacher is not None else None,
    }
    identity = {**settings, "model": student.model, "size": list(student.size)}
    if teacher is not None:
        identity["teacher weights"] = weights_digest(teacher.network.state_dict())
    before = _test(student, network, sets[0], "before")
    begin = time.monotonic()
    with torch.backends.cudnn.flags(enabled=True, benchmark=device.type == "cuda"):  # all batches have one size
        outcome = train(
            network, batches, loss, score, schedule, main=main, checkpoint=checkpoint, identity=identity
        )  # fmt: skip
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
    outputs = _run(student, student.size)
    count = outputs.shape[1] if isinstance(outputs, torch.Tensor) and outputs.ndim == 2 else 0
    if count != len(data.labels):
        raise TrainingError(
            f"{student.model} has {count} classes, data '{data.name}' has {len(data.labels)}; a torchvision builder "
            f"gets that many with --num-classes {len(data.labels)}"
        )


def _run(student: Trainable, size: tuple[int, int]) -> Any:
    """Outputs for black images. Raises TrainingError if the network cannot run on images of this size."""
    width, height = size
    try:
        with torch.no_grad():
            return student.network(torch.zeros(2, 3, height, width, device=device_of(student.network)))
    except RuntimeError as error:
        raise TrainingError(
            f"{student.model} cannot be run on images of {width}x{height}: {summarize_error(error)}"
        ) from None


def _loss_settings(loss: Loss | None) -> dict[str, Any] | None:
    """The class of a loss and its options that are numbers, such as label smoothing."""
    if loss is None:
        return None
    options = {name: value for name, value in vars(loss).items() if isinstance(value, (int, float))}
    return {"kind": type(loss).__name__, **options}


def _loss(student: Trainable, teacher: Trainable | None, weight: float, device: torch.device, precision: str) -> Loss:
    if teacher is None:
        if student.loss is None:
            raise TrainingError(f"the outputs of {student.model} have no loss of their own; give a teacher")
        return student.loss
    theirs, own = _input_of(teacher), _input_of(student)
    for name, value in own.items():
        if theirs[name] != value:
            raise TrainingError(
                f"the teacher {teacher.model} is for {name} {theirs[name]}, {student.model} for {value}: both must "
                "take the same input"
            )
    # Each on its own device: a teacher that was used in an earlier run is still on the device of that run.
    outputs = [pytree.tree_leaves(_run(network, student.size)) for network in (student, teacher)]
    shapes = [[tuple(leaf.shape[1:]) for leaf in leaves] for leaves in outputs]
    if shapes[0] != shapes[1]:
        raise TrainingError(
            f"{student.model} returns {shapes[0]} for an image, the teacher {teacher.model} {shapes[1]}"
        )
    teaching = teacher.network.to(device)  # already in eval mode; exported programs do not support eval()
    return Distilled(student.loss, teaching, weight, student.task == "classes", precision)


def _input_of(network: Trainable) -> dict[str, Any]:
    """What the network's images are. Padding has no effect on stretched ones."""
    framing = network.framing
    padding = {"centered": framing.centered, "pad": framing.pad} if framing.fit == "letterbox" else {}
    return {
        "task": network.task,
        "size": network.size,
        "resize": {"fit": framing.fit, "antialias": framing.antialias, **padding},
        "colours": network.inputs,
    }


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
    if main not in scores and student.kind is not None:
        raise TrainingError(
            f"result kind '{student.kind.name}' returns the scores {', '.join(scores)}; training on {student.task} "
            f"needs {main}, by which the best epoch is chosen"
        )
    return scores
