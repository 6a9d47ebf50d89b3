"""The part of every batch that a rank computes, by step; the batch of the next step can be prepared in advance."""

from __future__ import annotations

from collections.abc import Iterator

from multi_dnn_ros.training.batches import ArrayBatches, Batch, FileBatches


class StepBatches:
    """Tenths `first` up to but not including `last` of each batch. Steps are counted from 0, over all epochs."""

    def __init__(self, batches: ArrayBatches | FileBatches) -> None:
        self._batches = batches
        self._tenths = (0, 10)
        self._stream: Iterator[Batch] | None = None
        self._following = 0  # the step whose batch the stream yields next
        self._prepared: tuple[int, Batch] | None = None

    def take(self, first: int, last: int) -> None:
        """Use these tenths from now on. A batch of other tenths that was prepared is discarded, and read again."""
        if self._tenths != (first, last):
            self._tenths = (first, last)
            self._stream = self._prepared = None

    def prepare(self, step: int) -> None:
        """Read and augment the batch of a step; on a GPU, launch this without waiting for it. Raises DatasetError."""
        epoch, position = divmod(step, len(self._batches))
        if self._stream is None or step != self._following or position == 0:
            self._stream = self._batches.tenths(epoch, position, *self._tenths)
        self._prepared = (step, next(self._stream))
        self._following = step + 1

    def get(self, step: int) -> Batch:
        """The batch of a step, which is prepared now if it was not before."""
        if self._prepared is None or self._prepared[0] != step:
            self.prepare(step)
        assert self._prepared is not None
        (_, batch), self._prepared = self._prepared, None
        return batch
