"""Optimizes preprocessing for the image sizes that a DNN's cameras deliver."""

from __future__ import annotations

import logging

from multi_dnn_ros.engine.job import Inference
from multi_dnn_ros.engine.queue import JobQueue
from multi_dnn_ros.engine.task import DnnTask

log = logging.getLogger(__name__)

#: Maximum number of sizes per DNN; a camera has one or a few.
_MAX_SIZES = 16
#: A busy device may succeed later, but every attempt delays all DNNs.
_MAX_ATTEMPTS = 3


class Specializer:
    """Used by one DNN's thread only. queue: paused while specializing."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._attempts_left: dict[tuple[int, int], int] = {}  # by size; 0: done or given up

    def specialize(self, task: DnnTask, inference: Inference) -> None:
        """Specialize once per image size, after a frame of that size was processed; a failure is logged and retried
        twice.
        """
        if task.specialize is None or inference.drop_cause is not None:
            return
        for item in inference.items:
            if item.drop_cause is not None:
                continue
            height, width = size = item.frame.size
            attempts_left = self._attempts_left.get(size, _MAX_ATTEMPTS if len(self._attempts_left) < _MAX_SIZES else 0)
            if not attempts_left:
                continue
            self._attempts_left[size] = 0
            try:
                with self._queue.paused():
                    task.specialize(size)
            except Exception as error:
                self._attempts_left[size] = attempts_left - 1
                log.warning(
                    "DNN %s: preprocessing is not captured (capture_preprocess) and runs eagerly for images of %d x %d "
                    "(attempts left: %d): %s",
                    task.name,
                    width,
                    height,
                    attempts_left - 1,
                    error,
                )
