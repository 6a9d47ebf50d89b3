"""The supervised engine processes of one device: passes their events to the supervisor and executes its actions.

One thread supervises. It and all methods except `routes`, `on_message` and `supervision_age_s` share one lock. The lock
is held while a process is started, and while a message is sent (at most a second), but not while a process configures
or ends. Offering a frame reads a table (:mod:`multi_dnn_ros.serving.routes`) without that lock.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving import wire
from multi_dnn_ros.serving.action_executor import ActionExecutor, ProcessTemplate
from multi_dnn_ros.serving.device_swap import DeviceSwap
from multi_dnn_ros.serving.engine_status import ProcessFigures, group_status
from multi_dnn_ros.serving.host import EngineDescription, EngineStatus
from multi_dnn_ros.serving.outcomes import Outcomes
from multi_dnn_ros.serving.process_end import End
from multi_dnn_ros.serving.routes import CameraRoutes, Routes, make_routes
from multi_dnn_ros.serving.served_process import FirstResult, ServedProcess, ThreadsEnded
from multi_dnn_ros.serving.supervision.actions import Action, StopServing
from multi_dnn_ros.serving.supervision.hang_detector import HangDetector, ProcessFault
from multi_dnn_ros.serving.supervision.states import Phase, ProcessState, SupervisionTimes
from multi_dnn_ros.serving.supervision.supervisor import Supervisor

log = logging.getLogger(__name__)

#: Time between two checks while a process is started, configured, stopped or due for a restart.
_TICK_S = 0.05
#: Otherwise that time is a tenth of the smaller of job_timeout_s and heartbeat_timeout_s, but at least _TICK_S and at
#: most _MAX_TICK_S.
_MAX_TICK_S = 0.25
#: Share of the stop timeout in which a process finishes its frames; in the remaining time the last results arrive.
_STOP_SHARE = 0.9
_DRAIN_GRACE_S = 1.0
#: If the node passes on messages of a process for this share of the time limit, the process may have stopped in time.
_BUSY_SHARE = 0.5
#: Messages that ServedProcess or ConfigureClient handles, and Started, for which only tests wait.
_HANDLED_ELSEWHERE = (
    wire.FrameResult,
    wire.FrameDropped,
    wire.Failed,
    wire.Logged,
    wire.Report,
    wire.Placed,
    wire.Started,
)
_OUT_OF_MEMORY_TEXTS = ("out of memory", "does not fit into the memory", "cannot allocate memory")


class SupervisedProcesses:
    """Takes over `first`, a process that is configured with all DNNs as `description` says.

    The caller passes the messages of `first` to :meth:`on_message`.

    swap: changes the settings of DNNs that are served. lock: lock of the methods; hold it to use `swap`.
    """

    def __init__(
        self, template: ProcessTemplate, description: EngineDescription, times: SupervisionTimes, first: ServedProcess
    ) -> None:
        config = template.config
        self._dnns_of = {
            camera: tuple(name for name, dnn in description.dnns.items() if camera in dnn.cameras)
            for camera in template.pools
        }
        self.lock = self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._supervisor = Supervisor(description.device, tuple(config.dnns), times, config.standby, time.monotonic_ns)
        self._hang_detector = HangDetector(config.job_timeout_s, config.heartbeat_timeout_s, time.monotonic_ns)
        self._processes = {self._supervisor.add_configured(): first}
        self._executor = ActionExecutor(template, self._processes, self.on_message, self._on_start_failed)
        self.swap = DeviceSwap(self._supervisor, self._executor, self._execute)
        self._routes = Routes()
        self._steady_tick_s = min(max(_TICK_S, min(config.job_timeout_s, config.heartbeat_timeout_s) / 10), _MAX_TICK_S)
        self._hanging: list[str] = []
        self._closed = False
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._last_check_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="engine supervision", daemon=True)
        self._thread.start()

    def on_message(self, process: ServedProcess, message: Any) -> None:
        """A message, or the end, of a process; called in its reader thread."""
        if not self._closed:
            self._events.put(lambda: self._handle(process, message))

    # -- called by the host

    def routes(self, camera: str) -> CameraRoutes:
        """Which process serves which DNN of the camera now; takes no lock."""
        return self._routes.of(camera)

    def start(self, accounts: Outcomes) -> None:
        """Serve frames; results and drops go to `accounts`."""
        with self._lock:
            self._executor.accounts = accounts
            for group in self._supervisor.groups:
                if group.disabled is not None:
                    accounts.failure(Failure(group.dnns[0], group.disabled, 1, True))
            self._execute(self._supervisor.activate())

    def stop(self, timeout_s: float) -> list[str]:
        """Finish the frames, except those left after the timeout.

        Returns the names of threads or processes that hang; such processes are replaced.
        """
        end = time.monotonic() + timeout_s
        with self._lock:
            supervisor = self._supervisor
            if not supervisor.active:
                return []
            self._hanging = []
            self._executor.stop_timeout_s = _STOP_SHARE * timeout_s
            self._execute(supervisor.deactivate())
            self._changed.wait_for(lambda: not self._finishing(), max(0.0, end - time.monotonic()))
            for state in self._finishing():
                process = self._processes[state.key]
                self._hanging.append(f"engine process {process.pid}")
                cause = f"it did not stop within {timeout_s:g} s (parameter stop_timeout_s)"
                fault = ProcessFault(_stop_cause(process, cause, timeout_s), tuple(process.status.running_jobs()))
                self._replace(state.key, process, fault)
            return list(self._hanging)

    def update(self, dnn: str, name: str, value: Any) -> None:
        """Send a runtime parameter to every process, and to those that are started later."""
        with self._lock:
            runtime = self._executor.runtime
            if dnn in runtime:
                runtime[dnn][name] = value
                for process in self._processes.values():
                    process.send(wire.Update(dnn, name, value))

    def statuses(self) -> list[EngineStatus]:
        """One status for each group of DNNs that share a process."""
        with self._lock:
            now_ns = time.monotonic_ns()
            found = []
            for group in self._supervisor.groups:
                process = None if group.process is None else self._processes.get(group.process)
                figures = ProcessFigures()
                if process is not None:
                    figures = ProcessFigures(process.pid, (now_ns - process.started_ns) / 1e9, process.memory)
                found.append(group_status(self._supervisor, group, figures, now_ns))
            return found

    def memory(self) -> dict[str, int]:
        """Sum over all processes, bytes by name."""
        total: dict[str, int] = {}
        with self._lock:
            for process in self._processes.values():
                for name, value in process.memory.items():
                    total[f"engine processes {name}"] = total.get(f"engine processes {name}", 0) + value
        return total

    def supervision_age_s(self) -> float:
        """Time since the supervising thread last finished a check of the processes; takes no lock."""
        return time.monotonic() - self._last_check_s

    def close(self, timeout_s: float) -> None:
        """End all processes."""
        end = time.monotonic() + timeout_s
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._routes = Routes()
            processes = list(self._processes.values())
        for process in processes:
            process.kill("the engine was closed")
        self._events.put(_do_nothing)  # the thread ends at once
        for process in processes:
            if not process.wait(max(0.0, end - time.monotonic())):
                log.error(
                    "engine process %d did not end after SIGKILL; its memory is not free until it ends", process.pid
                )
        self._thread.join(max(0.0, end - time.monotonic()))
        self._processes.clear()

    # -- the supervising thread

    def _run(self) -> None:
        while True:
            try:
                event = self._events.get(timeout=self._tick_s())
            except queue.Empty:
                event = _do_nothing
            try:
                with self._lock:
                    if self._closed:
                        return
                    event()
                    self._check_processes()
                    self._execute(self._supervisor.tick())
                    self.swap.check()
                    self._changed.notify_all()
                self._last_check_s = time.monotonic()
            except Exception:  # without this thread no lost process would be replaced
                log.exception("an error in the supervision of the engine processes; supervision continues")

    def _tick_s(self) -> float:
        """Time until the next check; events of the processes do not wait for it."""
        with self._lock:
            return self._steady_tick_s if self._supervisor.is_steady else _TICK_S

    def _handle(self, process: ServedProcess, message: wire.ToNode | FirstResult | ThreadsEnded | End) -> None:
        supervisor = self._supervisor
        key = next((key for key, known in self._processes.items() if known is process), None)
        if key is None:
            return
        if isinstance(message, wire.Ready):
            self._execute(supervisor.ready(key))
        elif isinstance(message, wire.Progressed):
            self.swap.progressed(key, message.progress)
        elif isinstance(message, wire.Configured):
            self.swap.configured(key, message.description)
            self._execute(supervisor.configured(key))
        elif isinstance(message, wire.Refused):
            lines = message.text.strip().splitlines() or [""]
            out_of_memory = any(text in message.text.lower() for text in _OUT_OF_MEMORY_TEXTS)
            reason = lines[0 if message.expected else -1]
            self._execute(supervisor.refused(key, reason, out_of_memory=out_of_memory))
        elif isinstance(message, FirstResult):
            self._execute(supervisor.first_result(key, process.last_result_ns or time.monotonic_ns()))
        elif isinstance(message, wire.Stopped):
            self._hanging.extend(message.hanging)
            self._execute(supervisor.stopped(key, message.hanging))
        elif isinstance(message, wire.Aborting):
            # Do not wait until it ends: after an illegal address the driver takes half a second for that (H100).
            self._replace(key, process, ProcessFault(message.cause, tuple(process.status.running_jobs())))
        elif isinstance(message, ThreadsEnded):
            self._replace(key, process, ProcessFault(f"threads ended with an error: {', '.join(message.names)}"))
        elif isinstance(message, End):
            self._check_standby(key)
            del self._processes[key]
            self._execute(supervisor.ended(key, message.cause, message.running, process.last_result_ns))
        elif not isinstance(message, _HANDLED_ELSEWHERE):
            wire.unhandled(message)

    def _check_processes(self) -> None:
        """Replace the processes that hang."""
        self._hang_detector.tick()
        now_ns = time.monotonic_ns()
        faults: list[tuple[int, ProcessFault]] = []
        for key, process in list(self._processes.items()):
            state = self._supervisor.processes[key]
            fault = self._hang_detector.check(state, process.pid, process.status)
            draining_s = (now_ns - state.since_ns) / 1e9 if state.phase is Phase.DRAINING else 0.0
            drain_timeout_s = self._executor.stop_timeout_s + _DRAIN_GRACE_S
            if fault is None and draining_s > drain_timeout_s:
                cause = (
                    f"it did not finish its frames within {drain_timeout_s:g} s (parameter stop_timeout_s plus "
                    f"{_DRAIN_GRACE_S:g} s)"
                )
                fault = ProcessFault(_stop_cause(process, cause, drain_timeout_s))
            if fault is not None:
                faults.append((key, fault))
        # Those that serve come last, so that their DNNs are not given to a process that hangs, too.
        for key, fault in sorted(faults, key=lambda each: self._supervisor.processes[each[0]].phase is Phase.SERVING):
            self._replace(key, self._processes[key], fault)

    def _check_standby(self, lost: int) -> None:
        """End the standby if it would not serve at once in place of the lost process."""
        key = self._supervisor.standby.key
        process = None if key is None or key == lost else self._processes.get(key)
        if key is not None and process is not None:
            fault = self._hang_detector.check_standby(self._supervisor.processes[key], process.pid, process.status)
            if fault is not None:
                self._execute(self._supervisor.failed(key, fault.cause))

    def _replace(self, key: int, process: ServedProcess, fault: ProcessFault) -> None:
        self._check_standby(key)
        self._execute(self._supervisor.failed(key, fault.cause, fault.running, process.last_result_ns))

    def _finishing(self) -> list[ProcessState]:
        """The processes that are finishing their frames, including replaced ones."""
        phases = (Phase.STOPPING, Phase.DRAINING)
        return [state for state in self._supervisor.processes.values() if state.phase in phases]

    def _on_start_failed(self, key: int, cause: str) -> None:
        self._events.put(lambda: self._execute(self._supervisor.ended(key, cause)))

    def _execute(self, actions: Iterable[Action]) -> None:
        """Execute the actions and update the table of routes.

        StopServing comes last, so that no new frame reaches that process.
        """
        if self._closed:  # no process may be started any more
            return
        supervisor = self._supervisor
        finishing = []
        for action in actions:
            if isinstance(action, StopServing):
                finishing.append(action)
            else:
                self._executor.execute(action, supervisor.routes)
        served = {dnn: self._processes[key] for dnn, key in supervisor.routes.items()}
        lost = {dnn: self._drop_reason(dnn) for dnn in self._executor.runtime if dnn not in served}
        self._routes = make_routes(self._dnns_of, served, lost)
        for action in finishing:
            self._executor.execute(action, supervisor.routes)

    def _drop_reason(self, dnn: str) -> tuple[DropReason, str]:
        """The reason and message for drops of a DNN that no process serves."""
        if not self._supervisor.active:
            return DropReason.SHUTDOWN, "the engine is stopping"
        disabled, text = self._supervisor.unserved_reason(dnn)
        return DropReason.DISABLED if disabled else DropReason.ENGINE_LOST, text


def _stop_cause(process: ServedProcess, cause: str, timeout_s: float) -> str:
    """Why a process is replaced that did not report in time that it had finished. The report may be there, unread."""
    busy_s = process.busy_s_since_stop()
    if busy_s < _BUSY_SHARE * timeout_s:
        return f"hung: {cause}"
    return f"{cause}, or its report was not read in time: the node published results for {busy_s:.1f} s of this time"


def _do_nothing() -> None:
    pass
