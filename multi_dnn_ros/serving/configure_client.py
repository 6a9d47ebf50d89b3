"""Checks the settings and configures the DNNs in an engine process, before that process is supervised."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from multi_dnn_ros.serving import wire
from multi_dnn_ros.serving.host import Build, Cancelled, ConfigureError, EngineDescription, Progress
from multi_dnn_ros.serving.process_end import End
from multi_dnn_ros.serving.served_process import MakeProcess, ServedProcess
from multi_dnn_ros.serving.slots import SlotPool
from multi_dnn_ros.serving.supervision.hang_detector import is_stopped
from multi_dnn_ros.settings.schema import NodeConfig

Answer = TypeVar("Answer")

_POLL_S = 0.05


class ConfigureClient:
    """Starts the process. Raises OSError if that fails.

    make, label, dnns, pools: see ServedProcess. is_cancelled: whether every wait has to end. stopped_timeout_s: how
    long the process may be stopped by a signal before it is killed.
    """

    def __init__(
        self,
        make: MakeProcess,
        label: str,
        dnns: Sequence[str],
        pools: Mapping[str, SlotPool],
        is_cancelled: Callable[[], bool],
        stopped_timeout_s: float,
    ) -> None:
        self._is_cancelled = is_cancelled
        self._stopped_timeout_s = stopped_timeout_s
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._receiver: Callable[[ServedProcess, Any], None] | None = None
        self.process = ServedProcess(make, label, dnns, pools, self._on_message)

    def place(
        self, config: NodeConfig, build: Build, progress: Callable[[Progress], None]
    ) -> Mapping[str, tuple[str, ...]]:
        """The devices of each DNN, by name. Raises ConfigureError and Cancelled."""
        self.process.send(wire.Place(config, build))
        return self._answer("choosing the devices", wire.Placed, progress).devices

    def configure(
        self, config: NodeConfig, build: Build, progress: Callable[[Progress], None], timed: Sequence[str] = ()
    ) -> EngineDescription:
        """Configure all DNNs. timed: DNNs whose time per frame is measured. Raises ConfigureError and Cancelled."""
        self.process.send(wire.Configure(config, tuple(config.dnns), build, timed=tuple(timed)))
        return self._answer("configuring", wire.Configured, progress).description

    def hand_over(self, receiver: Callable[[ServedProcess, Any], None]) -> None:
        """Pass the messages that were not read yet, and all further ones, to `receiver`."""
        with self._lock:
            while not self._messages.empty():
                receiver(self.process, self._messages.get())
            self._receiver = receiver

    def _on_message(self, process: ServedProcess, message: Any) -> None:
        """Called in the process's reader thread."""
        with self._lock:
            if self._receiver is None:
                self._messages.put(message)
            else:
                self._receiver(process, message)

    def _answer(self, activity: str, kind: type[Answer], progress: Callable[[Progress], None]) -> Answer:
        while True:
            message = self._next(activity)
            if isinstance(message, wire.Progressed):
                progress(message.progress)
            elif isinstance(message, wire.Refused):
                raise ConfigureError(message.text, expected=message.expected)
            elif isinstance(message, kind):
                return message

    def _next(self, activity: str) -> Any:
        last_running_s = time.monotonic()
        while True:
            if self._is_cancelled():
                raise Cancelled
            try:
                message = self._messages.get(timeout=_POLL_S)
            except queue.Empty:
                if not is_stopped(self.process.pid):
                    last_running_s = time.monotonic()
                elif time.monotonic() - last_running_s > self._stopped_timeout_s:
                    self.process.kill(f"stopped by a signal for more than {self._stopped_timeout_s:g} s")
                continue
            if isinstance(message, End):
                tail = f"\n{message.output_tail}" if message.output_tail else ""
                raise ConfigureError(f"the engine process ended while {activity}: {message.cause}{tail}")
            return message
