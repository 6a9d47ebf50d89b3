"""The engine compared with two simple alternatives: all DNNs in sequence, and one process per DNN.

Every condition does the complete work per frame (preprocessing, layers, decoding) on the same images, in one run, in
random order, repeated.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.reporting import cpu_count, distribution
from multi_dnn_ros.engine import Engine, Frame
from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.pipeline.build import build
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.training.scenes import SceneGenerator

Images = list[npt.NDArray[np.uint8]]

ENGINE = "engine"
SEQUENTIAL = "one thread, one after another"
PROCESSES = "one process each"


def measure_concurrency(config: NodeConfig, frames: int, repeats: int, seed: int) -> dict[str, Any]:
    """Wall time in milliseconds per frame (all its DNNs) on the CPU, by condition.

    The sequential condition uses all cores within each operation. Processes and the engine's workers share the cores:
    each uses its equal share of threads per operation, at least one.
    """
    config = config.model_copy(update={"device": "cpu"})
    if len(config.cameras) != 1:
        raise ValueError(f"parameter cameras has {len(config.cameras)} names; this benchmark takes one")
    images = _images(frames, seed)
    conditions: dict[str, Callable[[], float]] = {}
    pipeline = build(config)
    workers = pipeline.workers
    conditions[ENGINE] = lambda: _engine(pipeline.tasks, workers, config, images)
    # cpu_threads is set when building, because ONNX Runtime sessions keep their number of threads.
    in_turn = build(config.model_copy(update={"workers": 1, "cpu_threads": cpu_count()}))
    conditions[SEQUENTIAL] = lambda: _sequential(in_turn.tasks, images)
    processes = _Processes(config, frames, seed)
    conditions[PROCESSES] = processes.run
    times: dict[str, list[float]] = {name: [] for name in conditions}
    order = [name for name in conditions for _ in range(repeats)]
    random.Random(seed).shuffle(order)
    try:
        for run in conditions.values():  # warm up
            run()
        for name in tqdm(order, desc="benchmark", unit="run"):
            times[name].append(conditions[name]() / frames * 1e3)
    finally:
        processes.close()
    best = min(float(np.median(times[name])) for name in (SEQUENTIAL, PROCESSES))
    return {
        "frames": frames,
        "repeats": repeats,
        "seed": seed,
        "dnns": {name: dnn.model for name, dnn in config.dnns.items()},
        "workers": workers,
        "ms_per_frame": {name: distribution(values) for name, values in times.items()},
        "engine_over_best_other": float(np.median(times[ENGINE])) / best,
    }


def _images(count: int, seed: int) -> Images:
    generator = SceneGenerator(640, 480, seed)
    return [generator.scene(index).image for index in range(count)]


def _engine(tasks: tuple[DnnTask, ...], workers: int, config: NodeConfig, images: Images) -> float:
    torch.set_num_threads(config.cpu_threads or max(1, cpu_count() // workers))
    engine = Engine(tasks, workers=workers, policy=config.policy, on_result=lambda result: None)
    engine.start()
    camera = next(iter(config.cameras))
    try:
        begin = time.perf_counter()
        for number, image in enumerate(images):
            engine.submit(Frame(camera, number, image))
        if not engine.wait_idle(600.0):
            raise RuntimeError("the engine did not finish its frames within 600 s")
        elapsed = time.perf_counter() - begin
        dropped = {key: stream.dropped for key, stream in engine.statistics().streams.items() if stream.dropped}
        if dropped:
            raise RuntimeError(f"the engine dropped frames, so its time is not comparable: {dropped}")
        return elapsed
    finally:
        engine.stop(2.0)


def _sequential(tasks: tuple[DnnTask, ...], images: Images) -> float:
    torch.set_num_threads(cpu_count())
    begin = time.perf_counter()
    with torch.inference_mode():
        for image in images:
            for task in tasks:
                _infer(task, image)
    return time.perf_counter() - begin


def _infer(task: DnnTask, image: npt.NDArray[np.uint8]) -> None:
    carried = task.preprocess(torch.from_numpy(image))
    for stage in (task.single_launch[1],) if 1 in task.single_launch else task.stages:  # no other DNN is waiting
        carried = stage(carried)
    task.decode(carried, (image.shape[0], image.shape[1]))


class _Processes:
    """One process per DNN, started once; each run starts in all of them together."""

    def __init__(self, config: NodeConfig, frames: int, seed: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._ready = False
        self._connections: list[Connection] = []
        self._processes = []
        for name in config.dnns:
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(config, name, frames, seed, theirs), name=f"DNN {name}", daemon=True
            )
            process.start()
            theirs.close()  # so that the pipe closes when the process ends
            self._connections.append(ours)
            self._processes.append(process)

    def run(self) -> float:
        """Seconds until the last process has finished. Raises CommandError if a process ended."""
        if not self._ready:
            self._await_all()
            self._ready = True
        begin = time.perf_counter()
        for connection in self._connections:
            with contextlib.suppress(OSError):  # a process that ended is reported below
                connection.send(None)
        self._await_all()
        return time.perf_counter() - begin

    def close(self) -> None:
        for connection in self._connections:
            connection.close()  # each process reads the end of the pipe
        for process in self._processes:
            process.join(10.0)
            if process.is_alive():
                process.kill()

    def _await_all(self) -> None:
        for process, connection in zip(self._processes, self._connections, strict=True):
            try:
                connection.recv()
            except (EOFError, OSError):
                process.join(10.0)
                raise CommandError(f"the process of {process.name} ended with exit code {process.exitcode}") from None


def _serve(config: NodeConfig, name: str, frames: int, seed: int, connection: Connection) -> None:
    """Body of the process: reports when it is ready and after each run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends this one
    threads = max(1, cpu_count() // len(config.dnns))
    own = config.model_copy(update={"dnns": {name: config.dnns[name]}, "workers": 1, "cpu_threads": threads})
    task = build(own).tasks[0]
    images = _images(frames, seed)
    with torch.inference_mode(), contextlib.suppress(EOFError, OSError):  # the parent closed the pipe or ended
        while True:
            connection.send(None)
            connection.recv()
            for image in images:
                _infer(task, image)
