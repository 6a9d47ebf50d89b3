"""What the node's process says with an engine process before that serves: check the settings, configure."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from multi_dnn_ros.serving import wire
from multi_dnn_ros.serving.host import Build, Cancelled, ConfigureError, Description, Progress
from multi_dnn_ros.serving.process_end import End
from multi_dnn_ros.serving.served_process import MakeProcess, ServedProcess
from multi_dnn_ros.serving.slots import SlotPool
from multi_dnn_ros.serving.watch import stopped
from multi_dnn_ros.settings.schema import NodeConfig

_POLL_S = 0.05


class Conversation:
    """Starts the process; OSError when that fails. make, dnns, pools: see ServedProcess. cancelled: ends every wait.

    stopped_limit_s: how long the process may be stopped by a signal before it is ended.
    """

    def __init__(
        self,
        make: MakeProcess,
        dnns: Sequence[str],
        pools: Mapping[str, SlotPool],
        cancelled: threading.Event,
        stopped_limit_s: float,
    ) -> None:
        self._cancelled = cancelled
        self._stopped_limit_s = stopped_limit_s
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._tell: Callable[[ServedProcess, Any], None] | None = None
        self.process = ServedProcess(make, "engine 1", dnns, pools, self._told)

    def check(self, config: NodeConfig) -> Sequence[str]:
        """Problems, a line each. ConfigureError when the process ends; Cancelled."""
        self.process.send(wire.Check(config))
        while True:
            message = self._next("checking the parameters")
            if isinstance(message, wire.Checked):
                return message.problems

    def configure(self, config: NodeConfig, build: Build, progress: Callable[[Progress], None]) -> Description:
        """Make all DNNs ready. ConfigureError, Cancelled."""
        self.process.send(wire.Configure(config, tuple(config.dnns), build))
        while True:
            message = self._next("configuring")
            if isinstance(message, wire.Progressed):
                progress(message.progress)
            elif isinstance(message, wire.Refused):
                raise ConfigureError(message.text, expected=message.expected)
            elif isinstance(message, wire.Configured):
                return message.description

    def hand_over(self, tell: Callable[[ServedProcess, Any], None]) -> None:
        """From now on its messages go there, those that nobody has read first."""
        with self._lock:
            while not self._messages.empty():
                tell(self.process, self._messages.get())
            self._tell = tell

    def _told(self, process: ServedProcess, message: Any) -> None:
        """Called in the process's reader thread."""
        with self._lock:
            if self._tell is None:
                self._messages.put(message)
            else:
                self._tell(process, message)

    def _next(self, doing: str) -> Any:
        running_s = time.monotonic()
        while True:
            if self._cancelled.is_set():
                raise Cancelled
            try:
                message = self._messages.get(timeout=_POLL_S)
            except queue.Empty:
                if not stopped(self.process.pid):
                    running_s = time.monotonic()
                elif time.monotonic() - running_s > self._stopped_limit_s:
                    self.process.kill(f"stopped by a signal for more than {self._stopped_limit_s:g} s")
                continue
            if isinstance(message, End):
                tail = f"\n{message.stderr_tail}" if message.stderr_tail else ""
                raise ConfigureError(f"the engine process ended while {doing}: {message.cause}{tail}")
            return message
