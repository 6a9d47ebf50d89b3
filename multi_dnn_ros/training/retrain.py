"""Retrain an existing network, usually a decomposed one, on data given by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.models.artifact import weights_digest
from multi_dnn_ros.training import distributed
from multi_dnn_ros.training.batches import Batches
from multi_dnn_ros.training.checkpoint import TrainingError
from multi_dnn_ros.training.checks import MAX_FAULTY, CheckedData, check_sets
from multi_dnn_ros.training.data import PARTS, Data
from multi_dnn_ros.training.distillation import Distilled, SoftTargets, raw_outputs
from multi_dnn_ros.training.loop import Loss, Outcome, Schedule, train
from multi_dnn_ros.training.metrics import NoTruth
from multi_dnn_ros.training.samples import Rows
from multi_dnn_ros.training.scoring import MAIN, device_of, score_rows
from multi_dnn_ros.training.trainable import Trainable


@dataclass(frozen=True)
class Result:
    """outcome: outcome of the loop. rows: number of images by data set and part. before, after: scores on the test part
    of the first data set. seconds: duration of training, including scoring.
    """

    outcome: Outcome
    rows: dict[str, dict[str, int]]
    before: dict[str, float]
    after: dict[str, float]
    seconds: float

    def provenance(self) -> dict[str, Any]:
        return {
            "images": self.rows,
            "kept_epoch": self.outcome.epoch,
            "choice_scores": self.outcome.best,
            "test_scores": {"before": self.before, "after": self.after},
            "seconds": round(self.seconds, 1),
            "images_per_s": [round(speed, 1) for speed in self.outcome.images_per_s],
            "history": self.outcome.history,
        }


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
    checkpoint_every: int = 1,
    max_faulty: float = MAX_FAULTY,
    progress: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Train `student.network` in place on all of `sets`, keep the weights that are best on their validation parts, and
    score the test part.

    teacher: a network with the same task, inputs (size, framing, colours) and outputs. Its outputs count with
    `teacher_weight` (0..1), the truth with the rest; if the student has no loss of its own, only the teacher counts.
    max_faulty: see check_sets. All processes of a `distributed.process_group` must call this. Raises TrainingError if
    data, teacher and network do not match, or like `train`; also DatasetError.
    """
    for data in sets:
        check_labels(student, data)
    loss = _loss(student, teacher, teacher_weight, device, schedule.precision)
    network = student.network.to(device)
    if device.type == "cuda":
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    checked = check_sets(sets, max_faulty=max_faulty, progress=progress)
    train_rows, choice_rows = ([data.part(part) for data in checked] for part in PARTS[:2])
    batches = Batches(
        train_rows,
        student.task,
        student.inputs,
        batch_size,
        schedule.seed,
        device,
        schedule.mix,
        len(checked[0].labels),
    )
    main = MAIN[student.task]

    def score(scored: nn.Module) -> dict[str, float]:
        each = [
            _scores(student, scored, rows, f"data '{data.name}', part validation")
            for data, rows in zip(checked, choice_rows, strict=True)
        ]
        # Mean over the sets, so that none is sacrificed for another.
        return {**each[0], main: sum(scores[main] for scores in each) / len(each)}

    before = _test(student, network, checked[0])
    say(f"before: {describe(before)}")
    begin = time.monotonic()
    identity = {
        "model": student.model,
        "size": list(student.size),
        "batch_size": batch_size,
        "loss": loss_settings(student.loss),
        "teacher": {"model": teacher.model, "weight": teacher_weight,
                    "weights": weights_digest(teacher.network.state_dict())} if teacher is not None else None,
        "data": {data.name: {"images": data.counts, "digest": data.digest} for data in checked},
    }  # fmt: skip
    with torch.backends.cudnn.flags(enabled=True, benchmark=device.type == "cuda"):  # all batches have one size
        outcome = train(
            network, batches, loss, score, schedule, main=main, checkpoint=checkpoint,
            checkpoint_every=checkpoint_every, identity=identity, progress=progress,
        )  # fmt: skip
    seconds = time.monotonic() - begin
    after = _test(student, network, checked[0])
    say(f"after {seconds:.0f} s: {describe(after)}")
    network.cpu()
    rows = {data.name: data.counts for data in checked}
    return Result(outcome, rows, before, after, seconds)


def check_labels(student: Trainable, data: Data) -> None:
    """Raise TrainingError unless the network's classes are those of the data (for boxes: a subset)."""
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


def loss_settings(loss: Loss | None) -> dict[str, Any] | None:
    """The class of a loss and its options that are numbers or tuples of them, such as label smoothing."""
    if loss is None:
        return None
    options = {
        name: value
        for name, value in getattr(loss, "__dict__", {}).items()
        if all(isinstance(each, (int, float)) for each in (value if isinstance(value, tuple) else (value,)))
    }
    return {"kind": type(loss).__name__, **options}


def settings(
    schedule: Schedule, batch_size: int, sets: Sequence[Data], teacher: Trainable | None, weight: float,
    loss: Loss | None = None,
) -> Any:  # fmt: skip
    """Training settings recorded in a retrained artifact. loss: loss on the truth; None: the teacher alone counts."""
    return {
        "data": [data.name for data in sets],
        "schedule": asdict(schedule),
        "batch_size": batch_size,
        "loss": loss_settings(loss),
        "processes": distributed.world(),
        "teacher": {"model": teacher.model, "weight": weight} if teacher is not None else None,
    }


def describe(scores: dict[str, float]) -> str:
    """Scores as text."""
    return ", ".join(f"{name} {value:.4f}" for name, value in scores.items())


def _loss(student: Trainable, teacher: Trainable | None, weight: float, device: torch.device, precision: str) -> Loss:
    if teacher is None:
        if student.loss is None:
            raise TrainingError(f"the outputs of {student.model} have no loss of their own; give a teacher")
        return student.loss
    _check_same_inputs(student, teacher)
    _check_same_outputs(student, teacher)
    teaching = teacher.network.to(device)  # already in eval mode; exported programs do not support eval()
    difference = SoftTargets() if student.task == "classes" else raw_outputs
    return Distilled(student.loss, teaching, difference, weight=weight, precision=precision)


def _check_same_inputs(student: Trainable, teacher: Trainable) -> None:
    """Raise TrainingError, which names what differs, unless both are for the same task and the same images."""
    described = [_input_description(network) for network in (teacher, student)]
    of_teacher, of_student = described
    common = [name for name in of_teacher if name in of_student]
    different = [name for name in common if of_teacher[name] != of_student[name]]
    if different:
        texts = [", ".join(f"{name} {each[name]}" for name in different) for each in described]
        raise TrainingError(
            f"the teacher {teacher.model} is for {texts[0]}, {student.model} for {texts[1]}: both must take the "
            "same input"
        )


def _input_description(network: Trainable) -> dict[str, Any]:
    """What the network's images are, by the names of the options."""
    width, height = network.size
    framing = network.framing
    padding = {"centered": framing.centered, "pad": framing.pad} if framing.fit == "letterbox" else {}
    return {
        "task": network.task,
        "size": f"{width}x{height}",
        "color": "bgr" if network.inputs.bgr else "rgb",
        "mean": list(network.inputs.mean),
        "std": list(network.inputs.std),
        "resize": framing.fit,
        "antialias": framing.antialias,
        **padding,
    }


def _check_same_outputs(student: Trainable, teacher: Trainable) -> None:
    # Each on its own device: a teacher that was used in an earlier run is still on the device of that run.
    outputs = [pytree.tree_leaves(_run(network, student.size)) for network in (student, teacher)]
    shapes = [[tuple(leaf.shape[1:]) for leaf in leaves] for leaves in outputs]
    if shapes[0] != shapes[1]:
        raise TrainingError(
            f"{student.model} returns {shapes[0]} for an image, the teacher {teacher.model} {shapes[1]}"
        )


def _test(student: Trainable, network: nn.Module, data: CheckedData) -> dict[str, float]:
    """Scores on the test part, computed by rank 0, which alone has it; returned in all processes."""
    scores: dict[str, float] = {}
    if distributed.rank() == 0:
        scores = _scores(student, network, data.part("test"), f"data '{data.name}', part test")
    result: dict[str, float] = distributed.from_first(scores)
    return result


def _scores(student: Trainable, network: nn.Module, rows: Rows, where: str) -> dict[str, float]:
    try:
        scores = score_rows(
            network, student.task, rows, student.inputs, student.decoder, student.labels, kind=student.kind
        )
    except NoTruth as error:
        raise TrainingError(f"{where}: {error}") from None
    main = MAIN[student.task]
    if main not in scores and student.kind is not None:
        raise TrainingError(
            f"result kind '{student.kind.name}' returns the scores {', '.join(scores)}; training on {student.task} "
            f"needs {main}, by which the best epoch is chosen"
        )
    return scores
