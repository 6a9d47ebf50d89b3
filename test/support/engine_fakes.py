"""A fake DNN whose jobs the test releases one by one, and a fake clock."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from waiting import until as until

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.backends.captured_network import EagerNetwork
from multi_dnn_ros.engine import DnnTask, Drop, DropReason, Engine, Failure, Frame, Result
from multi_dnn_ros.engine.inference import Inference
from multi_dnn_ros.engine.policies import Policy

WAIT = 60.0  # seconds that no condition may take; none takes more than milliseconds unless something is broken


class FakeClock:
    """A nanosecond clock advanced by the test."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def __call__(self) -> int:
        return self.now


class PassingClock(FakeClock):
    """A clock that advances on each reading, so that every wait ends."""

    def __call__(self) -> int:
        self.now += 1_000
        return self.now


class Recorder:
    """Everything an engine reports, and a way to wait for it."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.drops: list[Drop] = []
        self.failures: list[Failure] = []
        self._changed = threading.Condition()

    def _add(self, kind: list) -> Callable[[object], None]:
        def add(item: object) -> None:
            with self._changed:
                kind.append(item)
                self._changed.notify_all()

        return add

    def callbacks(self) -> dict[str, Callable]:
        return {
            "on_result": self._add(self.results),
            "on_drop": self._add(self.drops),
            "on_failure": self._add(self.failures),
        }

    def wait(self, condition: Callable[[], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, WAIT), "the engine did not get there"


class Gate:
    """Blocks every job of a DNN until the test opens it; reports which jobs have arrived."""

    def __init__(self, is_open: bool = False) -> None:
        self.arrived = threading.Semaphore(0)
        self._permits = threading.Semaphore(0)
        self._open = threading.Event()
        if is_open:
            self._open.set()

    def __call__(self) -> None:
        self.arrived.release()
        if not self._open.is_set():
            assert self._permits.acquire(timeout=WAIT)

    def let(self, jobs: int = 1) -> None:
        self._permits.release(jobs)

    def open(self) -> None:
        self._open.set()
        self._permits.release(1000)

    def wait_for_job(self) -> None:
        assert self.arrived.acquire(timeout=WAIT)


def frame(camera: str = "front", value: int = 0, **kwargs: object) -> Frame:
    """A 2x3 image full of `value`."""
    return Frame(camera, value, np.full((2, 3, 3), value, np.uint8), **kwargs)


def task(
    name: str = "a",
    jobs: int = 2,
    cameras: tuple[str, ...] = ("front",),
    on_job: Callable[[int], None] = lambda index: None,
    decode: Callable[[Tensors, tuple[int, int]], object] | None = None,
    batches: tuple[int, ...] = (),
    on_gpu: bool = False,
    **kwargs: object,
) -> DnnTask:
    """A DNN that adds 1 to the image's value in each job; its result is (value, (height, width)).

    batches: numbers of images that it also takes at once. on_gpu: with networks instead of stages.
    """

    def stage(index: int, images: int = 1) -> Callable[[Tensors], Tensors]:
        def run(carried: Tensors) -> Tensors:
            assert carried[0].shape == (images,)
            on_job(index)
            return (carried[0] + 1,)

        return run

    chains = {images: tuple(stage(index, images) for index in range(jobs)) for images in (1, *batches)}
    networks = {images: EagerNetwork(chain, images, None) for images, chain in chains.items()}
    return DnnTask(
        name=name,
        cameras=cameras,
        preprocess=lambda image: (image.to(torch.float32).mean().reshape(1),),
        stages=() if on_gpu else chains.pop(1),
        decode=decode or (lambda outputs, size: (float(outputs[0]), size)),
        batches={} if on_gpu else chains,
        networks=networks if on_gpu else {},
        **kwargs,
    )


class WatchedPolicy:
    """A policy that counts the jobs that wait."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._queued = threading.Semaphore(0)
        self.may_overtake = policy.may_overtake
        self.holds_back = policy.holds_back

    def key(self, inference: Inference, queued_ns: int, job: int = 0) -> int:
        key = self._policy.key(inference, queued_ns, job)
        self._queued.release()
        return key

    def wait_for_jobs(self, count: int = 1) -> None:
        for _ in range(count):
            assert self._queued.acquire(timeout=WAIT)


def stop_while_one_hangs(engine: Engine, name: str, timeout_s: float = 0.1) -> None:
    """Stop an engine whose thread of this name hangs. The others end, on a busy machine also after the timeout."""
    assert name in engine.stop(timeout_s)
    until(lambda: engine.running_threads() == [name], "the end of the other threads", told=engine.running_threads)


class CountingEngine(Engine):
    """An engine that notes what it was offered, and how that was answered, before the caller's callbacks."""

    def __init__(self, tasks: Sequence[DnnTask], **kwargs: Any) -> None:
        self._tasks = {task.name: task for task in tasks}
        self.offered: Counter[tuple[str, int]] = Counter()  # by DNN and frame
        self.published: list[Result] = []
        self.dropped: list[Drop] = []
        self.frames: list[Frame] = []  # kept, so that ids are not used again
        own = {"on_result": self.published, "on_drop": self.dropped}
        for name, noted in own.items():
            kwargs[name] = self._noting(noted, kwargs.get(name, lambda answer: None))
        super().__init__(tasks, **kwargs)

    @staticmethod
    def _noting(noted: list[Any], callback: Callable[[Any], None]) -> Callable[[Any], None]:
        def note(answer: Any) -> None:
            noted.append(answer)
            callback(answer)

        return note

    def offer(self, frame: Frame, dnns: Collection[str] | None = None) -> None:
        self._note(frame, dnns)
        super().offer(frame, dnns)

    def submit(self, frame: Frame, timeout_s: float | None = None) -> bool:
        done = super().submit(frame, timeout_s)
        if done:
            self._note(frame, None)
        return done

    def _note(self, frame: Frame, dnns: Collection[str] | None) -> None:
        self.frames.append(frame)
        for name, task in self._tasks.items():
            if frame.camera in task.cameras and (dnns is None or name in dnns):
                self.offered[name, id(frame)] += 1

    def reasons(self, dnn: str) -> dict[DropReason, int]:
        """Number of drops of a DNN by reason."""
        return dict(Counter(drop.reason for drop in self.dropped if drop.dnn == dnn))


def check_accounts(engine: CountingEngine) -> None:
    """Every offered frame is answered, once; a result whose receiver failed or hangs is dropped afterwards."""
    published = Counter((result.dnn, id(result.frame)) for result in engine.published)
    dropped = Counter((drop.dnn, id(drop.frame)) for drop in engine.dropped)
    assert not published - engine.offered
    assert not dropped - engine.offered
    assert not engine.offered - (published + dropped)
