"""Times of a DNN's frames on black images: measured alone and with the others, or predicted from its layers."""

from __future__ import annotations

import copy
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
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
from multi_dnn_ros.models.onnx_network import OnnxNetwork
from multi_dnn_ros.planning.clock import median_s, synchronize, timed_ms

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.models.dnn import Dnn
    from multi_dnn_ros.planning.predictor import Predictor
    from multi_dnn_ros.planning.timing import Target

#: Size of an image in pixels, unless the DNN needs a larger one.
HEIGHT, WIDTH = 480, 640
_ROUNDS = 5
#: Time for which the DNNs run together.
_TOGETHER_S = 0.5
_TIMEOUT_S = 120.0


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


def _black(task: DnnTask, device: torch.device, size: tuple[int, int]) -> Any:
    """A black image in the form that the task takes."""
    if task.arrays:
        return np.zeros((*size, 3), np.uint8)
    import torch

    return torch.zeros((*size, 3), dtype=torch.uint8, device=str(device))


def _computing_on(device: torch.device, sms: int) -> AbstractContextManager[Any]:
    if device.type == "cpu":
        return nullcontext()
    from multi_dnn_ros.backends.green_contexts import computing_on

    return computing_on(device, sms)


def _stream(device: torch.device, sms: int) -> AbstractContextManager[Any]:
    if device.type == "cpu":
        return nullcontext()
    import torch

    from multi_dnn_ros.backends.green_contexts import make_stream

    return torch.cuda.stream(make_stream(device, sms))


def time_on_black_ms(task: DnnTask, device: torch.device) -> float:
    """Median wall time of a single image, from preprocessing to decoding, while nothing else runs."""
    size = task.enlarge_to_min((HEIGHT, WIDTH))
    return 1e3 * median_s(lambda: run_on_black(task, device, *size), _ROUNDS)


def measure_alone(task: DnnTask, device: torch.device) -> FrameTimes:
    """Medians of an inference of as many images as the DNN takes, while nothing else runs.

    On a GPU the network is one launch, and its time is divided equally among the segments.
    """
    size = task.enlarge_to_min((HEIGHT, WIDTH))
    batch = task.max_batch
    rounds: list[tuple[float, list[float], float]] = []
    with inference(), _computing_on(device, task.sms):
        image = _black(task, device, size)
        for _ in range(1 + _ROUNDS):
            begin = time.perf_counter()
            inputs = _inputs(task, image, batch)
            synchronize(device)
            preprocess_ms = (time.perf_counter() - begin) * 1e3
            rows, jobs_ms = _timed_rows(task, inputs, batch, device)
            begin = time.perf_counter()
            for row in rows:
                task.decode(row, size)
            rounds.append((preprocess_ms, jobs_ms, (time.perf_counter() - begin) * 1e3))
    preprocess, jobs, decode = zip(*rounds[1:], strict=True)
    return FrameTimes(
        statistics.median(preprocess), tuple(map(statistics.median, zip(*jobs, strict=True))),
        statistics.median(decode), batch,
    )  # fmt: skip


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
    packed: list[torch.Tensor] = []
    (ms,) = timed_ms([lambda: packed.append(network.launch(inputs))], device)
    return network.unpack(packed[0].cpu())[:batch], [ms / network.segments] * network.segments


def measure_speedup(tasks: Sequence[DnnTask], device: torch.device, servers: int) -> float:
    """Milliseconds of work, as measured alone, that the device completes in a millisecond while `servers` of the DNNs
    run at the same time.
    """
    threads = min(servers, len(tasks))
    if threads < 2:
        return 1.0
    alone_ms = {task.name: time_on_black_ms(task, device) for task in tasks}
    barrier = threading.Barrier(threads, timeout=_TIMEOUT_S)

    def serve(own: Sequence[DnnTask]) -> float:
        with _stream(device, own[0].sms):
            barrier.wait()
            begin = now = time.perf_counter()
            work_ms = 0.0
            while now < begin + _TOGETHER_S:
                for task in own:
                    run_on_black(task, device, *task.enlarge_to_min((HEIGHT, WIDTH)))
                    work_ms += alone_ms[task.name]
                now = time.perf_counter()
            return work_ms / ((now - begin) * 1e3)

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(serve, [tasks[number::threads] for number in range(threads)]))


def predict_times(
    dnns: Mapping[str, Dnn],
    tasks: Sequence[DnnTask],
    predictor: Predictor,
    targets: Mapping[str, Target],
    servers: int,
) -> tuple[dict[str, FrameTimes], float, tuple[str, ...]]:
    """Times of single images, the speed-up, and the reasons why times could not be predicted.

    targets: device, backend and precision, by DNN. The time of the layers is predicted and divided equally among the
    jobs; preprocessing and decoding are measured. The speed-up is that with a DNN on each of the `servers`.
    """
    from multi_dnn_ros.planning.measure import trace_for
    from multi_dnn_ros.planning.predictor import Load

    times: dict[str, FrameTimes] = {}
    unpredicted: list[str] = []
    running = min(servers, len(tasks))
    alone_ms = crowded_ms = 0.0
    for task in tasks:
        target, dnn = targets[task.name], dnns[task.name]
        module = dnn.module.to_torch() if isinstance(dnn.module, OnnxNetwork) else dnn.module
        module = copy.deepcopy(module).cpu()  # its jobs may have moved parts of it to another device
        layers = trace_for(module, dnn.example_inputs(), target).layers(target.dtype)
        alone = predictor.predict(layers, Load(), target)
        crowded = predictor.predict(layers, Load("dnn", running - 1) if running > 1 else Load(), target)
        unpredicted += [f"{task.name}: {reason}" for reason in crowded.unpredicted]
        ms, jobs = sum(alone.ms), task.jobs
        networks = {1: task.networks[1]} if task.networks else {}
        single = replace(task, batches={}, networks=networks)
        times[task.name] = replace(measure_alone(single, target.device), jobs_ms=(ms / jobs,) * jobs)
        alone_ms += ms
        crowded_ms += max(ms, sum(crowded.ms))
    return times, running * alone_ms / crowded_ms if crowded_ms else 1.0, tuple(dict.fromkeys(unpredicted))
