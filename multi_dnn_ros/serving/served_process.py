"""An engine process and its unanswered frames: outcomes go to the accounts, other messages to the supervisor."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from multi_dnn_ros.common.jpeg_file import JpegFile
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving import wire
from multi_dnn_ros.serving.outcomes import Outcomes
from multi_dnn_ros.serving.process_end import End
from multi_dnn_ros.serving.result_packing import unpack
from multi_dnn_ros.serving.shared_status import SharedStatus
from multi_dnn_ros.serving.slots import Slot, SlotPool
from multi_dnn_ros.serving.unanswered_frames import UnansweredFrames

log = logging.getLogger(__name__)


class Process(Protocol):
    """The part of :class:`multi_dnn_ros.serving.engine_process.EngineProcess` that is used here."""

    pid: int
    status: SharedStatus

    def send(self, message: Any) -> None: ...

    def kill(self, cause: str) -> None: ...

    def wait(self, timeout_s: float) -> bool: ...


#: (label, dnns, pools, on_message, on_end) -> a running Process.
MakeProcess = Callable[
    [str, Sequence[str], Mapping[str, SlotPool], Callable[[Any, Any], None], Callable[[Any, Any], None]], Process
]


class FirstResult:
    """Message: the process gave its first result since it began to serve."""


class ThreadsEnded:
    """Message: threads of the process's engine ended with an error. names: names of the threads."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names


class ServedProcess:
    """Starts the process. Raises OSError if that fails.

    on_message: receives each message that is not the outcome of a frame, and finally the End; called in the process's
    reader thread.
    memory: bytes by name, as last reported. last_result_ns: time of the last result; None: there was none.
    last_results_ns: the same by DNN. decodes_jpeg: see EngineDescription; False until the process is configured.
    device: begins each line that the process logs; empty: there is only one device.
    """

    def __init__(
        self,
        make: MakeProcess,
        label: str,
        dnns: Sequence[str],
        pools: Mapping[str, SlotPool],
        on_message: Callable[[ServedProcess, Any], None],
    ) -> None:
        self._pass_on = on_message
        self.device = ""
        self.decodes_jpeg = False
        self.memory: Mapping[str, int] = {}
        self.started_ns = time.monotonic_ns()
        self.last_result_ns: int | None = None
        self.last_results_ns: dict[str, int] = {}
        self._results = 0  # since it began to serve
        self._busy_ns = 0  # in which the reader thread passed on messages, without the present one
        self._busy_since_ns: int | None = None
        self._busy_at_stop_ns = 0
        self._accounts: Outcomes | None = None
        self._on_answered: Callable[[], None] = _do_nothing
        self._unanswered = UnansweredFrames()
        self._offering = threading.Lock()  # held until an accepted frame is sent: no frame may follow Stop
        self._process = make(label, dnns, pools, self._on_message, self._on_end)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> SharedStatus:
        return self._process.status

    @property
    def has_ended(self) -> bool:
        """Whether the process was reaped."""
        return self._unanswered.closed

    def busy_s_since_stop(self) -> float:
        """Time since :meth:`stop_serving` in which the reader thread passed on messages and published results, so that
        it read no further message.
        """
        return (self._busy_total_ns() - self._busy_at_stop_ns) / 1e9

    def start_serving(self, accounts: Outcomes, runtime: Mapping[str, Mapping[str, Any]]) -> None:
        """Let the process serve; its results and drops go to `accounts`. runtime: by DNN, its runtime parameters."""
        self._accounts = accounts
        self._results = 0
        self._unanswered.start_accepting()
        self.send(wire.Start(runtime))

    def stop_serving(self, timeout_s: float) -> None:
        """Let the process finish its frames; from now on :meth:`offer` returns False."""
        with self._offering:
            self._busy_at_stop_ns = self._busy_total_ns()
            self._unanswered.stop_accepting()
            self.send(wire.Stop(timeout_s))

    def may_answer(self, dnn: str) -> bool:
        """Whether the process has frames of the DNN without an answer, or may still get some."""
        return self._unanswered.may_answer(dnn)

    def watch(self, on_answered: Callable[[], None]) -> None:
        """Call `on_answered` after each answer and at the end of the process, in its reader thread. It replaces an
        earlier one.
        """
        self._on_answered = on_answered

    def send(self, message: Any) -> None:
        """See :meth:`EngineProcess.send`."""
        self._process.send(message)

    def kill(self, cause: str) -> None:
        self._process.kill(cause)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process is reaped; False on timeout."""
        return self._process.wait(timeout_s)

    def offer(self, number: int, frame: Frame, slot: Slot, dnns: tuple[str, ...]) -> bool:
        """Send a frame to these DNNs; False: the process has ended, or is finishing its frames."""
        source, (height, width) = frame.source, frame.size
        offer = wire.Offer(
            number,
            frame.camera,
            slot.index,
            height,
            width,
            frame.stamp_ns,
            frame.received_ns,
            frame.decode_ns,
            dnns,
            source.data.nbytes if isinstance(source, JpegFile) else 0,
        )
        with self._offering:
            if not self._unanswered.add(number, slot, dnns):
                return False
            self.send(offer)
        return True

    # -- in the reader thread

    def _on_message(self, process: Process, message: Any) -> None:
        begin_ns = self._busy_since_ns = time.monotonic_ns()
        try:
            self._handle(message)
        finally:
            self._busy_since_ns = None
            self._busy_ns += time.monotonic_ns() - begin_ns

    def _busy_total_ns(self) -> int:
        since_ns = self._busy_since_ns  # another thread may set it to None
        return self._busy_ns + (0 if since_ns is None else time.monotonic_ns() - since_ns)

    def _handle(self, message: Any) -> None:
        if isinstance(message, wire.FrameResult):
            self._on_result(message)
        elif isinstance(message, wire.FrameDropped):
            if self._accounts is not None:
                self._accounts.drop(message.number, message.dnn, message.reason, message.message)
            self._unanswered.answered(message.number, message.dnn)
            self._on_answered()
        elif isinstance(message, wire.Failed):
            if self._accounts is not None:
                # A process that is finishing its frames must not disable a DNN that another process has taken over.
                failure = message.failure
                self._accounts.failure(replace(failure, disabled=False) if self._unanswered.is_draining else failure)
        elif isinstance(message, wire.Logged):
            text = f"{self.device}: {message.text}" if self.device else message.text
            logging.getLogger(message.name).log(message.level, "%s", text)
        elif isinstance(message, wire.Report):
            self.memory = message.memory
            if message.ended_threads:
                self._pass_on(self, ThreadsEnded(message.ended_threads))
        else:
            if isinstance(message, wire.Configured):
                self.decodes_jpeg = message.description.decodes_jpeg
            self._pass_on(self, message)

    def _on_result(self, result: wire.FrameResult) -> None:
        buffer = self._unanswered.buffer(result.number, result.dnn)
        if buffer is None or self._accounts is None:
            return
        try:
            output = unpack(result, buffer.output(result.dnn))
        except Exception as error:  # unpickling raises arbitrary errors
            log.exception("a result of DNN %s cannot be unpickled; the frame is dropped as bad_output", result.dnn)
            reason = f"the result cannot be unpickled: {type(error).__name__}: {error}"
            self._accounts.drop(result.number, result.dnn, DropReason.BAD_OUTPUT, reason)
        else:
            self._accounts.result(result.number, result.dnn, output, result.timing)
            if result.large:
                buffer.reserve_output(result.dnn, sum(result.large))
        self.last_result_ns = self.last_results_ns[result.dnn] = time.monotonic_ns()
        self._unanswered.answered(result.number, result.dnn)
        self._on_answered()
        self._results += 1
        if self._results == 1:
            self._pass_on(self, FirstResult())

    def _on_end(self, process: Process, end: End) -> None:
        """The process was reaped, so it no longer reads any slot."""
        accounts = self._accounts
        for number, dnn in self._unanswered.close():
            if accounts is not None:
                accounts.drop(number, dnn, DropReason.ENGINE_LOST, end.cause)
        self._on_answered()
        process.status.close()
        self._pass_on(self, end)
        self._pass_on, self._on_answered, self._accounts = _ignore, _do_nothing, None  # break the reference cycles


def _ignore(process: ServedProcess, message: Any) -> None:
    pass


def _do_nothing() -> None:
    pass
