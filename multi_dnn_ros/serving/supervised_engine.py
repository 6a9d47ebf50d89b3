"""An engine as the node's process sees it: its phase, the frames offered to it, and where its messages go."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, Protocol

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving import messages
from multi_dnn_ros.serving.descriptions import EngineDescription
from multi_dnn_ros.serving.engine_state import EngineState
from multi_dnn_ros.serving.ledger import Ledger
from multi_dnn_ros.serving.slots import Slot, SlotPool
from multi_dnn_ros.vision.jpeg_file import JpegFile

log = logging.getLogger(__name__)


class Engine(Protocol):
    """An engine in a process of its own (:class:`multi_dnn_ros.serving.engine_process.EngineProcess`) or in this one
    (:class:`multi_dnn_ros.serving.local_engine.InProcessEngine`).
    """

    pid: int
    state: EngineState

    def send(self, message: Any) -> None: ...

    def kill(self, cause: str) -> None: ...

    def wait(self, timeout_s: float) -> bool: ...


#: (label, dnns, pools, on_message) -> a running engine, which calls on_message with each of its messages.
MakeEngine = Callable[[str, Sequence[str], Mapping[str, SlotPool], Callable[[Any], None]], Engine]
#: Engines and the messages that are not about frames, in the order of their arrival.
Events = queue.SimpleQueue[tuple["SupervisedEngine | None", Any]]


class Phase(Enum):
    """Progress of an engine."""

    STARTING = "starting"  # imports its modules
    READY = "imports done"
    CONFIGURING = "configuring"
    CONFIGURED = "configured"
    SERVING = "serving"
    STOPPING = "stopping"  # finishes its frames, then it is CONFIGURED again
    DRAINING = "draining"  # finishes its frames, then it is killed
    KILLED = "killed"  # not ended yet


#: Phases in which a heartbeat is required, because nothing is imported or compiled.
HEARTBEAT_PHASES = (Phase.CONFIGURED, Phase.SERVING, Phase.STOPPING, Phase.DRAINING)


class SupervisedEngine:
    """Starts the engine. Raises OSError if that fails.

    device: its name. events: gets its messages that are not about frames. dnns: the DNNs that it is, or is being,
    configured for. description: once configured. memory: bytes by name, as last reported. heartbeat_since_ns: since
    when a heartbeat is required.
    """

    def __init__(
        self,
        make: MakeEngine,
        label: str,
        device: str,
        dnns: Sequence[str],
        pools: Mapping[str, SlotPool],
        events: Events,
    ) -> None:
        self.device = device
        self.phase = Phase.STARTING
        self.since_ns = self.heartbeat_since_ns = self.started_ns = time.monotonic_ns()
        self.dnns: tuple[str, ...] = ()
        self.description: EngineDescription | None = None
        self.memory: Mapping[str, int] = {}
        self._events = events
        self._ledger: Ledger | None = None
        self._offering = threading.Lock()  # held until an accepted frame is sent: no frame may follow Stop
        self._accepts = False
        self._engine = make(label, dnns, pools, self._on_message)

    @property
    def pid(self) -> int:
        return self._engine.pid

    @property
    def state(self) -> EngineState:
        return self._engine.state

    @property
    def accepts(self) -> bool:
        """Whether it serves and has not ended."""
        return self._accepts

    @property
    def is_unbound(self) -> bool:
        """Whether it is not bound to particular DNNs yet."""
        return self.phase in (Phase.STARTING, Phase.READY)

    def enter(self, phase: Phase, now_ns: int) -> None:
        """Begin a phase."""
        if self.phase not in HEARTBEAT_PHASES:
            self.heartbeat_since_ns = now_ns
        self.phase, self.since_ns = phase, now_ns

    def send(self, message: Any) -> None:
        self._engine.send(message)

    def start_serving(self, ledger: Ledger, runtime: Mapping[str, Mapping[str, Any]]) -> None:
        """Let the engine serve; its answers go to `ledger`. runtime: by DNN, its runtime parameters."""
        self._ledger = ledger
        self.send(messages.Start({dnn: dict(values) for dnn, values in runtime.items()}))
        self._accepts = True

    def stop_serving(self, timeout_s: float) -> None:
        """Let the engine finish its frames; from now on :meth:`offer` returns False."""
        with self._offering:
            self._accepts = False
            self.send(messages.Stop(timeout_s))

    def offer(self, number: int, frame: Frame, slot: Slot, dnns: Iterable[str]) -> bool:
        """Send a frame to these DNNs; False: the engine has ended, or is finishing its frames."""
        source, (height, width) = frame.source, frame.size
        jpeg_bytes = source.data.nbytes if isinstance(source, JpegFile) else 0
        offer = messages.Offer(
            number, frame.camera, slot.index, height, width, frame.stamp_ns, frame.received_ns, frame.decode_ns,
            tuple(dnns), jpeg_bytes,
        )  # fmt: skip
        with self._offering:
            if not self._accepts or self._ledger is None:
                return False
            self._ledger.hand_over(number, dnns, self)
            self.send(offer)
        return True

    def kill(self, cause: str) -> None:
        """End the engine; its frames are dropped at once."""
        with self._offering:
            self._accepts = False
        self._engine.kill(cause)
        if self._ledger is not None:
            self._ledger.engine_lost(self, cause)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the engine has ended; False on timeout."""
        return self._engine.wait(timeout_s)

    # -- in the engine's reader thread

    def _on_message(self, message: Any) -> None:
        ledger = self._ledger
        if isinstance(message, messages.FrameResult):
            self._on_result(message)
        elif isinstance(message, messages.FrameDropped):
            if ledger is not None:
                ledger.drop(message.number, message.dnn, message.reason, message.message, self)
        elif isinstance(message, messages.Failed):
            if ledger is not None:
                # An engine that is finishing its frames must not disable a DNN that another one has taken over.
                failure = message.failure
                ledger.failure(failure if self._accepts else replace(failure, disabled=False))
        elif isinstance(message, messages.Logged):
            logging.getLogger(message.name).log(message.level, "%s", message.text)
        else:
            if isinstance(message, messages.Ended):  # it no longer reads any slot
                with self._offering:
                    self._accepts = False
                if ledger is not None:
                    ledger.engine_ended(self, message.cause)
            self._events.put((self, message))

    def _on_result(self, result: messages.FrameResult) -> None:
        ledger = self._ledger
        buffer = None if ledger is None else ledger.buffer(result.number, result.dnn, self)
        if ledger is None or buffer is None:
            return
        try:
            output = messages.unpack(result, buffer.output(result.dnn))
        except Exception as error:  # unpickling raises arbitrary errors
            log.exception("a result of DNN %s cannot be unpickled; the frame is dropped as bad_output", result.dnn)
            reason = f"the result cannot be unpickled: {type(error).__name__}: {error}"
            ledger.drop(result.number, result.dnn, DropReason.BAD_OUTPUT, reason, self)
        else:
            ledger.result(result.number, result.dnn, output, result.timing, self)
