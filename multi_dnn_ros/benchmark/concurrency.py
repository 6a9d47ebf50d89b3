"""The engine compared with simple alternatives: all DNNs in sequence, and one process per DNN.

Every condition does the complete work per frame (preprocessing, layers, decoding) on the same images, in one run, in
random order, repeated.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from multi_dnn_ros.benchmark.dnn_processes import DnnProcesses, Image, infer, plain, served
from multi_dnn_ros.common.reporting import cpu_count, distribution
from multi_dnn_ros.engine import Engine, Frame
from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.pipeline.build import build
from multi_dnn_ros.pipeline.choices import ConfigError
from multi_dnn_ros.pipeline.settings_check import check_settings
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.training.scenes import SceneGenerator

Images = list[Image]

ENGINE = "engine"
SEQUENTIAL = "one thread, one after another"
PROCESSES = "one process each"
PLAIN = "plain ONNX Runtime, one process each"
#: What the engine is compared with, by the name on the command line.
BASELINES = {"sequential": SEQUENTIAL, "processes": PROCESSES, "plain": PLAIN}


def measure_concurrency(
    config: NodeConfig, frames: int, repeats: int, seed: int, baselines: Collection[str] = tuple(BASELINES)
) -> dict[str, Any]:
    """Wall time in milliseconds per frame (all its DNNs) on the CPU, by condition.

    The sequential condition uses all cores within each operation. Processes and the engine's workers share the cores:
    each uses its equal share of threads per operation, at least one. The processes of PLAIN run the network as PyTorch
    exports it, with ONNX Runtime's default options except the number of threads; preprocessing and decoding are the
    same in all conditions. baselines: names in BASELINES.
    """
    config = on_cpu(config)
    images = _images(frames, seed)
    with contextlib.ExitStack() as stack:
        conditions: dict[str, Callable[[], float]] = {}
        pipeline = build(config)
        workers = pipeline.workers
        conditions[ENGINE] = lambda: _engine(pipeline.tasks, workers, config, images)
        if "sequential" in baselines:
            # cpu_threads is set when building, because ONNX Runtime sessions keep their number of threads.
            sequential = build(config.model_copy(update={"workers": 1, "cpu_threads": cpu_count()}))
            conditions[SEQUENTIAL] = lambda: _sequential(sequential.tasks, images)
        if "processes" in baselines:
            served_processes = DnnProcesses(served, config, images)
            stack.callback(served_processes.close)
            conditions[PROCESSES] = served_processes.run
        if "plain" in baselines:
            plain_processes = DnnProcesses(plain, config, images)
            stack.callback(plain_processes.close)
            conditions[PLAIN] = plain_processes.run
        times: dict[str, list[float]] = {name: [] for name in conditions}
        order = [name for name in conditions for _ in range(repeats)]
        random.Random(seed).shuffle(order)
        for run in conditions.values():  # warm up
            run()
        for name in tqdm(order, desc="benchmark", unit="run"):
            times[name].append(conditions[name]() / frames * 1e3)
    medians = {name: float(np.median(values)) for name, values in times.items()}
    others = [medians[name] for name in medians if name != ENGINE]
    return {
        "frames": frames,
        "repeats": repeats,
        "seed": seed,
        "dnns": {name: dnn.model for name, dnn in config.dnns.items()},
        "workers": workers,
        "ms_per_frame": {name: distribution(values) for name, values in times.items()},
        "results_per_s": {name: 1e3 * len(config.dnns) / median for name, median in medians.items()},
        "engine_over": {name: medians[ENGINE] / median for name, median in medians.items() if name != ENGINE},
        "engine_over_best_other": medians[ENGINE] / min(others) if others else None,
    }


def on_cpu(config: NodeConfig) -> NodeConfig:
    """`config` as :func:`measure_concurrency` measures it, on the CPU. Raises ConfigError if that is not possible."""
    config = config.model_copy(update={"device": "cpu"})
    if len(config.cameras) != 1:
        raise ConfigError(f"parameter cameras has {len(config.cameras)} names; this benchmark takes one")
    if problems := check_settings(config).problems:
        raise ConfigError("\n".join(problems))
    return config


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
        dropped = {
            key: stream.dropped for key, stream in engine.statistics().by_dnn_and_camera.items() if stream.dropped
        }
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
                infer(task, image)
    return time.perf_counter() - begin
