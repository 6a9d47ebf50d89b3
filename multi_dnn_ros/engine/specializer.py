"""Preprocessing made faster for the sizes of images that a DNN's cameras send."""

from __future__ import annotations

import logging

from multi_dnn_ros.engine.job import Inference
from multi_dnn_ros.engine.queue import JobQueue
from multi_dnn_ros.engine.task import DnnTask

log = logging.getLogger(__name__)

#: Sizes that one DNN's preprocessing is specialized for, at most; a camera has one, or few.
_MOST_SIZES = 16


class Specializer:
    """Used by one DNN's thread only. queue: no job of it runs meanwhile."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._sizes: set[tuple[int, int]] = set()

    def reset(self) -> None:
        """The preprocessing is another one from now on."""
        self._sizes.clear()

    def specialize(self, task: DnnTask, inference: Inference) -> None:
        """Once for each size, after a frame of it came through; what fails then is only told."""
        if task.specialize is None or inference.lost is not None:
            return
        for item in inference.items:
            if item.lost is not None or len(self._sizes) == _MOST_SIZES:
                continue
            height, width = item.frame.image().shape[:2]
            if (height, width) in self._sizes:
                continue
            self._sizes.add((height, width))
            try:
                with self._queue.held():
                    task.specialize((height, width))
            except Exception as error:
                log.warning("DNN %s: images of %d x %d are not specialized for: %s", task.name, width, height, error)
