"""One inference of a DNN: its frames, their preprocessed images, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import DnnTask, DropReason

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.backends import Tensors

#: Why a frame has no result: the reason, and a message that states the cause.
DropCause = tuple[DropReason, str]
STOPPED: DropCause = (DropReason.SHUTDOWN, "the engine stopped before the frame's next job")


@dataclass(eq=False)
class Inference:
    """One pass of a DNN over one frame, or over one frame of each of several cameras. Used by one thread at a time.

    task: with the settings at its start. started_ns: when the frames left the mailboxes. launched: on a GPU, what the
    runner keeps until the outputs have arrived. rows: the outputs on the CPU, for each frame not in `failed`.
    drop_cause: why no frame will have a result. failed: why these frames, but not the others, will have none.
    compute_ns: time in the layers.
    """

    task: DnnTask
    frames: tuple[Frame, ...]
    started_ns: int
    launched: Any = None
    rows: list[Tensors] = field(default_factory=list)
    drop_cause: DropCause | None = None
    failed: dict[Frame, DropCause] = field(default_factory=dict)
    pre_ns: int = 0
    queue_ns: int = 0
    compute_ns: int = 0

    @property
    def received_ns(self) -> int:
        """Arrival of the oldest frame, on the engine's clock."""
        return min(frame.received_ns for frame in self.frames)

    @property
    def due_ns(self) -> int | None:
        """Deadline of the first result, on the engine's clock."""
        return None if self.task.deadline_ns is None else self.received_ns + self.task.deadline_ns

    @property
    def remaining(self) -> list[Frame]:
        """The frames that can still have a result, in the order of `rows`."""
        if not self.failed:
            return list(self.frames)
        return [frame for frame in self.frames if frame not in self.failed]

    def fail(self, error: BaseException, job: int = 0) -> None:
        """Drop all frames because `error` was raised. job: index of the job that raised it."""
        if self.drop_cause is None:
            self.drop_cause = _cause(error, job)

    def images(self, device: torch.device, is_fatal: Callable[[BaseException], bool]) -> Iterator[Tensors]:
        """The inputs of the network for each frame; a frame whose image cannot be preprocessed is dropped.

        The tensors may lie in the same memory for each frame. is_fatal: whether an error concerns the device and not
        the image. Such an error is raised, and so is the one of a single image. Raises ValueError if no image is left.
        """
        task = self.task
        for frame in self.frames:
            try:
                inputs = task.from_host(frame.image) if task.from_host is not None else None
                if inputs is None:
                    image = frame.image if task.arrays else frame.tensor(device)
                    make = partial(task.preprocess, image)
                    inputs = make() if task.input_key is None else frame.inputs(task.input_key, make)
            except Exception as error:
                if is_fatal(error) or len(self.frames) == 1:
                    raise
                self.failed[frame] = _cause(error, 0)
            else:
                yield inputs
        if len(self.failed) == len(self.frames):
            raise ValueError("no image of the batch could be preprocessed")


def _cause(error: BaseException, job: int) -> DropCause:
    return DropReason.DNN_ERROR, f"job {job + 1}: {type(error).__name__}: {error}"
