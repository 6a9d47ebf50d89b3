"""An engine process with the frames that it has: its answers go to the accounts, all else to whoever supervises it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving import wire
from multi_dnn_ros.serving.accounts import Accounts
from multi_dnn_ros.serving.board import Board
from multi_dnn_ros.serving.ledger import Ledger
from multi_dnn_ros.serving.process_end import End
from multi_dnn_ros.serving.slots import Slot, SlotPool

log = logging.getLogger(__name__)


class Process(Protocol):
    """The handle: :class:`multi_dnn_ros.serving.engine_process.EngineProcess`."""

    pid: int
    board: Board

    def send(self, message: Any) -> None: ...

    def kill(self, cause: str) -> None: ...

    def wait(self, timeout_s: float) -> bool: ...


#: (label, dnns, pools, on_message, on_end) -> Process, which runs.
MakeProcess = Callable[
    [str, Sequence[str], Mapping[str, SlotPool], Callable[[Any, Any], None], Callable[[Any, Any], None]], Process
]


class FirstAnswer:
    """The process has answered for the first time since it began to serve."""


class ThreadsEnded:
    """Threads of its engine ended by an error. names: of them."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names


class ServedProcess:
    """Spawns the process at once; OSError when that fails.

    tell: told of each message that is not an answer, and of the End last; called in the process's reader thread.
    """

    def __init__(
        self,
        make: MakeProcess,
        label: str,
        dnns: Sequence[str],
        pools: Mapping[str, SlotPool],
        tell: Callable[[ServedProcess, Any], None],
    ) -> None:
        self._tell = tell
        self.memory: Mapping[str, int] = {}
        self.begun_ns = time.monotonic_ns()
        self.answer_ns: int | None = None  # of its last answer
        self._answers = 0  # since it began to serve
        self._accounts: Accounts | None = None
        self._ledger = Ledger()
        self._process = make(label, dnns, pools, self._on_message, self._on_end)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def board(self) -> Board:
        return self._process.board

    @property
    def gone(self) -> bool:
        """Whether it was reaped, though it may not be replaced yet."""
        return self._ledger.closed

    def begin(self, accounts: Accounts, runtime: Mapping[str, Mapping[str, Any]]) -> None:
        """Let it serve; what it answers goes to these accounts."""
        self._accounts = accounts
        self._answers = 0
        self.send(wire.Start(runtime))

    def send(self, message: Any) -> None:
        """Never raises and never blocks for long."""
        self._process.send(message)

    def kill(self, cause: str) -> None:
        self._process.kill(cause)

    def wait(self, timeout_s: float) -> bool:
        """Until it is reaped; False when it takes longer."""
        return self._process.wait(timeout_s)

    def offer(self, number: int, frame: Frame, slot: Slot, dnns: tuple[str, ...]) -> bool:
        """Hand a decoded frame over; False: the process is gone."""
        if not self._ledger.add(number, slot, dnns):
            return False
        height, width = frame.image().shape[:2]
        self.send(
            wire.Offer(
                number,
                frame.camera,
                slot.index,
                height,
                width,
                frame.stamp_ns,
                frame.received_ns,
                frame.decode_ns,
                dnns,
            )
        )
        return True

    # -- in the reader thread

    def _on_message(self, process: Process, message: Any) -> None:
        if isinstance(message, wire.Answer):
            self._on_answer(message)
        elif isinstance(message, wire.Lost):
            if self._accounts is not None:
                self._accounts.drop(message.number, message.dnn, message.reason, message.message)
            self._ledger.answered(message.number, message.dnn)
        elif isinstance(message, wire.Failed):
            if self._accounts is not None:
                self._accounts.failure(message.failure)
        elif isinstance(message, wire.Logged):
            logging.getLogger(message.name).log(message.level, "%s", message.text)
        elif isinstance(message, wire.Memory):
            self.memory = message.values
            if message.ended:
                self._tell(self, ThreadsEnded(message.ended))
        else:
            self._tell(self, message)

    def _on_answer(self, answer: wire.Answer) -> None:
        buffer = self._ledger.buffer(answer.number, answer.dnn)
        if buffer is None or self._accounts is None:
            return
        try:
            output = wire.unpack(answer, buffer.output(answer.dnn))
        except Exception as error:  # whatever a class that cannot be unpickled raises
            log.exception("a result of DNN %s cannot be read", answer.dnn)
            reason = f"the result cannot be read: {type(error).__name__}: {error}"
            self._accounts.drop(answer.number, answer.dnn, DropReason.BAD_OUTPUT, reason)
        else:
            self._accounts.result(answer.number, answer.dnn, output, answer.timing)
        self._ledger.answered(answer.number, answer.dnn)
        self.answer_ns = time.monotonic_ns()
        self._answers += 1
        if self._answers == 1:
            self._tell(self, FirstAnswer())

    def _on_end(self, process: Process, end: End) -> None:
        """It was reaped: nothing reads its slots any more."""
        accounts = self._accounts
        for number, dnn in self._ledger.close():
            if accounts is not None:
                accounts.drop(number, dnn, DropReason.ENGINE_LOST, end.cause)
        process.board.close()
        self._tell(self, end)
        self._tell = _ignore  # which refers to everything else


def _ignore(process: ServedProcess, message: Any) -> None:
    pass
