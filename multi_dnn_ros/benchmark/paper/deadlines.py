"""Three cameras on one engine below and above its capacity: deadline misses and drops by policy."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from multi_dnn_ros.benchmark.paper.conditions import CONDITIONS, Condition, precision_of
from multi_dnn_ros.benchmark.paper.loops import make_task
from multi_dnn_ros.benchmark.paper.partition import Partition
from multi_dnn_ros.benchmark.paper.prepare import Work, build, make_chains
from multi_dnn_ros.benchmark.paper.sets import DnnSet, Network
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.reporting import cpu_count, distribution, table, with_change
from multi_dnn_ros.engine import DnnTask, Engine, Failure, Frame, Result
from multi_dnn_ros.engine.policies import POLICIES
from multi_dnn_ros.pipeline.choices import default_workers

CAMERAS = ("front", "left", "rear")
#: Loads relative to the measured capacity.
LOADS = (0.5, 0.9, 1.2)
_IMAGE = np.zeros((4, 4, 3), np.uint8)
_DRAIN_S = 60.0


@dataclass(frozen=True)
class Urgency:
    """A class of DNNs. priority: of its DNNs. periods: their deadline in frame periods of a camera."""

    name: str
    priority: int
    periods: float


#: Assigned to the DNNs round-robin.
URGENCIES = (Urgency("high", 10, 1.0), Urgency("middle", 5, 2.0), Urgency("low", 0, 3.0))


@dataclass(frozen=True)
class DeadlinePlan:
    """dnns: networks, used round-robin. condition: how the engine runs them. rate_hz: approximate rate of a camera.
    seconds: per run; capacity measurements take half of that.
    """

    dnns: DnnSet
    device: torch.device
    sms: int | None = None
    condition: Condition = CONDITIONS["ours"]
    jobs: int = 8
    rate_hz: float = 30.0
    max_dnns: int = 24
    repeats: int = 3
    seconds: float = 5.0
    seed: int = 0


def measure_deadlines(
    plan: DeadlinePlan, progress: Callable[[str], None], keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Every load under every policy, in random order, repeated. keep: called after each run with the figures so far.

    cases: accounts of each run by urgency. `exact`: every frame sent is a result or a counted drop.
    """
    bench = Bench(plan)
    bench.grow(max(len(URGENCIES), len(plan.dnns.networks)))
    served_hz = bench.frames_per_s(len(bench.tasks)) * len(bench.tasks)
    counts = {load: dnns_for(load, served_hz, plan.rate_hz, plan.max_dnns) for load in LOADS}
    bench.grow(max(counts.values()))
    rates = {}
    for load, count in counts.items():
        capacity = bench.frames_per_s(count)
        rates[load] = load * capacity / len(CAMERAS)
        progress(f"load {load:.0%}: {count} DNNs serve {capacity:.1f} frames/s; cameras at {rates[load]:.1f} Hz")
    order = [(load, policy, repeat) for repeat in range(plan.repeats) for load in LOADS for policy in POLICIES]
    random.Random(plan.seed).shuffle(order)
    cases: list[dict[str, Any]] = []
    for number, (load, policy, repeat) in enumerate(order, start=1):
        case = bench.run(counts[load], rates[load], policy)
        cases.append({"load": load, "policy": policy, "repeat": repeat, **case})
        progress(f"run {number} of {len(order)}: load {load:.0%}, {policy}")
        keep(_figures(plan, cases))
    return _figures(plan, cases)


def _figures(plan: DeadlinePlan, cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "settings": {
            "set": plan.dnns.name,
            "device": str(plan.device),
            "sms": plan.sms,
            "condition": plan.condition.name,
            "precision": precision_of(plan.condition, plan.device),
            "jobs": plan.jobs,
            "seconds": plan.seconds,
            "seed": plan.seed,
        },
        "urgencies": {urgency.name: vars(urgency) for urgency in URGENCIES},
        "cases": list(cases),
        "summary": summarize_cases(cases),
        "passed": all(case["exact"] for case in cases),
    }


def dnns_for(load: float, served_hz: float, rate_hz: float, maximum: int) -> int:
    """Number of DNNs for this load, with cameras at `rate_hz` and a capacity of `served_hz` inferences per second."""
    return max(len(URGENCIES), min(maximum, round(load * served_hz / (len(CAMERAS) * rate_hz))))


def summarize_cases(cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per load, policy and urgency that were run: shares of the offered frames, medians over the repeats.

    p99_ms: over the repeats in which a frame was served; None if there are none.
    """
    rows = []
    for load, policy, urgency in itertools.product(LOADS, POLICIES, (urgency.name for urgency in URGENCIES)):
        found = [case for case in cases if (case["load"], case["policy"]) == (load, policy)]
        if not found:
            continue
        accounts = [case["accounts"][urgency] for case in found]
        p99s = [each["latency_ms"]["p99"] for each in accounts if each["latency_ms"]]
        rows.append(
            {
                "load": load,
                "policy": policy,
                "urgency": urgency,
                "dnns": found[0]["dnns"],
                "rate_hz": found[0]["rate_hz"],
                "missed": statistics.median(each["missed"] / each["offered"] for each in accounts),
                "dropped": statistics.median(sum(each["dropped"].values()) / each["offered"] for each in accounts),
                "p99_ms": statistics.median(p99s) if p99s else None,
            }
        )
    return rows


def deadlines_table(figures: Mapping[str, Any]) -> str:
    """Text for the terminal."""
    header = ["load", "DNNs", "Hz per camera", "policy", *(f"{u.name}: missed, dropped, p99 ms" for u in URGENCIES)]
    rows = []
    for load, policy in itertools.product(LOADS, POLICIES):
        found = [row for row in figures["summary"] if (row["load"], row["policy"]) == (load, policy)]
        cells = [f"{row['missed']:.1%}, {row['dropped']:.1%}, {with_change(row['p99_ms'], None, 1)}" for row in found]
        rows.append([f"{load:.0%}", str(found[0]["dnns"]), f"{found[0]['rate_hz']:.1f}", policy, *cells])
    return f"{table(header, rows)}\naccounts: {'exact' if figures['passed'] else 'DO NOT ADD UP'}"


class Bench:
    """Prepared DNNs, the first of which an engine runs. tasks: each serves all cameras."""

    def __init__(self, plan: DeadlinePlan) -> None:
        self._plan = plan
        self._partition = Partition(plan.device, plan.sms)
        self.tasks: list[DnnTask] = []

    def grow(self, count: int) -> None:
        """Prepare DNNs until there are `count`."""
        networks = list(itertools.islice(itertools.cycle(self._plan.dnns.networks), len(self.tasks), count))
        if not networks:
            return
        work = Work(
            self._plan.condition, tuple(networks), str(self._plan.device), jobs=self._plan.jobs, seed=self._plan.seed
        )
        built = build(work)
        chains, inputs = make_chains(work, built, self._partition)
        kinds = [each.network for each in built for _ in range(each.count)]
        ready: dict[Network, list[Any]] = {network: [] for network in kinds}
        for network, chain, tensors in zip(kinds, chains, inputs, strict=True):
            ready[network].append((chain, tensors))
        for network in networks:
            chain, tensors = ready[network].pop()
            task = make_task(f"dnn{len(self.tasks)}", chain, tensors, self._partition)
            self.tasks.append(replace(task, cameras=CAMERAS))
        self._set_threads(count)

    def _set_threads(self, count: int) -> None:
        """Set PyTorch's threads again, because building changes them."""
        device = self._plan.device
        torch.set_num_threads(max(1, cpu_count() // default_workers(device, count)) if device.type == "cpu" else 1)

    def frames_per_s(self, count: int) -> float:
        """Frames per second that the first `count` DNNs serve if a frame is always waiting."""
        engine, failures = self._engine(count, "fifo", lambda result: None)
        engine.start()
        try:
            cameras = itertools.cycle(CAMERAS)
            begin, frames = time.monotonic(), 0
            while time.monotonic() - begin < self._plan.seconds / 2 or frames < len(CAMERAS):
                engine.submit(_frame(next(cameras)))
                frames += 1
            _await_idle(engine, failures)
            return frames / (time.monotonic() - begin)
        finally:
            engine.stop(2.0)

    def run(self, count: int, rate_hz: float, policy: str) -> dict[str, Any]:
        """Run the first `count` DNNs with cameras at `rate_hz` and evenly spaced phases."""
        latencies: dict[str, list[float]] = {task.name: [] for task in self.tasks}
        engine, failures = self._engine(
            count,
            policy,
            lambda result: latencies[result.dnn].append(result.timing.arrival_to_result_ns / 1e6),
            rate_hz,
        )
        frames = max(len(CAMERAS), round(self._plan.seconds * rate_hz * len(CAMERAS)))
        engine.start()
        try:
            late_s = _feed(engine, frames, 1.0 / (rate_hz * len(CAMERAS)))
            _await_idle(engine, failures)
            streams = engine.statistics().by_dnn_and_camera
        finally:
            engine.stop(2.0)
        accounts: dict[str, dict[str, Any]] = {}
        for index, urgency in enumerate(URGENCIES):
            names = {task.name for task in self.tasks[:count][index :: len(URGENCIES)]}
            of_urgency = [stream for (dnn, _), stream in streams.items() if dnn in names]
            samples = [ms for name in names for ms in latencies[name]]
            dropped: Counter[str] = Counter()
            for stream in of_urgency:
                dropped.update({reason.value: lost for reason, lost in stream.dropped.items()})
            accounts[urgency.name] = {
                "offered": sum(stream.offered for stream in of_urgency),
                "published": sum(stream.published for stream in of_urgency),
                "dropped": dict(dropped),
                "missed": sum(stream.deadline_misses for stream in of_urgency),
                "latency_ms": distribution(samples) if samples else {},
            }
        exact = (
            all(stream.offered == stream.published + sum(stream.dropped.values()) for stream in streams.values())
            and sum(each["offered"] for each in accounts.values()) == frames * count
        )
        return {
            "dnns": count, "rate_hz": rate_hz, "frames": frames, "longest_late_ms": late_s * 1e3,
            "accounts": accounts, "exact": exact,
        }  # fmt: skip

    def _engine(
        self, count: int, policy: str, on_result: Callable[[Result], None], rate_hz: float = 0.0
    ) -> tuple[Engine, list[Failure]]:
        tasks = [
            replace(task, priority=urgency.priority, deadline_ns=round(urgency.periods / rate_hz * 1e9))
            if rate_hz
            else task
            for task, urgency in zip(self.tasks[:count], itertools.cycle(URGENCIES), strict=False)
        ]
        failures: list[Failure] = []
        device = self._plan.device
        engine = Engine(
            tasks,
            workers=default_workers(device, count),
            policy=policy,
            device=device,
            on_result=on_result,
            on_failure=failures.append,
        )
        return engine, failures


def _frame(camera: str) -> Frame:
    return Frame(camera, time.monotonic_ns(), _IMAGE)


def _feed(engine: Engine, frames: int, period_s: float) -> float:
    """Offer one frame per period, cameras in turn; returns the maximum delay in seconds."""
    begin, late_s = time.monotonic(), 0.0
    for number in range(frames):
        wait_s = begin + number * period_s - time.monotonic()
        late_s = max(late_s, -wait_s)
        time.sleep(max(0.0, wait_s))
        engine.offer(_frame(CAMERAS[number % len(CAMERAS)]))
    return late_s


def _await_idle(engine: Engine, failures: Sequence[Failure]) -> None:
    finished = engine.wait_idle(_DRAIN_S)
    if failures:
        raise CommandError(f"{failures[0].dnn} failed: {failures[0].message}")
    if not finished:
        raise CommandError(f"the engine did not finish its frames within {_DRAIN_S:g} s")
