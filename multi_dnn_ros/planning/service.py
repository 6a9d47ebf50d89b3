"""Measures in the engine what a frame costs each DNN, alone and with the others, and how many frames are lost."""

from __future__ import annotations

import contextlib
import copy
import queue
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils import _pytree as pytree

from multi_dnn_ros.engine import Engine, Frame
from multi_dnn_ros.engine.task import DnnTask, DropReason, Result
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.planning.fit import Demand, service_ms
from multi_dnn_ros.planning.launch_cost import synchronize
from multi_dnn_ros.planning.measure import trace_for
from multi_dnn_ros.planning.predicted_time import network_ms
from multi_dnn_ros.planning.predictor import Predictor, layers_of
from multi_dnn_ros.planning.profile import ProfileError
from multi_dnn_ros.planning.samples import Load
from multi_dnn_ros.planning.timing import Target

Image = npt.NDArray[np.uint8]
MakeEngine = Callable[[Sequence[DnnTask], Callable[[Result], None]], Engine]
_TIMEOUT_S = 120.0
#: Interval of checks for failures.
_CHECK_INTERVAL_S = 0.2
#: Share of frames that a fitting set may lose; the first frames run with cold caches.
MAX_LOST_SHARE = 0.02


@dataclass(frozen=True)
class Service:
    """Milliseconds per frame from mailbox to result, without waiting for a worker.

    crowded_ms: while all DNNs have frames. shared_ms, batch: see fit.Demand.
    """

    alone_ms: float
    crowded_ms: float
    shared_ms: float = 0.0
    batch: float = 1.0


@dataclass(frozen=True)
class _Saturated:
    """A DNN that always had waiting frames. frame_ms: mean time per frame, without waiting for a worker. hz: frames
    served per second. batch: mean frames per inference.
    """

    frame_ms: float
    hz: float
    batch: float


def measure_services(
    tasks: Sequence[DnnTask],
    make_engine: MakeEngine,
    images: Image | Mapping[str, Image],
    workers: int,
    frames: int = 20,
) -> dict[str, Service]:
    """Measure each DNN alone, then all together, until each has served the frames of `frames` full inferences.

    images: decoded images, by camera, or one for all. All cameras of a DNN have frames, so that it batches if it can.
    For a DNN alone, the cost of a frame is the time between consecutive results. With more DNNs than workers, costs are
    scaled so that the frames served fill the workers, which includes parallel decoding and other delays. Otherwise the
    frames that all DNNs together serve are taken to fill the shared resources.
    """
    alone = {task.name: _saturate([task], make_engine, images, frames)[task.name] for task in tasks}
    alone_ms = {name: 1e3 / saturated.hz for name, saturated in alone.items()}
    if len(tasks) == 1:
        return {name: Service(ms, ms, batch=alone[name].batch) for name, ms in alone_ms.items()}
    together = _saturate(tasks, make_engine, images, frames)
    if len(tasks) <= workers:
        utilization = sum(saturated.hz * alone_ms[name] for name, saturated in together.items()) / 1e3
        return {name: Service(ms, max(ms, 1e3 / together[name].hz), ms / utilization, together[name].batch)
                for name, ms in alone_ms.items()}  # fmt: skip
    utilization = sum(saturated.hz * saturated.frame_ms / 1e3 for saturated in together.values()) / workers
    return {name: Service(alone_ms[name], saturated.frame_ms / utilization, batch=saturated.batch)
            for name, saturated in together.items()}  # fmt: skip


def _saturate(
    tasks: Sequence[DnnTask], make_engine: MakeEngine, images: Image | Mapping[str, Image], frames: int
) -> dict[str, _Saturated]:
    """Run the DNNs with more frames than they can serve, with nothing else on the device.

    Each DNN gets cameras of its own. Every camera always has another frame waiting, so that the next inference runs
    while the last results are decoded.
    """
    times: dict[str, list[float]] = {task.name: [] for task in tasks}
    ends_ns: dict[str, list[int]] = {task.name: [] for task in tasks}
    batches: dict[str, list[int]] = {task.name: [] for task in tasks}
    first: dict[str, tuple[int, int]] = {}  # start and end of the first inference
    needed = {task.name: frames * task.max_batch for task in tasks}
    cameras = {f"{task.name}/{camera}": camera for task in tasks for camera in task.cameras}
    free: queue.SimpleQueue[str] = queue.SimpleQueue()  # cameras that need another frame from this thread

    def on_result(result: Result) -> None:
        timing = result.timing
        times[result.dnn].append((timing.finished_ns - timing.started_ns - timing.queue_ns) / timing.batch / 1e6)
        ends_ns[result.dnn].append(timing.finished_ns)
        began_ns, _ = first.get(result.dnn, (timing.started_ns, 0))
        if began_ns == timing.started_ns:  # called once per frame of the batch
            first[result.dnn] = timing.started_ns, timing.finished_ns
        batches[result.dnn].append(timing.batch)
        free.put(result.frame.camera)

    def frame(name: str) -> Frame:
        image = images[cameras[name]] if isinstance(images, Mapping) else images
        return Frame(name, 0, image)

    separate = [replace(task, cameras=tuple(f"{task.name}/{camera}" for camera in task.cameras), max_age_ns=None)
                for task in tasks]  # fmt: skip
    engine = make_engine(separate, on_result)
    engine.start()
    try:
        end = time.monotonic() + _TIMEOUT_S
        for name in cameras:
            engine.submit(frame(name), _TIMEOUT_S)
            engine.submit(frame(name), _TIMEOUT_S)  # returns once the first has started
        next_check = time.monotonic() + _CHECK_INTERVAL_S
        while any(len(samples) <= needed[name] for name, samples in times.items()):
            with contextlib.suppress(queue.Empty):
                engine.offer(frame(free.get(timeout=_CHECK_INTERVAL_S)))
            if time.monotonic() < next_check:
                continue
            next_check = time.monotonic() + _CHECK_INTERVAL_S
            if disabled := engine.statistics().disabled:
                raise ProfileError(
                    "; ".join(f"DNN {dnn} failed while it was measured: {reason}" for dnn, reason in disabled.items())
                )
            if time.monotonic() > end:
                raise ProfileError(f"{frames} frames of {', '.join(times)} were not served within {_TIMEOUT_S:g} s")
            for name in cameras:
                engine.offer(frame(name))  # no result of a failed frame triggers the next one
    finally:
        engine.stop(10.0)
    # Count only while all DNNs were active: from the latest first result to the earliest last result.
    begin_ns, end_ns = max(end for _, end in first.values()), min(ends[-1] for ends in ends_ns.values())
    found = {}
    for name, ends in ends_ns.items():
        inside = [index for index, at in enumerate(ends) if begin_ns < at <= end_ns]
        ms = statistics.fmean(times[name][index] for index in inside) if inside else times[name][-1]
        inferences = sum(1 / batches[name][index] for index in inside)
        batch = len(inside) / inferences if inside else float(batches[name][-1])
        found[name] = _Saturated(ms, max(1, len(inside)) * 1e9 / max(1, end_ns - begin_ns), batch)
    return found


def lost_frames(
    tasks: Sequence[DnnTask],
    cameras: Mapping[str, Mapping[str, float]],
    make_engine: MakeEngine,
    images: Image | Mapping[str, Image],
    seconds: float,
    *,
    late: bool = False,
) -> dict[str, float]:
    """Offer frames at the given rates for `seconds`; returns the share of frames that each DNN lost.

    cameras: rate in hertz, by DNN and camera; DNNs with equal rates for a camera get the same frames. images: decoded
    images, by camera, or one for all. late: whether results after their deadline count as lost. The first half second
    is not counted.
    """
    wanted = [replace(task, cameras=tuple(cameras[task.name])) for task in tasks if cameras.get(task.name)]
    receivers: dict[tuple[str, float], list[str]] = {}  # DNNs by camera and rate
    for task in wanted:
        for camera, hz in cameras[task.name].items():
            receivers.setdefault((camera, hz), []).append(task.name)
    engine = make_engine(wanted, lambda result: None)
    engine.start()
    try:
        begin = time.monotonic()
        due = {(camera, hz): begin + index / len(receivers) / hz for index, (camera, hz) in enumerate(receivers)}
        before: Any = None
        while due[following := min(due, key=lambda key: due[key])] < begin + seconds + 0.5:
            camera, hz = following
            time.sleep(max(0.0, due[following] - time.monotonic()))
            if before is None and time.monotonic() - begin > 0.5:
                before = engine.statistics().by_dnn_and_camera
            image = images[camera] if isinstance(images, Mapping) else images
            engine.offer(Frame(camera, 0, image), receivers[following])
            due[following] += 1.0 / hz
        after = engine.statistics().by_dnn_and_camera
    finally:
        engine.stop(10.0)
    lost = {}
    for task in wanted:
        offered = dropped = 0
        for camera in task.cameras:
            now, then = after[task.name, camera], before[task.name, camera] if before else None
            offered += now.offered - (then.offered if then else 0)
            dropped += sum(now.dropped.values()) - now.dropped.get(DropReason.SHUTDOWN, 0)
            dropped -= sum(then.dropped.values()) if then else 0
            if late:
                dropped += now.deadline_misses - (then.deadline_misses if then else 0)
        lost[task.name] = dropped / offered if offered else 0.0
    return lost


def random_demands(services: Mapping[str, Service], workers: int, count: int, seed: int = 0) -> list[list[Demand]]:
    """Random sets of DNNs and rates that need 0.6 to 1.4 of the capacity of `workers`, evenly spaced, without 0.95 to
    1.05.

    Each set has at least one of the DNNs, each with its own camera and a random share of the load.
    """
    order = random.Random(seed)
    found = []
    for number in range(count):
        fill = 0.6 + 0.8 * number / max(1, count - 1)
        fill = fill if abs(fill - 1.0) >= 0.05 else fill + (0.05 if fill >= 1.0 else -0.05)
        names = order.sample(sorted(services), order.randint(1, len(services)))
        shares = [order.uniform(0.5, 1.5) for _ in names]
        capacity = min(len(names), workers)
        # No DNN can use more than one worker: the excess goes to the others.
        shares = _cap_shares([share / sum(shares) * capacity for share in shares])
        found.append(_at(names, shares, fill, services, workers))
    return found


def _cap_shares(shares: list[float]) -> list[float]:
    for _ in shares:
        over = sum(max(0.0, share - 1.0) for share in shares)
        room = [share for share in shares if share < 1.0]
        if over <= 1e-9 or not room:
            break
        shares = [min(share, 1.0) if share >= 1.0 else share + over * share / sum(room) for share in shares]
    return [min(1.0, share) for share in shares]


def _at(
    names: Sequence[str], shares: Sequence[float], fill: float, services: Mapping[str, Service], workers: int
) -> list[Demand]:
    """Demands at which each DNN, running with the others, needs `fill` times its share of a worker."""
    rates = [share * fill * 1e3 / services[name].crowded_ms for name, share in zip(names, shares, strict=True)]
    demands: list[Demand] = []
    for _ in range(25):
        demands = [
            Demand(name, {f"camera_{name}": hz}, service.alone_ms, service.crowded_ms, shared_ms=service.shared_ms)
            for name, hz, service in zip(names, rates, (services[name] for name in names), strict=True)
        ]
        times = service_ms(demands, workers)
        rates = [share * fill * 1e3 / times[name] for name, share in zip(names, shares, strict=True)]
    # If the shared resources are the bottleneck, scale to them.
    factor = min(1.0, fill / max(1e-9, sum(demand.hz * demand.shared_ms / 1e3 for demand in demands)))
    return [
        replace(demand, cameras={camera: hz * factor for camera, hz in demand.cameras.items()}) for demand in demands
    ]


def predicted_services(
    dnns: Mapping[str, Dnn],
    predictor: Predictor,
    targets: Mapping[str, Target],
    workers: int,
    images: Mapping[str, Image],
    streams: Mapping[str, Sequence[int]] | None = None,
) -> tuple[dict[str, Service], tuple[str, ...]]:
    """Service times from `predictor`, with measured preprocessing and decoding, and the reasons why times could not be
    predicted.

    targets: device, backend and precision, by DNN. images: one per DNN. streams: by DNN and job, the number of streams
    on which branches run at the same time; None: one each. Crowded times are for a DNN on every other worker. All times
    are for one image at a time.
    """
    services: dict[str, Service] = {}
    unpredicted: list[str] = []
    load = Load("dnn", workers - 1) if workers > 1 else Load()
    for name, dnn in dnns.items():
        target = replace(targets[name], batch=dnn.view.tiles)  # the tiles of an image are one batch
        traced = trace_for(dnn.module, tuple(dnn.example_inputs()[0].shape), target)
        layers = layers_of(traced)
        alone, crowded = (predictor.predict(layers, level, target) for level in (Load(), load))
        processing_ms = _pre_and_postprocess_ms(dnn, images[name], target.device)
        counts = (streams or {}).get(name, ())
        alone_ms, crowded_ms = (network_ms(traced, layers, times.ms, counts) for times in (alone, crowded))
        services[name] = Service(alone_ms + processing_ms, max(alone_ms, crowded_ms) + processing_ms)
        unpredicted += [f"{name}: {reason}" for reason in crowded.unpredicted]
    return services, tuple(unpredicted)


def _pre_and_postprocess_ms(dnn: Dnn, image: Image, device: torch.device) -> float:
    """Time of preprocessing on the device and of decoding the outputs on the CPU."""
    source = torch.from_numpy(image).to(device)
    module = copy.deepcopy(dnn.module).to(device)  # its jobs may have moved parts of it to other devices
    times = []
    with torch.inference_mode():
        leaves = pytree.tree_leaves(module(*dnn.inputs(source)))
        outputs = tuple(leaf.cpu() for leaf in leaves if isinstance(leaf, torch.Tensor))
        for _ in range(5):
            begin = time.perf_counter()
            dnn.inputs(source)
            synchronize(device)
            dnn.results(outputs, (image.shape[0], image.shape[1]))
            times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)
