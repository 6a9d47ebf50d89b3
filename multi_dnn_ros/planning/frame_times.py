"""Times of DNNs' inferences on black images, measured while as many DNNs run as the device serves at the same time."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.backends.host import inference
from multi_dnn_ros.backends.static_stages import split_rows, stack_inputs
from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.planning.clock import synchronize, timed_ms

if TYPE_CHECKING:
    import torch

#: Size of an image in pixels, unless the DNN needs a larger one.
HEIGHT, WIDTH = 480, 640
#: Inferences of each DNN and time for which the DNNs run together, at least.
_ROUNDS = 5
_TOGETHER_S = 0.5


@dataclass(frozen=True)
class FrameTimes:
    """Milliseconds of one inference with `batch` images: preprocessing, each job without it, copying and decoding."""

    preprocess_ms: float
    jobs_ms: tuple[float, ...]
    decode_ms: float
    batch: int = 1

    @property
    def inference_ms(self) -> float:
        """From images to results."""
        return self.preprocess_ms + sum(self.jobs_ms) + self.decode_ms


def run_on_black(task: DnnTask, device: torch.device, height: int, width: int) -> Any:
    """The result of a task for a black image of this size, from preprocessing to decoding."""
    return task.result(_black(task, device, (height, width)))


def measure_times(tasks: Sequence[DnnTask], device: torch.device, servers: int) -> dict[str, FrameTimes]:
    """By DNN, medians over inferences of as many images as it takes, while `servers` of the DNNs run.

    Each server is a thread, which runs its DNNs in turns; on a GPU in a stream of its own. There the network is one
    launch, and its time is divided equally among the segments.
    """
    count = min(servers, len(tasks))
    end, stop = time.perf_counter() + _TOGETHER_S, threading.Event()
    rounds: dict[str, list[FrameTimes]] = {task.name: [] for task in tasks}

    def serve(own: Sequence[DnnTask]) -> None:
        try:
            with inference(), _stream(device, own[0].sms):
                while not stop.is_set():
                    for task in own:
                        rounds[task.name].append(_time_inference(task, device))
                    if time.perf_counter() >= end and all(len(times) > _ROUNDS for times in rounds.values()):
                        break
        finally:
            stop.set()  # also if this thread fails: the others would wait for its rounds

    with ThreadPoolExecutor(count, thread_name_prefix="fit") as pool:
        list(pool.map(serve, [tasks[number::count] for number in range(count)]))
    return {dnn: _median(times[1:]) for dnn, times in rounds.items()}  # the first call may allocate memory


def single_image(task: DnnTask) -> DnnTask:
    """The task for one image per inference."""
    return replace(task, batches={}, networks={1: task.networks[1]} if task.networks else {})


def _time_inference(task: DnnTask, device: torch.device) -> FrameTimes:
    size = task.enlarge_to_min((HEIGHT, WIDTH))
    batch = task.max_batch
    image = _black(task, device, size)
    begin = time.perf_counter()
    inputs = _inputs(task, image, batch)
    synchronize(device)
    preprocess_ms = (time.perf_counter() - begin) * 1e3
    rows, jobs_ms = _timed_rows(task, inputs, batch, device)
    begin = time.perf_counter()
    for row in rows:
        task.decode(row, size)
    return FrameTimes(preprocess_ms, tuple(jobs_ms), (time.perf_counter() - begin) * 1e3, batch)


def _median(times: Sequence[FrameTimes]) -> FrameTimes:
    return FrameTimes(
        statistics.median(each.preprocess_ms for each in times),
        tuple(map(statistics.median, zip(*(each.jobs_ms for each in times), strict=True))),
        statistics.median(each.decode_ms for each in times),
        times[0].batch,
    )


def _black(task: DnnTask, device: torch.device, size: tuple[int, int]) -> Any:
    """A black image in the form that the task takes."""
    if task.arrays:
        return np.zeros((*size, 3), np.uint8)
    import torch

    return torch.zeros((*size, 3), dtype=torch.uint8, device=str(device))


def _stream(device: torch.device, sms: int) -> AbstractContextManager[Any]:
    if device.type == "cpu":
        return nullcontext()
    import torch

    from multi_dnn_ros.backends.green_contexts import make_stream

    return torch.cuda.stream(make_stream(device, sms))


def _inputs(task: DnnTask, image: Any, batch: int) -> Tensors:
    images = (task.preprocess(image) for _ in range(batch))
    if batch == 1:
        return next(images)
    if task.networks:
        return task.network_for(batch).load(images)
    return stack_inputs(list(images), task.stages_for(batch)[1][0])


def _timed_rows(task: DnnTask, inputs: Tensors, batch: int, device: torch.device) -> tuple[list[Tensors], list[float]]:
    """The outputs of each image on the CPU, and the milliseconds of each job."""
    carried = inputs

    def call(stage: Stage) -> None:
        nonlocal carried
        carried = stage(carried)

    if not task.networks:
        jobs_ms = timed_ms([partial(call, stage) for stage in task.stages_for(batch)[1]], device)
        return split_rows(carried, batch), jobs_ms
    network = task.network_for(batch)
    begin = time.perf_counter()
    packed = network.launch(inputs)
    synchronize(device)
    ms = (time.perf_counter() - begin) * 1e3
    return network.unpack(packed.cpu())[:batch], [ms / network.segments] * network.segments
