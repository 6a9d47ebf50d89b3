"""Executors: wait until entities are ready and run their callbacks, in one thread or several.

An executor waits on one DDS wait set to which the conditions of all its entities are attached; new entities, timers,
simulated time, signals and shutdown wake it through a guard condition. There is no polling.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Final

from multi_dnn_ros.standalone.context import Context, get_default_context
from multi_dnn_ros.standalone.entities import Waitable, Work
from multi_dnn_ros.standalone.futures import Future, Task
from multi_dnn_ros.standalone.missing import Surface
from multi_dnn_ros.standalone.wait_set import ExecutorWaitSet

if TYPE_CHECKING:
    from multi_dnn_ros.standalone.node import Node

_FOREVER_NS: Final = 2**63 - 1


class TimeoutException(Exception):
    """A wait timed out."""


class ShutdownException(Exception):
    """The executor was shut down."""


class ExternalShutdownException(Exception):
    """The context was shut down externally, for example by a signal."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*(args or ("The passed context is no longer ok",)))


class _Claim:
    """Work that an executor has taken. Until :meth:`release`, its callback group counts the callback as running."""

    def __init__(self, executor: Executor, work: Work, entity: Waitable | None = None) -> None:
        self._executor = executor
        self._work = work
        self._entity = entity

    def run(self) -> None:
        """Run the work, then release the callback group; a coroutine releases it when it ends."""
        result = None
        try:
            result = self._work()
        finally:
            if not inspect.iscoroutine(result):
                self.release()
        if inspect.iscoroutine(result):
            self._executor.adopt(Task(result), self.release)

    def release(self) -> None:
        """Mark the callback as ended in its callback group."""
        if self._entity is not None and self._entity.callback_group is not None:
            self._entity.callback_group.ending_execution(self._entity)


class Executor(Surface):
    """Base of the executors; `spin()` runs callbacks until the context is shut down."""

    def __init__(self, *, context: Context | None = None) -> None:
        self._context = context or get_default_context()
        self._wait_set = ExecutorWaitSet(self._context)
        self._nodes: list[Node] = []
        self._lock = threading.RLock()
        self._ready: deque[Waitable] = deque()
        self._tasks: list[Task] = []  # tasks that can run now
        self._task_round: deque[Task] = deque()
        self._ends: dict[Task, Callable[[], None]] = {}  # called when the task has ended
        self._task_is_next = True
        self._is_shutdown = False
        self._context.add_waker(self)

    @property
    def context(self) -> Context:
        """The context whose nodes this executor runs."""
        return self._context

    def wake(self) -> None:
        """Interrupt a wait, so that the executor checks for work again."""
        self._wait_set.wake()

    def close(self) -> None:
        """Free the wait set; called at the end of the context."""
        self._wait_set.close()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()

    def create_task(self, callback: Any, *args: Any, **kwargs: Any) -> Task:
        """Run `callback(*args, **kwargs)`, or a coroutine, while spinning; return the future of its result."""
        task = Task(callback, args, kwargs, executor=self)
        self._schedule(task)
        return task

    def adopt(self, task: Task, end: Callable[[], None]) -> None:
        """Start a task now and continue it while spinning; call `end()` when it has ended."""
        self._ends[task] = end
        self._run_task(task)

    def _schedule(self, task: Task) -> None:
        with self._lock:
            self._tasks.append(task)
        self.wake()

    def _run_task(self, task: Task) -> None:
        task()
        if task.done():
            end = self._ends.pop(task, None)
            if end is not None:
                end()
                self.wake()  # work waiting for this callback group may run now
            if task.exception() is not None:
                raise task.exception()
        elif task.awaits is None:
            self._schedule(task)
        else:
            task.awaits.resume_when_done(lambda: self._schedule(task))

    def add_node(self, node: Node) -> bool:
        """Add a node whose callbacks to run; return False if it was already added."""
        if node.context is not self._context:
            raise RuntimeError(f"node {node.get_fully_qualified_name()} belongs to another context than the executor")
        with self._lock:
            if node in self._nodes:
                return False
            self._nodes.append(node)
        node.executor = self
        self.wake()
        return True

    def remove_node(self, node: Node) -> None:
        """Stop running a node's callbacks."""
        with self._lock:
            if node not in self._nodes:
                return
            self._nodes.remove(node)
        if node.executor is self:
            node.executor = None
        self.wake()

    def get_nodes(self) -> list[Node]:
        """Return the nodes whose callbacks this executor runs."""
        with self._lock:
            return list(self._nodes)

    def shutdown(self, timeout_sec: float | None = None) -> bool:
        """End the executor; return whether all callbacks ended within the timeout."""
        self._is_shutdown = True
        self.wake()
        for node in self.get_nodes():
            self.remove_node(node)
        self._wait_set.close()
        return True

    def spin(self) -> None:
        """Run callbacks until the context or the executor is shut down.

        Raises:
            ExternalShutdownException: if the context was shut down, for example by a signal.
        """
        while self._context.ok() and not self._is_shutdown:
            self.spin_once()

    def spin_once(self, timeout_sec: float | None = None) -> None:
        """Run one callback, or none on timeout; None or a negative timeout waits indefinitely."""
        raise NotImplementedError

    def spin_until_future_complete(self, future: Future, timeout_sec: float | None = None) -> None:
        """Run callbacks until the future is done, the timeout expires, or the context is shut down.

        A timeout of 0 runs one callback that is ready, if there is one.
        """
        future.add_done_callback(lambda _: self.wake())
        deadline = _deadline(timeout_sec)
        left = timeout_sec
        while self._context.ok() and not self._is_shutdown and not future.done():
            self._spin_once(left, future.done)
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    return

    def spin_once_until_future_complete(self, future: Future, timeout_sec: float | None = None) -> None:
        """Run one callback, or none if the future is done or the timeout expires first."""
        future.add_done_callback(lambda _: self.wake())
        self._spin_once(timeout_sec, future.done)

    def _spin_once(self, timeout_sec: float | None, stop: Callable[[], bool]) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------------- waiting

    def _next(self, timeout_sec: float | None, stop: Callable[[], bool], has_room: Callable[[], bool]) -> _Claim | None:
        """Return the next work that its callback group allows to run; None on timeout, or if `stop()` is true."""
        deadline = _deadline(timeout_sec)
        ready: list[Waitable] | None = None  # as found by the last wait; None: there was none yet
        while not stop():
            if not self._context.ok():
                raise ExternalShutdownException
            if self._is_shutdown:
                raise ShutdownException
            waitables = [entity for node in self.get_nodes() for entity in node.waitables]
            room = has_room()
            found = self._claim(waitables, ready) if room else None
            if found is not None:
                return found
            left_ns = _FOREVER_NS if deadline is None else max(int((deadline - time.monotonic()) * 1e9), 0)
            if left_ns == 0 and ready is not None:
                return None
            if room:
                ready = self._wait_for(waitables, 0 if self._tasks or self._task_round else left_ns)
            else:
                ready = self._wait_for([], left_ns)
        return None

    def _wait_for(self, waitables: list[Waitable], timeout_ns: int) -> list[Waitable]:
        """Wait until an entity is ready; return all that are. Without a wait if one is ready already."""
        by_condition: dict[Any, Waitable] = {}
        others: list[Waitable] = []  # not in the wait set
        for entity in waitables:
            group = entity.callback_group
            if group is not None and not group.can_execute(entity):
                others.append(entity)  # its group is busy; the executor wakes when the running callback ends
            elif entity.condition is not None:
                by_condition[entity.condition] = entity
            else:
                others.append(entity)
                due_ns = entity.nanoseconds_until_ready()
                if due_ns is not None and due_ns < timeout_ns:
                    timeout_ns = due_ns
        triggered = self._wait_set.wait(by_condition.keys(), timeout_ns)
        if triggered is None:
            return [entity for entity in waitables if entity.is_ready()]
        # One call into DDS checks all conditions: there are dozens, and this runs before each callback.
        ready = [entity for entity in others if entity.is_ready()]
        ready += [by_condition[condition] for condition in triggered]
        return ready

    def _claim(self, waitables: list[Waitable], ready: list[Waitable] | None) -> _Claim | None:
        # Each round serves all entities that were ready at its start, so that a busy one cannot starve the others.
        # Tasks and entities alternate, so that a coroutine that never waits cannot starve the entities.
        with self._lock:
            if ready is None:
                self._task_is_next = not self._task_is_next
                return (self._claim_task() if self._task_is_next else None) or self._claim_ready(waitables)
            self._ready.extend(ready)
            return self._claim_ready(waitables) or self._claim_task()

    def _claim_task(self) -> _Claim | None:
        # As in rclpy: newest first, and every task runs once before any of them runs a second time.
        if not self._task_round:
            self._task_round.extend(reversed(self._tasks))
            self._tasks.clear()
        return _Claim(self, functools.partial(self._run_task, self._task_round.popleft())) if self._task_round else None

    def _claim_ready(self, waitables: list[Waitable]) -> _Claim | None:
        while self._ready:
            entity = self._ready.popleft()
            claim = self._claim_one(entity) if entity in waitables else None
            if claim is not None:
                return claim
        return None

    def _claim_one(self, entity: Waitable) -> _Claim | None:
        group = entity.callback_group
        if group is not None and not group.beginning_execution(entity):
            return None
        work = None
        try:
            work = entity.take()
        finally:
            if work is None and group is not None:
                group.ending_execution(entity)
        return None if work is None else _Claim(self, work, entity)


class SingleThreadedExecutor(Executor):
    """Runs callbacks sequentially in the spinning thread."""

    def spin_once(self, timeout_sec: float | None = None) -> None:
        """Run one callback, or none on timeout."""
        self._spin_once(timeout_sec, _never)

    def _spin_once(self, timeout_sec: float | None, stop: Callable[[], bool]) -> None:
        with contextlib.suppress(ShutdownException):
            claim = self._next(timeout_sec, stop, _always)
            if claim is not None:
                claim.run()


class MultiThreadedExecutor(Executor):
    """Runs callbacks in a thread pool, as their callback groups allow.

    A message is taken only when a thread is free. Until then it stays in the queue of its subscription; the depth of
    the queue limits the number of waiting messages, and newer messages replace older ones.
    """

    def __init__(self, num_threads: int | None = None, *, context: Context | None = None) -> None:
        super().__init__(context=context)
        if num_threads is None:
            num_threads = len(os.sched_getaffinity(0))
        if num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, not {num_threads}")
        if num_threads == 1:
            warnings.warn(
                "MultiThreadedExecutor is used with a single thread.\nUse the SingleThreadedExecutor instead.",
                stacklevel=2,
            )
        self._num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="rclpy executor")
        self._running: set[ThreadFuture[None]] = set()
        self._failures: deque[BaseException] = deque()

    def spin_once(self, timeout_sec: float | None = None) -> None:
        """Start one callback, or none on timeout; raises the exception of an earlier callback."""
        self._spin_once(timeout_sec, _never)

    def _spin_once(self, timeout_sec: float | None, stop: Callable[[], bool]) -> None:
        with contextlib.suppress(ShutdownException, ExternalShutdownException):
            claim = self._next(timeout_sec, lambda: bool(self._failures) or stop(), self._has_room)
            if claim is not None:
                self._start(claim)
        if self._failures:
            raise self._failures.popleft()

    def _start(self, claim: _Claim) -> None:
        with self._lock:
            try:
                future = self._pool.submit(claim.run)
            except RuntimeError:
                claim.release()
                if self._is_shutdown or not self._context.ok():  # another thread has shut it down
                    raise ShutdownException from None
                raise
            self._running.add(future)
        future.add_done_callback(self._ended)

    def _has_room(self) -> bool:
        return len(self._running) < self._num_threads

    def _ended(self, future: ThreadFuture[None]) -> None:
        with self._lock:
            self._running.discard(future)
            error = None if future.cancelled() else future.exception()
            if error is not None:
                self._failures.append(error)
        self.wake()

    def shutdown(self, timeout_sec: float | None = None) -> bool:
        """End the executor; wait for running callbacks, and return whether they ended within the timeout."""
        super().shutdown(timeout_sec)
        self._pool.shutdown(wait=False)
        with self._lock:
            running = set(self._running)
        # Check the futures, not the set: a future leaves the set a moment after its callback ended.
        if wait(running, None if timeout_sec is None or timeout_sec < 0 else timeout_sec).not_done:
            return False
        self._pool.shutdown(wait=True)
        return True

    def close(self) -> None:
        """Free the wait set and end the pool's threads; called at the end of the context."""
        super().close()
        self._pool.shutdown(wait=False)


def _never() -> bool:
    return False


def _always() -> bool:
    return True


def _deadline(timeout_sec: float | None) -> float | None:
    return None if timeout_sec is None or timeout_sec < 0 else time.monotonic() + timeout_sec
