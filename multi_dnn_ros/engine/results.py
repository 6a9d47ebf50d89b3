"""From the raw outputs of an inference to the result, or the drop reason, of each of its frames."""

from __future__ import annotations

from collections.abc import Callable

from multi_dnn_ros.backends.device_errors import is_device_failure
from multi_dnn_ros.engine.job import Inference, Item
from multi_dnn_ros.engine.observer import Observer
from multi_dnn_ros.engine.task import DropReason, Result, Timing


def await_outputs(inference: Inference, observer: Observer) -> None:
    """Wait until the outputs are on the CPU; an inference whose kernels failed is dropped."""
    if inference.drop_cause is None:
        try:
            inference.to_host()
        except BaseException as error:  # kernel failures surface here
            if is_device_failure(error):
                observer.device_failed(inference.task.name, error)
            inference.drop_cause = (DropReason.DNN_ERROR, f"{type(error).__name__}: {error}")
    if inference.observed:
        inference.observed = False
        observer.ended(inference.task.name)


def make_result(inference: Inference, item: Item, row: int, begin_ns: int, clock: Callable[[], int]) -> Result | None:
    """Decode the outputs of one item. None if decoding fails: the item is then dropped.

    row: row of the item in the batch's outputs. begin_ns: when the thread started on the item.
    """
    frame, task = item.frame, inference.task
    try:
        output = task.decode(inference.outputs(row), frame.size)
    except BaseException as error:  # whatever a decoder raises, sys.exit() included, the DNN's thread must continue
        item.drop_cause = (DropReason.BAD_OUTPUT, f"{type(error).__name__}: {error}")
        return None
    end = clock()
    # Positional: keywords take twice as long, and the next inference may be waiting for these results.
    timing = Timing(
        frame.received_ns,
        inference.started_ns,
        end,
        inference.pre_ns,
        inference.queue_ns,
        inference.compute_ns,
        end - begin_ns,
        len(inference.items),
        frame.decode_ns,
    )
    return Result(task.name, frame, output, timing)
