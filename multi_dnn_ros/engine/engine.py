"""Several DNNs on one device: DNN threads fill one shared queue of jobs, workers empty it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence

import torch

from multi_dnn_ros.backends.green_contexts import make_stream
from multi_dnn_ros.backends.stream_priority import stream_priorities
from multi_dnn_ros.engine.dnn_frames import FailureLimits
from multi_dnn_ros.engine.dnn_thread import DnnThread
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.image_thread import ImageThread
from multi_dnn_ros.engine.job import DropCause, Job
from multi_dnn_ros.engine.observer import NullObserver, Observer
from multi_dnn_ros.engine.policies import Policy, make_policy
from multi_dnn_ros.engine.queue import JobQueue
from multi_dnn_ros.engine.reports import Callbacks, Failure
from multi_dnn_ros.engine.runner import Runner
from multi_dnn_ros.engine.statistics import Statistics
from multi_dnn_ros.engine.task import DnnTask, Drop, DropReason, Result
from multi_dnn_ros.engine.worker import Worker


def _do_nothing(_: object) -> None:
    pass


class Engine:
    """Runs the tasks on every offered frame.

    Method: hidden-layer jobs in a queue shared by all DNNs, taken by workers with one CUDA stream each (Kim, Kim, Kim
    2022, section 3.2). On a GPU the streams belong to the DNNs instead of the workers: the jobs of a frame follow one
    another on one stream whichever thread launches them, and one worker suffices for many DNNs. The streams have the
    DNNs' priorities, so the GPU itself prefers the more important DNN, or are restricted to the DNN's share of the SMs.
    A single DNN, possibly with several cameras, launches in its own thread, which saves waking a worker; with several
    DNNs the threads would contend for the GIL during their launches. On a CPU a DNN's thread runs its jobs itself while
    no other job is queued and fewer than `workers` jobs run.

    A launch cannot be revoked. With `max_launched`, at most that many jobs that a later frame could overtake are
    launched and unfinished on the GPU. Each of them is a launch of its own, with a thread that waits for its kernels.
    The overtaking frame is launched at once, and its stream has precedence. All jobs of a frame are one launch, without
    a bound, if no other DNN's frame could overtake it: under fifo, for the most important DNN, among DNNs of equal
    priority, and for a frame that has waited long enough.

    `max_launched` is off by default: on a GPU saturated by six DNNs, launching job by job from Python costs two thirds
    of their throughput, whatever the bound (H100; docs/measured.md).

    workers: number of threads that run jobs, and on a CPU the maximum number of jobs that run at the same time.
    policy: a name in policies.POLICIES, or a :class:`Policy`. max_launched: None: no bound.
    on_result, on_failure: called in the DNN's thread; on_drop also in the thread that offers a frame, decodes it or
    stops the engine. An exception in one of them drops at most that frame.
    max_failures: consecutive failures that disable a DNN. clock: nanoseconds, monotonic. observer: see
    :class:`Observer`.

    An engine is started once and stopped once.
    """

    def __init__(
        self,
        tasks: Sequence[DnnTask],
        *,
        on_result: Callable[[Result], None],
        on_drop: Callable[[Drop], None] = _do_nothing,
        on_failure: Callable[[Failure], None] = _do_nothing,
        workers: int = 2,
        policy: str | Policy = "fifo",
        device: torch.device | None = None,
        max_failures: int = 5,
        aging_ns: int = 50_000_000,
        window_ns: int = 10_000_000_000,
        clock: Callable[[], int] = time.monotonic_ns,
        observer: Observer | None = None,
        max_launched: int | None = None,
    ) -> None:
        _check(tasks, workers, max_launched)
        self._clock = clock
        self._observer = observer or NullObserver()
        self._started = False
        self._policy = make_policy(policy, aging_ns) if isinstance(policy, str) else policy
        device = device or torch.device("cpu")
        self._queue = JobQueue(self._policy, clock, workers if device.type == "cpu" else None)
        limits = FailureLimits(max_failures=max_failures, window_ns=window_ns)
        callbacks = Callbacks(on_result, on_drop, on_failure)
        self._device = device
        in_dnn_threads = device.type == "cpu" or len(tasks) == 1
        self._dnn_runners = {task.name: self._runner() for task in tasks if in_dnn_threads}
        self._dnns = {
            task.name: DnnThread(
                task, self._queue, limits, callbacks, clock, self._dnn_runners.get(task.name), self._observer
            )
            for task in tasks
        }
        self._images = ImageThread(device, self._queue, self._observer, clock, self._pass_on, self._refuse)
        cameras = dict.fromkeys(camera for task in tasks for camera in task.cameras)
        self._dnns_by_camera = {
            camera: [dnn for dnn in self._dnns.values() if camera in dnn.task.cameras] for camera in cameras
        }
        may_overtake = len(tasks) > 1 and any(self._policy.offset_ns(task) is not None for task in tasks)
        bounded = max_launched if device.type == "cuda" and may_overtake and max_launched is not None else 0
        self._is_bounded = bounded > 0
        self._update_policy()
        self._streams: dict[tuple[str, int, int], torch.cuda.Stream] = {}
        self._streams_lock = threading.Lock()
        self._workers = [
            Worker(number, self._queue, self._runner(), waits_for_kernels=False if bounded else None)
            for number in range(workers)
        ]
        self._workers += [
            Worker(workers + number, self._queue, self._runner(waits_for_kernels=True), waits_for_kernels=True)
            for number in range(bounded)
        ]

    @property
    def cameras(self) -> tuple[str, ...]:
        """The cameras that at least one DNN serves."""
        return tuple(self._dnns_by_camera)

    def start(self) -> None:
        for thread in (*self._workers, *self._dnns.values()):
            thread.start()
        self._started = True

    def offer(self, frame: Frame, dnns: Collection[str] | None = None) -> None:
        """Pass a frame to every DNN of its camera, a JPEG file once it is decoded; never blocks. Frames that it
        replaces are dropped and counted. Called by one thread per camera.

        Its arrival time is `received_ns`, or now if that is 0. dnns: only these DNNs; None: all.
        """
        frame.received_ns = frame.received_ns or self._clock()
        served = (dnn.task.name for dnn in self._dnns_of(frame.camera))
        chosen = tuple(name for name in served if dnns is None or name in dnns)
        if frame.is_decoded_for(self._device) and not self._images.holds(frame.camera):
            self._pass_on(frame, chosen)
        elif chosen:
            self._images.put(frame, chosen)

    def _pass_on(self, frame: Frame, dnns: tuple[str, ...]) -> None:
        for dnn in dnns:
            self._dnns[dnn].offer(frame)

    def _refuse(self, frame: Frame, dnns: tuple[str, ...], cause: DropCause) -> None:
        for dnn in dnns:
            self._dnns[dnn].refuse(frame, cause)

    def submit(self, frame: Frame, timeout_s: float | None = None) -> bool:
        """As :meth:`offer`, but decodes a JPEG file in this thread, and waits until each DNN's mailbox is empty, so
        that no frame is replaced.

        False if a DNN's mailbox was not emptied within `timeout_s` seconds: that DNN and those after it did not get the
        frame.
        """
        frame.received_ns = self._clock()
        dnns = self._dnns_of(frame.camera)
        if not frame.is_decoded_for(self._device):
            names = tuple(dnn.task.name for dnn in dnns)
            if cause := self._images.decode(frame, names):
                self._refuse(frame, names, cause)
                return True
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        return all(
            dnn.submit(frame, None if deadline is None else max(0.0, deadline - time.monotonic())) for dnn in dnns
        )

    def update(
        self, dnn: str, *, priority: int | None = None, deadline_ns: int | None = None, max_age_ns: int | None = None
    ) -> None:
        """Change a DNN's settings at run time; None keeps a value, 0 means no deadline or no maximum age."""
        self._dnns[dnn].update(priority, deadline_ns, max_age_ns)
        self._update_policy()

    def statistics(self) -> Statistics:
        by_dnn_and_camera, disabled = {}, {}
        for name, dnn in self._dnns.items():
            by_camera, reason = dnn.statistics()
            by_dnn_and_camera.update({(name, camera): figures for camera, figures in by_camera.items()})
            if reason is not None:
                disabled[name] = reason
        return Statistics(by_dnn_and_camera, disabled)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no frame is waiting or in progress; False on timeout."""
        deadline = time.monotonic() + timeout_s
        return self._images.wait_idle(timeout_s) and all(
            dnn.wait_idle(max(0.0, deadline - time.monotonic())) for dnn in self._dnns.values()
        )

    def stop(self, timeout_s: float, *, drain: bool = False) -> list[str]:
        """Stop within `timeout_s` seconds, even with jobs queued.

        drain: first finish the waiting frames, for at most 80 % of the time. Unfinished frames are dropped as
        `shutdown`. Returns the names of threads blocked in a call that cannot be interrupted; they are daemon threads
        and change nothing any more.
        """
        deadline = time.monotonic() + timeout_s
        self._started = False
        if drain:
            self._images.wait_idle(0.4 * timeout_s)
        for dnn in self._dnns.values():
            dnn.close(drop_waiting=not drain)
        self._images.close()
        if drain and not self.wait_idle(deadline - 0.2 * timeout_s - time.monotonic()):
            for dnn in self._dnns.values():
                dnn.close(drop_waiting=True)
        for job in self._queue.close():
            job.inference.drop_cause = (DropReason.SHUTDOWN, "the engine stopped while the job was queued")
            job.inference.done(job.inference)
        threads = [thread for thread in self._threads() if thread.ident is not None]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._images.abandon((DropReason.SHUTDOWN, "its image was still being decoded after the engine's stop timeout"))
        for dnn in self._dnns.values():
            dnn.abandon()
        for thread in threads:  # threads that only waited for abandoned frames end immediately
            thread.join(0.1 if thread in self._dnns.values() else 0.0)
        return self.running_threads()

    def launch_ns(self) -> int:
        """CPU time that the threads of the DNNs have spent on running or launching jobs, instead of workers."""
        return sum(runner.launch_ns for runner in self._dnn_runners.values())

    def running_threads(self) -> list[str]:
        """Names of the running threads; after :meth:`stop`, those that hang."""
        return [thread.name for thread in self._threads() if thread.is_alive()]

    def failed_threads(self) -> list[str]:
        """Names of threads that an error ended while the engine is running; the log has the traceback."""
        if not self._started:
            return []
        return [thread.name for thread in self._threads() if thread.ident is not None and not thread.is_alive()]

    def _threads(self) -> list[threading.Thread]:
        return [*self._workers, *self._dnns.values(), self._images]

    def _runner(self, *, waits_for_kernels: bool = False) -> Runner:
        return Runner(
            self._queue,
            self._device,
            self.stream_of,
            self._observer,
            single_call=self._may_run_in_one_call,
            waits_for_kernels=waits_for_kernels,
        )

    def _may_run_in_one_call(self, successor: Job) -> bool:
        """Whether a frame on a CPU may run as one call instead of job by job. `successor`: its second job.

        One call cannot be preempted. It is allowed if no queued job comes before the frame's jobs, and if either every
        DNN, each with at most one inference in progress, has a worker of its own or no other DNN's frame may overtake
        this one.

        One call costs less than separate jobs. If the DNN cannot keep up with its cameras, its frame therefore runs in
        one call even where it would take turns with queued jobs, if that delays none of their inferences. In all other
        cases taking turns is better, because it keeps all workers busy until the last of the frames that have arrived
        together is finished.
        """
        task = successor.inference.task
        if not self._queue.precedes_all_queued(successor) and not (
            self._dnns[task.name].has_waiting and self._queue.delays_no_inference(successor)
        ):
            return False
        tasks = [dnn.task for dnn in self._dnns.values()]
        return len(self._workers) >= len(tasks) or not any(
            self._policy.may_overtake(other, task) for other in tasks if other.name != task.name
        )

    def _update_policy(self) -> None:
        """Recompute what depends on the tasks' priorities and deadlines."""
        tasks = [dnn.task for dnn in self._dnns.values()]
        self._stream_priorities = stream_priorities(task.priority for task in tasks)
        if self._is_bounded:
            self._queue.bound_launches(tasks)

    def stream_of(self, dnn: tuple[str, int, int]) -> torch.cuda.Stream:
        """The stream of a DNN, by its name, number of SMs and priority. Created by the first thread that needs it."""
        name, sms, priority = dnn
        # A frame may have started before its DNN's priority changed; streams on a share of the SMs have no priority.
        key = name, sms, 0 if sms else self._stream_priorities.get(priority, 0)
        if key not in self._streams:
            with self._streams_lock:
                if key not in self._streams:
                    self._streams[key] = make_stream(self._device, sms, key[2])
        return self._streams[key]

    def _dnns_of(self, camera: str) -> list[DnnThread]:
        try:
            return self._dnns_by_camera[camera]
        except KeyError:
            raise ValueError(f"no DNN serves camera '{camera}'; served cameras: {', '.join(self.cameras)}") from None


def _check(tasks: Sequence[DnnTask], workers: int, max_launched: int | None) -> None:
    names = [task.name for task in tasks]
    if not tasks or len(set(names)) < len(names):
        raise ValueError(f"DNNs are {names}: must be at least one, with unique names")
    for task in tasks:
        if not task.stages or not task.cameras:
            raise ValueError(
                f"DNN '{task.name}' has {len(task.stages)} stages and cameras {task.cameras}; neither may be empty"
            )
        if task.specialize is not None and task.batches:
            raise ValueError(f"DNN '{task.name}' has both specialize and batches; specialize requires single images")
        if task.remaining_ns is not None and len(task.remaining_ns) != len(task.stages):
            raise ValueError(
                f"DNN '{task.name}' has remaining_ns of {len(task.remaining_ns)} jobs, but {len(task.stages)} stages"
            )
    if workers < 1:
        raise ValueError(f"workers is {workers}; must be at least 1")
    if max_launched is not None and max_launched < 1:
        raise ValueError(f"max_launched is {max_launched}; must be at least 1, or None")
