"""The process of one or more units: answers requests until the connection is closed."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.partition import messages
from multi_dnn_ros.partition.blocks import BlockForm, receive_block
from multi_dnn_ros.partition.checked_executor import CheckedExecutor, ExecutorError
from multi_dnn_ros.partition.executor import Array, Executor, RunTimes, executor_class, random_images
from multi_dnn_ros.planning.batch_units import Unit
from multi_dnn_ros.planning.memory_errors import is_memory_error

_WARM_UP = 2


def main(units: Sequence[tuple[Unit, Connection[Any, Any]]]) -> None:
    """Answer the requests of all units until their connections are closed.

    Networks are loaded and prepared in the main thread, one after another: PyTorch 2.11 crashes in torch.export if two
    threads of a process use it, and nothing else may allocate while a CUDA graph is captured. Several units run their
    batches at the same time, each in a thread of its own. A single unit runs in the main thread, as PyTorch's number of
    threads is set per calling thread.
    """
    # Ctrl-C reaches the whole process group; the command closes the connection.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Any: wait() is typed for sockets and handles too.
    servers: dict[Any, _Server] = {connection: _Server(unit, connection) for unit, connection in units}
    runners: dict[Any, ThreadPoolExecutor] = {}
    if len(units) > 1:
        runners = {connection: ThreadPoolExecutor(1, thread_name_prefix=unit.name) for unit, connection in units}
    while servers:
        ready: list[Any] = wait(list(servers))
        for connection in ready:
            try:
                request: messages.Request = connection.recv()
            except (EOFError, OSError):
                del servers[connection]
                continue
            answer = servers[connection].answer
            if isinstance(request, messages.Run) and runners:
                runners[connection].submit(answer, request)
            else:
                answer(request)
    for runner in runners.values():
        runner.shutdown()


class _Server:
    def __init__(self, unit: Unit, connection: Connection[Any, Any]) -> None:
        self._unit = unit
        self._connection = connection
        self._executor: CheckedExecutor | None = None
        self._inputs: Array | None = None
        self._outputs: tuple[Array, ...] = ()

    def answer(self, request: messages.Request) -> None:
        """Carry out a request and send the reply. Does nothing further if the connection is closed."""
        reply: messages.Reply
        try:
            reply = self._answer(request)
        except (Exception, SystemExit) as error:  # whatever an executor of another package raises
            reply = messages.Failed(summarize_error(error), is_memory_error(error))
        with contextlib.suppress(OSError):
            self._connection.send(reply)

    def _answer(self, request: messages.Request) -> messages.Reply:
        if isinstance(request, messages.Attach):
            return self._attach(request)
        if isinstance(request, messages.Open):
            created: Executor = executor_class(self._unit)(self._unit, request.network, request.precision)
            self._executor = opened = CheckedExecutor(created)
            return messages.Opened(
                opened.device, opened.shape, opened.image_dtype, opened.parameters, opened.tolerance
            )  # fmt: skip
        executor = self._executor
        if executor is None:
            raise RuntimeError(f"{self._unit.name} received {type(request).__name__} before Open")
        if isinstance(request, messages.Prepare):
            return messages.Prepared(executor.prepare(request.batch))
        if isinstance(request, messages.Run):
            return self._run(executor, request)
        return self._measure(executor, request)

    def _attach(self, request: messages.Attach) -> messages.Reply:
        # Receive all blocks first: they are part of the message stream.
        arrays = [receive_block(self._connection, form) for form in (request.inputs, *request.outputs)]
        self._inputs, self._outputs = arrays[0], tuple(arrays[1:])
        if self._executor is not None:
            self._executor.attach(self._inputs, self._outputs)
        return messages.Attached()

    def _run(self, executor: CheckedExecutor, request: messages.Run) -> messages.Ran:
        if self._inputs is None:
            raise RuntimeError(f"{self._unit.name} received Run before its images were attached")
        part = slice(request.first, request.first + request.count)
        begin = time.monotonic_ns()
        times = executor.run(self._inputs[part], tuple(output[part] for output in self._outputs))
        return messages.Ran(begin, time.monotonic_ns(), times)

    def _measure(self, executor: CheckedExecutor, request: messages.Measure) -> messages.Measured:
        from multi_dnn_ros.partition.blocks import Block

        images = Block(BlockForm((request.batch, *executor.shape), executor.image_dtype))
        images.array[:] = random_images(executor.shape, request.batch)
        blocks = [images]
        if request.transfer:
            executor.attach(images.array, ())
        else:
            forms = executor.prepare(request.batch)
            blocks += [Block(BlockForm((request.batch, *form.shape), form.dtype)) for form in forms]
            executor.attach(images.array, tuple(block.array for block in blocks[1:]))
        outputs = tuple(block.array for block in blocks[1:])
        for output in outputs:
            if np.issubdtype(output.dtype, np.inexact):
                output[:] = np.nan  # an executor that writes nothing is noticed

        def once() -> RunTimes:
            return executor.transfer(images.array) if request.transfer else executor.run(images.array, outputs)

        begin = time.monotonic()
        for _ in range(_WARM_UP):
            once()
            if time.monotonic() - begin > request.limit_s / 2:
                break
        samples: list[RunTimes] = []
        begin = time.monotonic()
        while len(samples) < request.samples:
            if len(samples) >= request.min_samples and time.monotonic() - begin > request.limit_s:
                break
            samples.append(once())
        _check_finite(outputs)
        for block in blocks:
            block.close()
        return messages.Measured(tuple(samples))


def _check_finite(outputs: Sequence[Array]) -> None:
    """Raise ExecutorError for an output with NaN or infinite values, which the node would drop, too."""
    for index, output in enumerate(outputs):
        share = 1.0 - float(np.isfinite(output).mean()) if output.size else 0.0
        if share:
            raise ExecutorError(
                f"{100.0 * share:.3g} % of the values of its output {index} for {len(output)} random images are NaN or "
                "infinite, or were not written; allowed: finite values"
            )
