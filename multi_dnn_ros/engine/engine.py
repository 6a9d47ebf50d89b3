"""Several DNNs on one device: a thread per DNN, and the order in which their jobs run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from multi_dnn_ros.backends.host import CPU
from multi_dnn_ros.engine.cpu import CpuRunner
from multi_dnn_ros.engine.dnn_thread import DnnThread
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.policies import Policy, make_policy
from multi_dnn_ros.engine.reports import Callbacks, Failure, Observer
from multi_dnn_ros.engine.task import DnnTask, Drop, Result

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.engine.gpu import GpuRunner


class Engine:
    """Runs the tasks on every offered frame.

    Method: hidden-layer jobs of all DNNs in one queue (Kim, Kim, Kim 2022, section 3.2). The thread of a DNN takes its
    frames, runs or launches their jobs, and decodes their outputs. On a CPU it waits in the queue before each job, see
    :class:`CpuRunner`. On a GPU all jobs of a frame are one launch on the DNN's stream, and the jobs of less important
    frames are held back on the GPU itself, see :class:`Gates`.

    workers: on a CPU the maximum number of jobs that run at the same time.
    policy: a name in policies.POLICIES, or a :class:`Policy`.
    on_result, on_failure: called in the DNN's thread; on_drop also in the thread that offers a frame or stops the
    engine. An exception in one of them drops at most that frame.
    max_failures: consecutive failures that disable a DNN. clock: nanoseconds, monotonic.

    An engine is started once and stopped once. Raises ValueError for tasks that it cannot run.
    """

    def __init__(
        self,
        tasks: Sequence[DnnTask],
        *,
        on_result: Callable[[Result], None],
        on_drop: Callable[[Drop], None] = lambda drop: None,
        on_failure: Callable[[Failure], None] = lambda failure: None,
        workers: int = 2,
        policy: str | Policy = "fifo",
        device: torch.device | None = None,
        max_failures: int = 5,
        clock: Callable[[], int] = time.monotonic_ns,
        observer: Observer | None = None,
    ) -> None:
        device = device or CPU
        _check(tasks, workers, device)
        self._clock = clock
        self._started = False
        self._dnns: dict[str, DnnThread] = {}
        self._gpu: GpuRunner | None = None
        order = make_policy(policy) if isinstance(policy, str) else policy
        observer = observer or Observer()
        callbacks = Callbacks(on_result, on_drop, on_failure)
        if device.type == "cpu":
            self._cpu: CpuRunner | None = CpuRunner(workers, order, clock, observer)
            run, ahead = self._cpu.run, 1
        else:
            from multi_dnn_ros.engine.gpu import AHEAD, GpuRunner

            self._cpu, run, ahead = None, None, AHEAD
        for task in tasks:
            self._dnns[task.name] = DnnThread(
                task, callbacks, clock, observer, max_failures=max_failures, run=run, wake=self._wake, ahead=ahead
            )
        if self._cpu is not None:
            self._cpu.update(tasks)
        else:
            self._gpu = GpuRunner(device, order, list(self._dnns.values()), clock, observer)
        cameras = dict.fromkeys(camera for task in tasks for camera in task.cameras)
        self._dnns_by_camera = {
            camera: [dnn for dnn in self._dnns.values() if camera in dnn.task.cameras] for camera in cameras
        }

    def start(self) -> None:
        for thread in self._threads():
            thread.start()
        self._started = True

    def offer(self, frame: Frame, dnns: Collection[str] | None = None) -> None:
        """Pass a frame to every DNN of its camera; never blocks. Frames that it replaces are dropped and counted.
        Called by one thread per camera.

        Its arrival time is `received_ns`, or now if that is 0. dnns: only these DNNs; None: all.
        """
        frame.received_ns = frame.received_ns or self._clock()
        for dnn in self._dnns_of(frame.camera):
            if dnns is None or dnn.task.name in dnns:
                dnn.offer(frame)

    def submit(self, frame: Frame, timeout_s: float | None = None) -> bool:
        """As :meth:`offer`, but waits until each DNN's mailbox is empty, so that no frame is replaced.

        False if a DNN's mailbox was not emptied within `timeout_s` seconds: that DNN and those after it did not get the
        frame.
        """
        frame.received_ns = self._clock()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        return all(
            dnn.submit(frame, None if deadline is None else max(0.0, deadline - time.monotonic()))
            for dnn in self._dnns_of(frame.camera)
        )

    def update(
        self, dnn: str, *, priority: int | None = None, deadline_ns: int | None = None, max_age_ns: int | None = None
    ) -> None:
        """Change a DNN's settings at run time; None keeps a value, 0 means no deadline or no maximum age."""
        self._dnns[dnn].update(priority=priority, deadline_ns=deadline_ns, max_age_ns=max_age_ns)
        if self._gpu is not None:
            self._gpu.update()
        elif self._cpu is not None:
            self._cpu.update(it.task for it in self._dnns.values())

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no frame is waiting or in progress; False on timeout."""
        deadline = time.monotonic() + timeout_s
        return all(dnn.wait_idle(max(0.0, deadline - time.monotonic())) for dnn in self._dnns.values())

    def stop(self, timeout_s: float) -> list[str]:
        """Stop within `timeout_s` seconds, even with jobs queued. Unfinished frames are dropped as `shutdown`.

        Returns the names of threads blocked in a call that cannot be interrupted; they are daemon threads and change
        nothing any more.
        """
        deadline = time.monotonic() + timeout_s
        self._started = False
        for dnn in self._dnns.values():
            dnn.close()
        runner = self._cpu or self._gpu
        assert runner is not None
        runner.close()
        threads = [thread for thread in self._threads() if thread.ident is not None]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for dnn in self._dnns.values():
            dnn.abandon()
        for thread in threads:  # threads that only waited for abandoned frames end immediately
            thread.join(0.1)
        return self.running_threads()

    def running_threads(self) -> list[str]:
        """Names of the running threads; after :meth:`stop`, those that hang."""
        return [thread.name for thread in self._threads() if thread.is_alive()]

    def failed_threads(self) -> list[str]:
        """Names of threads that an error ended while the engine is running; the log has the traceback."""
        if not self._started:
            return []
        return [thread.name for thread in self._threads() if thread.ident is not None and not thread.is_alive()]

    def _threads(self) -> list[threading.Thread]:
        return [*self._dnns.values(), *([] if self._gpu is None else [self._gpu])]

    def _wake(self) -> None:
        if self._gpu is not None:
            self._gpu.wake()

    def _dnns_of(self, camera: str) -> list[DnnThread]:
        try:
            return self._dnns_by_camera[camera]
        except KeyError:
            served = ", ".join(self._dnns_by_camera)
            raise ValueError(f"no DNN serves camera '{camera}'; served cameras: {served}") from None


def _check(tasks: Sequence[DnnTask], workers: int, device: torch.device) -> None:
    names = [task.name for task in tasks]
    if not tasks or len(set(names)) < len(names):
        raise ValueError(f"DNNs are {names}: must be at least one, with unique names")
    if workers < 1:
        raise ValueError(f"workers is {workers}: must be at least 1")
    for task in tasks:
        if not (task.stages if device.type == "cpu" else task.networks):
            kind = "stages" if device.type == "cpu" else "networks"
            raise ValueError(f"DNN '{task.name}' has 0 {kind} for {device}: must be at least 1")
        if not task.cameras:
            raise ValueError(f"DNN '{task.name}' has no camera: must have at least 1")
        jobs = 1 if task.networks else len(task.stages)
        if task.remaining_ns is not None and len(task.remaining_ns) != jobs:
            raise ValueError(
                f"DNN '{task.name}' has remaining_ns of {len(task.remaining_ns)} jobs: must be of {jobs} jobs"
            )
