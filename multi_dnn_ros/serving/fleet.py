"""The engine processes of one device while they are supervised: events in, what :mod:`supervision` decides carried out.

One thread supervises. It and the callers of `start`, `stop` and `close` act under one lock, which is never held while
waiting for an engine. Offers read a table (:mod:`multi_dnn_ros.serving.routes`) and take no lock of this module.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving import wire
from multi_dnn_ros.serving.accounts import Accounts
from multi_dnn_ros.serving.engine_status import ProcessFigures, condition
from multi_dnn_ros.serving.groups import (
    Action,
    Begin,
    Configure,
    Disable,
    Enable,
    Finish,
    Kill,
    Limits,
    Member,
    Phase,
    Say,
    Spawn,
)
from multi_dnn_ros.serving.host import Build, Description, EngineStatus
from multi_dnn_ros.serving.process_end import End
from multi_dnn_ros.serving.routes import CameraRoutes, Routes, make_routes
from multi_dnn_ros.serving.served_process import FirstAnswer, MakeProcess, ServedProcess, ThreadsEnded
from multi_dnn_ros.serving.slots import SlotPool
from multi_dnn_ros.serving.supervision import Supervisor
from multi_dnn_ros.serving.watch import Verdict, Watch
from multi_dnn_ros.settings.schema import NodeConfig

log = logging.getLogger(__name__)

_TICK_S = 0.05
#: Of the time to stop; in the rest the last answers arrive.
_STOP_SHARE = 0.9
_LEAVE_GRACE_S = 1.0
_MEMORY_TEXTS = ("out of memory", "does not fit into the memory", "cannot allocate memory")


@dataclass(frozen=True)
class Orders:
    """What every process of the fleet is made from."""

    config: NodeConfig
    build: Build
    pools: Mapping[str, SlotPool]
    make: MakeProcess


class Fleet:
    """first: configured with all DNNs, as `description` says; :meth:`tell` must be told of its messages."""

    def __init__(self, orders: Orders, description: Description, limits: Limits, first: ServedProcess) -> None:
        config = orders.config
        self._orders = orders
        self._dnns_of = {
            camera: tuple(name for name, dnn in description.dnns.items() if camera in dnn.cameras)
            for camera in orders.pools
        }
        self._runtime = {name: runtime_parameters(config, name) for name in config.dnns}
        self._stop_s = config.stop_timeout_s
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._accounts: Accounts | None = None
        self._supervisor = Supervisor(description.device, tuple(config.dnns), limits, config.standby, time.monotonic_ns)
        self._watch = Watch(config.job_timeout_s, config.heartbeat_timeout_s, time.monotonic_ns)
        self._processes = {self._supervisor.adopt(): first}
        self._routes = Routes()
        self._hanging: list[str] = []
        self._closed = False
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine supervision", daemon=True)
        self._thread.start()

    def tell(self, process: ServedProcess, message: Any) -> None:
        """A message, or the end, of a process; called in its reader thread."""
        if not self._closed:
            self._events.put(lambda: self._handle(process, message))

    # -- called by the host

    def routes(self, camera: str) -> CameraRoutes:
        """Who serves its DNNs at this moment; takes no lock."""
        return self._routes.of(camera)

    def start(self, accounts: Accounts) -> None:
        """Serve; what becomes of the frames goes to `accounts`."""
        with self._lock:
            self._accounts = accounts
            for group in self._supervisor.groups:
                if group.disabled is not None:
                    accounts.failure(Failure(group.dnns[0], group.disabled, 1, True))
            self._do(self._supervisor.activate())

    def stop(self, timeout_s: float) -> list[str]:
        """Finish the frames; names threads, or processes, that hang. Those processes are replaced."""
        end = time.monotonic() + timeout_s
        with self._lock:
            supervisor, accounts = self._supervisor, self._accounts
            if not supervisor.active:
                return []
            self._hanging = []
            self._stop_s = _STOP_SHARE * timeout_s
            self._do(supervisor.deactivate())
            self._changed.wait_for(lambda: not self._stopping(), max(0.0, end - time.monotonic()))
            for member in self._stopping():
                process = self._processes[member.key]
                self._hanging.append(f"engine process {process.pid}")
                verdict = Verdict(
                    f"hung: it did not stop within {timeout_s:g} s (parameter stop_timeout_s)",
                    tuple(process.board.under_way()),
                )
                self._condemn(member.key, process, verdict)
            hanging = list(self._hanging)
        if accounts is not None:
            message = "still in progress when the engine's stop timed out"
            accounts.drop_unanswered(accounts.streams, DropReason.SHUTDOWN, message)
        return hanging

    def update(self, dnn: str, name: str, value: Any) -> None:
        """Tell every process of a runtime parameter, also those that are made later."""
        with self._lock:
            if dnn in self._runtime:
                self._runtime[dnn][name] = value
                for process in self._processes.values():
                    process.send(wire.Update(dnn, name, value))

    def statuses(self) -> list[EngineStatus]:
        """One for each group of DNNs that share a process."""
        with self._lock:
            now_ns = time.monotonic_ns()
            found = []
            for group in self._supervisor.groups:
                process = None if group.process is None else self._processes.get(group.process)
                figures = ProcessFigures()
                if process is not None:
                    figures = ProcessFigures(process.pid, (now_ns - process.begun_ns) / 1e9, process.memory)
                found.append(condition(self._supervisor, group, figures, now_ns))
            return found

    def memory(self) -> dict[str, int]:
        """Of all processes together, bytes by name."""
        total: dict[str, int] = {}
        with self._lock:
            for process in self._processes.values():
                for name, value in process.memory.items():
                    total[f"engine processes {name}"] = total.get(f"engine processes {name}", 0) + value
        return total

    def close(self, timeout_s: float) -> None:
        """End all processes."""
        end = time.monotonic() + timeout_s
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._routes = Routes()
            processes, accounts = list(self._processes.values()), self._accounts
        if accounts is not None:
            accounts.drop_unanswered(accounts.streams, DropReason.SHUTDOWN, "the engine was closed")
        for process in processes:
            process.kill("the engine was closed")
        for process in processes:
            if not process.wait(max(0.0, end - time.monotonic())):
                log.error("the engine process %d does not end", process.pid)
        self._thread.join(max(0.0, end - time.monotonic()))
        self._processes.clear()

    # -- the thread that supervises

    def _run(self) -> None:
        while True:
            try:
                event = self._events.get(timeout=_TICK_S)
            except queue.Empty:
                event = _nothing
            try:
                with self._lock:
                    if self._closed:
                        return
                    event()
                    self._look()
                    self._do(self._supervisor.tick())
                    self._changed.notify_all()
            except Exception:  # without supervision nothing would be restored any more
                log.exception("an error in the supervision of the engine processes; it goes on")

    def _handle(self, process: ServedProcess, message: Any) -> None:
        supervisor = self._supervisor
        key = next((key for key, one in self._processes.items() if one is process), None)
        if key is None:
            return
        if isinstance(message, wire.Ready):
            self._do(supervisor.ready(key))
        elif isinstance(message, wire.Configured):
            self._do(supervisor.configured(key))
        elif isinstance(message, wire.Refused):
            lines = message.text.strip().splitlines() or [""]
            memory = any(text in message.text.lower() for text in _MEMORY_TEXTS)
            self._do(supervisor.refused(key, lines[0 if message.expected else -1], memory=memory))
        elif isinstance(message, FirstAnswer):
            self._do(supervisor.answered(key, process.answer_ns or time.monotonic_ns()))
        elif isinstance(message, wire.Stopped):
            self._hanging.extend(message.hanging)
            self._do(supervisor.stopped(key, message.hanging))
        elif isinstance(message, wire.Dying):
            # Not only when it has ended: after an illegal address the driver takes half a second for that (H100).
            self._condemn(key, process, Verdict(message.cause, tuple(process.board.under_way())))
        elif isinstance(message, ThreadsEnded):
            self._condemn(key, process, Verdict(f"threads ended by an error: {', '.join(message.names)}"))
        elif isinstance(message, End):
            del self._processes[key]
            self._do(supervisor.ended(key, message.cause, message.under_way, process.answer_ns))

    def _look(self) -> None:
        """For processes that hang."""
        self._watch.tick()
        now_ns = time.monotonic_ns()
        for key, process in list(self._processes.items()):
            member = self._supervisor.members[key]
            verdict = self._watch.judge(member, process.pid, process.board)
            leaving_s = (now_ns - member.since_ns) / 1e9 if member.phase is Phase.LEAVING else 0.0
            if verdict is None and leaving_s > self._stop_s + _LEAVE_GRACE_S:
                verdict = Verdict("hung: it did not finish its frames")
            if verdict is not None:
                self._condemn(key, process, verdict)

    def _condemn(self, key: int, process: ServedProcess, verdict: Verdict) -> None:
        self._do(self._supervisor.condemn(key, verdict.cause, verdict.under_way, process.answer_ns))

    def _stopping(self) -> list[Member]:
        return [member for member in self._supervisor.members.values() if member.phase is Phase.STOPPING]

    # -- carrying out

    def _do(self, actions: Iterable[Action]) -> None:
        """What supervision wants; then frames go where it says."""
        for action in actions:
            self._act(action)
        supervisor = self._supervisor
        served = {dnn: self._processes[key] for dnn, key in supervisor.routes.items()}
        lost = {dnn: self._why_not(dnn) for dnn in self._runtime if dnn not in served}
        self._routes = make_routes(self._dnns_of, served, lost)

    def _why_not(self, dnn: str) -> tuple[DropReason, str]:
        if not self._supervisor.active:
            return DropReason.SHUTDOWN, "the engine is stopping"
        disabled, text = self._supervisor.why_not(dnn)
        return DropReason.DISABLED if disabled else DropReason.ENGINE_LOST, text

    def _act(self, action: Action) -> None:
        accounts = self._accounts
        if isinstance(action, Spawn):
            self._spawn(action.key)
        elif isinstance(action, Say):
            log.log(action.level, "%s", action.text)
        elif isinstance(action, Disable):
            if accounts is not None:
                accounts.failure(Failure(action.dnn, action.message, 1, True))
        elif isinstance(action, Enable):
            if accounts is not None:
                accounts.enabled(action.dnn)
        elif action.key in self._processes:  # else it could not be spawned, which supervision is about to hear
            process = self._processes[action.key]
            if isinstance(action, Configure):
                orders = self._orders
                process.send(
                    wire.Configure(orders.config, action.dnns, orders.build, action.in_background, judge=False)
                )
            elif isinstance(action, Begin):
                assert accounts is not None
                for dnn, key in self._supervisor.routes.items():
                    if key == action.key:  # whatever disabled it in the process before
                        accounts.enabled(dnn)
                process.begin(accounts, {dnn: dict(values) for dnn, values in self._runtime.items()})
            elif isinstance(action, Finish):
                process.send(wire.Stop(self._stop_s))
            elif isinstance(action, Kill):
                process.kill(action.cause)

    def _spawn(self, key: int) -> None:
        orders = self._orders
        try:
            self._processes[key] = ServedProcess(
                orders.make, f"engine {key}", tuple(orders.config.dnns), orders.pools, self.tell
            )
        except Exception as error:  # OSError; RuntimeError: no thread can be started
            text = f"it could not be started: {error}"
            self._events.put(lambda: self._do(self._supervisor.ended(key, text)))


def runtime_parameters(config: NodeConfig, dnn: str) -> dict[str, Any]:
    """Those of a DNN that may change while it is served, by name."""
    settings = config.dnns[dnn]
    return {
        name: getattr(settings, name)
        for name, field in type(settings).model_fields.items()
        if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("runtime")
    }


def _nothing() -> None:
    pass
