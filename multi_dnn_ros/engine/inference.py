"""One inference of a DNN: its frames, their preprocessed images, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.common.errors import FrameError
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import DnnTask, DropReason, Result, Timing
from multi_dnn_ros.vision.jpeg_file import JpegFile

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.backends import Tensors

#: Why a frame has no result: the reason, and a message that states the cause.
DropCause = tuple[DropReason, str]
STOPPED: DropCause = (DropReason.SHUTDOWN, "the engine stopped before the frame's next job")


@dataclass(eq=False)
class Item:
    """One frame of an inference. drop_cause: why this frame, but not the rest of the batch, will have no result."""

    frame: Frame
    drop_cause: DropCause | None = None


@dataclass(eq=False)
class Inference:
    """One pass of a DNN over one frame, or over one frame of each of several cameras. Used by the DNN's thread only.

    priority, deadline_ns: those of the DNN when the inference started. started_ns: when the frames left the mailboxes.
    launched: on a GPU, what the runner keeps until the outputs have arrived. rows: the outputs on the CPU, for each
    item that was not dropped. drop_cause: why no item will have a result. compute_ns: time in the layers.
    """

    task: DnnTask
    items: tuple[Item, ...]
    priority: int
    deadline_ns: int | None
    started_ns: int
    launched: Any = None
    rows: list[Tensors] = field(default_factory=list)
    drop_cause: DropCause | None = None
    pre_ns: int = 0
    queue_ns: int = 0
    compute_ns: int = 0

    @property
    def received_ns(self) -> int:
        """Arrival of the oldest frame, on the engine's clock."""
        return min(item.frame.received_ns for item in self.items)

    @property
    def due_ns(self) -> int | None:
        """Deadline of the first result, on the engine's clock."""
        return None if self.deadline_ns is None else self.received_ns + self.deadline_ns

    def fail(self, error: BaseException, job: int = 0) -> None:
        """Drop all items because `error` was raised. job: index of the job that raised it."""
        if self.drop_cause is None:
            self.drop_cause = _cause(error, job)

    def images(self, device: torch.device, is_fatal: Callable[[BaseException], bool]) -> Iterator[Tensors]:
        """The inputs of the network for each item; an item whose image cannot be decoded or preprocessed is dropped.

        The tensors may lie in the same memory for each item. is_fatal: whether an error concerns the device and not the
        image. Such an error is raised, and so is the one of a single image. Raises ValueError if no image is left.
        """
        found = False
        for item in self.items:
            try:
                image = self._image(item.frame, device)
            except Exception as error:
                if is_fatal(error) or len(self.items) == 1:
                    raise
                item.drop_cause = _cause(error, 0)
            else:
                found = True
                yield image
        if not found:
            raise ValueError("no image of the batch could be preprocessed")

    def _image(self, frame: Frame, device: torch.device) -> Tensors:
        task = self.task
        source = frame.source
        if task.from_host is not None and not isinstance(source, JpegFile):
            inputs = task.from_host(source)
            if inputs is not None:
                return inputs
        if task.input_key is None or device.type != "cpu":
            return task.preprocess(self._pixels(frame, device))
        return frame.inputs(task.input_key, lambda: task.preprocess(self._pixels(frame, device)))

    def _pixels(self, frame: Frame, device: torch.device) -> Any:
        """The image in the form that the task takes."""
        if not self.task.arrays:
            return frame.tensor(device)
        frame.decode_for(device)
        return frame.image()

    def decode(self, item: Item, row: int, begin_ns: int, clock: Callable[[], int]) -> Result | None:
        """The result of one item. None if its outputs cannot be decoded: the item is then dropped.

        row: index in `rows`. begin_ns: when the thread started on the item.
        """
        frame, task = item.frame, self.task
        try:
            output = task.decode(self.rows[row], frame.size)
        except BaseException as error:  # whatever a decoder raises, sys.exit() included, the DNN's thread must continue
            item.drop_cause = (DropReason.BAD_OUTPUT, f"{type(error).__name__}: {error}")
            return None
        end = clock()
        # Positional: keywords take twice as long, and the next inference may be waiting for these results.
        timing = Timing(
            frame.received_ns,
            self.started_ns,
            end,
            self.pre_ns,
            self.queue_ns,
            self.compute_ns,
            end - begin_ns,
            len(self.items),
            frame.decode_ns,
        )
        return Result(task.name, frame, output, timing)


def _cause(error: BaseException, job: int) -> DropCause:
    if isinstance(error, FrameError):
        return DropReason.BAD_IMAGE, str(error)
    return DropReason.DNN_ERROR, f"job {job + 1}: {type(error).__name__}: {error}"
