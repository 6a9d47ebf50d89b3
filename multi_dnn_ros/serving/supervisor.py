"""Replaces engines that are lost or hang, keeps standbys, and switches to engines with other settings.

The rule: an engine that is lost is replaced. After the second loss within fault_window_s each of its DNNs gets an
engine of its own and keeps it. A DNN whose own engine is lost twice is disabled, and tried again with growing pauses.

After each event the actual state is compared with the desired one (:meth:`Supervisor._reconcile`), so the loss of an
engine needs no special case, whenever it happens.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving import messages
from multi_dnn_ros.serving.descriptions import Build, Changes, EngineDescription, EngineStatus
from multi_dnn_ros.serving.engine_process import Engine, Phase
from multi_dnn_ros.serving.groups import Group, Pauses, group_status, pause_ns
from multi_dnn_ros.serving.ledger import Ledger
from multi_dnn_ros.serving.swap import Swap
from multi_dnn_ros.settings.flat_parameters import assign
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.settings.section import runtime_fields

log = logging.getLogger(__name__)

#: A longer interval between two ticks means that this process itself did not run.
_MAX_TICK_INTERVAL_NS = 1_000_000_000


class Supervisor:
    """Thread-safe. Its subclass starts engines, passes their events to :meth:`handle` and calls :meth:`tick` often.

    build: makes the pipeline in the engine's process. clock: nanoseconds, monotonic.
    """

    def __init__(self, build: Build, pauses: Pauses, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._build = build
        self._pauses = pauses
        self._clock = clock
        self._lock = threading.RLock()
        self._configs: dict[str, NodeConfig] = {}  # by device
        self._engines: list[Engine] = []  # that have not ended
        self._groups: list[Group] = []
        self._swap: Swap | None = None
        self._ledger: Ledger | None = None  # while frames arrive
        self._last_tick_ns = self._running_since_ns = clock()
        #: By DNN, the engine that serves it now; replaced as a whole, so it can be read without the lock.
        self.routes: Mapping[str, Engine] = {}

    def _start_engine(self, device: str) -> Engine:
        """A new engine. Raises OSError, or RuntimeError if no thread can be started."""
        raise NotImplementedError

    def _supervise(self, configs: Mapping[str, NodeConfig], engines: list[Engine]) -> None:
        """Begin with an engine for each device, configured for all its DNNs. configs: by device; changed by updates."""
        config = next(iter(configs.values()))
        with self._lock:
            self._window_ns = round(config.fault_window_s * 1e9)
            self._job_timeout_s, self._heartbeat_timeout_s = config.job_timeout_s, config.heartbeat_timeout_s
            self._drain_s = config.stop_timeout_s
            self._standby = config.standby if config.isolation == "process" else "none"
            self._configs, self._engines, self._swap = dict(configs), list(engines), None
            self._groups = [Group(device, tuple(it.dnns)) for device, it in configs.items()]
            for group, engine in zip(self._groups, engines, strict=True):
                self._assign(group, engine)

    # -- called by the node

    def start(self, ledger: Ledger) -> None:
        """Serve frames. Each frame that is offered is answered in `ledger` for each of its DNNs."""
        with self._lock:
            if not self._groups:
                raise RuntimeError("the engine is not configured")
            self._ledger = ledger
            for engine in self._engines:
                if engine.phase is not Phase.KILLED:
                    engine.ledger = ledger
            for group in self._groups:
                if group.disabled:
                    ledger.failure(Failure(group.dnns[0], group.disabled, 1, True))
                if group.is_missed:  # nothing was missed meanwhile
                    group.lost_ns = self._clock()
            self._reconcile()

    def stop(self, timeout_s: float) -> list[str]:
        """Finish the frames that are waiting or in progress; drop those left after the timeout.

        Returns the names of engines that hang, which are replaced.
        """
        with self._lock:
            ledger, self._ledger = self._ledger, None
        if ledger is None or ledger.wait_idle(timeout_s):
            return []
        with self._lock:
            hanging = [engine for engine in self._engines if ledger.is_reading(engine)]
            for engine in hanging:
                self._lose(engine, f"hung: it did not stop within {timeout_s:g} s")
        ledger.drop_unanswered(DropReason.SHUTDOWN, "still in progress when the engine's stop timed out")
        return [engine.label for engine in hanging]

    def update(self, dnn: str, name: str, value: Any) -> None:
        """A runtime parameter of a DNN has changed. name: without `dnn.<dnn>.`."""
        with self._lock:
            configs = [*self._configs.values(), *(self._swap.configs.values() if self._swap is not None else ())]
            for config in configs:
                if dnn in config.dnns:
                    assign(config.dnns[dnn], name, value)
            for engine in self._engines:
                if engine.phase is Phase.CONFIGURED and dnn in engine.dnns:
                    engine.send(messages.Update(dnn, {name: value}))

    def swap(self, changes: Changes, notify: Callable[[], None]) -> Swap:
        """Begin to change the settings of DNNs, which continue to serve. A swap that is under way is cancelled.

        notify: called in any thread when the state of the swap may have changed; must not block or use the swap.
        """
        with self._lock:
            if self._swap is not None:
                self._swap.cancel("the settings have changed again")
            configs = {device: it.model_copy(deep=True) for device, it in self._configs.items()}
            for config in configs.values():
                for dnn in changes.keys() & config.dnns.keys():
                    for name, value in changes[dnn].items():
                        assign(config.dnns[dnn], name, value)
            self._swap = swap = Swap(configs, notify, self._lock, self._kill, self._adopt)
            for group in (group for group in self._groups if not changes.keys().isdisjoint(group.dnns)):
                engine = None
                if self._is_served(group):  # the spare is a standby; its memory is needed for the new settings
                    engine, group.spare = group.spare, None
                engine = engine if engine is not None and not engine.dnns else self._new_engine(group.device)
                if engine is None:
                    swap.cancel("an engine process could not be started")
                    break
                swap.engines[group.dnns] = engine
                self._configure(engine, group.dnns, configs[group.device], in_background=True)
            self._reconcile()
            return swap

    # -- queries

    def route(self, ledger: Ledger, dnn: str) -> Engine | None:
        """The engine that serves a DNN, if frames of this ledger are served now."""
        return self.routes.get(dnn) if ledger is self._ledger else None

    def unserved(self, dnn: str) -> tuple[DropReason, str]:
        """Why no engine serves a DNN: the reason and the message of its drops."""
        with self._lock:
            if self._ledger is None:
                return DropReason.SHUTDOWN, "the engine is stopping"
            group = next(group for group in self._groups if dnn in group.dnns)
            if group.disabled:
                return DropReason.DISABLED, group.disabled
            return DropReason.ENGINE_LOST, f"no engine process serves the DNN at this moment ({group.cause})"

    def memory(self) -> dict[str, int]:
        """Memory in use by the engines, bytes by name."""
        total: dict[str, int] = {}
        for engine in list(self._engines):
            for name, value in engine.memory().items():
                total[f"engine processes {name}"] = total.get(f"engine processes {name}", 0) + value
        return total

    def statuses(self) -> list[EngineStatus]:
        """The statuses of the engines for diagnostics, one for each group."""
        with self._lock:
            return [self._status(group) for group in self._groups]

    def _status(self, group: Group) -> EngineStatus:
        engine, standby = self.routes.get(group.dnns[0]), f"{self._standby}, being prepared"
        if self._standby == "none" or group.own:
            standby = "none (parameter standby)" if self._standby == "none" else "none"
        elif group.spare is None:
            standby = "none at this moment" + (f": {group.spare_cause}" if group.spare_cause else "")
        elif self._is_ready(group):
            standby = f"{self._standby}, ready"
        times = self._window_ns, self._clock()
        return group_status(group, engine, standby, *times, active=self._ledger is not None)

    # -- events

    def handle(self, engine: Engine, message: Any) -> None:
        """An event of an engine."""
        with self._lock:
            if engine in self._engines:
                self._handle(engine, message)
                self._reconcile()

    def tick(self) -> None:
        """Time has passed: replace the engines that hang."""
        with self._lock:
            now_ns = self._clock()
            if now_ns - self._last_tick_ns > _MAX_TICK_INTERVAL_NS:
                self._running_since_ns = now_ns
            self._last_tick_ns = now_ns
            serving = set(self.routes.values())
            # Those that serve come last, so that their DNNs are not given to an engine that hangs, too.
            for engine in sorted(self._engines, key=lambda each: each in serving):
                if fault := self._fault(engine):
                    self._lose(engine, fault)
            self._reconcile()

    def _handle(self, engine: Engine, message: Any) -> None:
        if isinstance(message, messages.Ended):
            self._lose(engine, message.cause)
            self._engines.remove(engine)
            if engine.ledger is not None:  # it no longer reads any slot
                engine.ledger.engine_ended(engine, message.cause)
        elif engine.phase is Phase.KILLED:
            return
        elif isinstance(message, messages.Ready):
            if engine.phase is Phase.STARTING:
                engine.enter(Phase.READY, self._clock())
        elif isinstance(message, messages.Progress):
            if self._swap is not None and engine in self._swap.engines.values():
                self._swap.progress = message.text
        elif isinstance(message, EngineDescription):
            engine.description = message
            engine.enter(Phase.CONFIGURED, self._clock())
            assert engine.config is not None
            for dnn in engine.dnns:  # they may have changed meanwhile
                engine.send(messages.Update(dnn, _runtime_parameters(engine.config, dnn)))
        elif isinstance(message, messages.Refused):
            lines = message.text.strip().splitlines() or [""]
            self._lose(engine, lines[0 if message.expected else -1], refused=True)
        elif isinstance(message, messages.Aborting):
            # Do not wait until it ends: after an illegal address the driver takes half a second for that (H100).
            self._lose(engine, message.cause)

    def _fault(self, engine: Engine) -> str:
        """Why an engine counts as hanging; empty: it does not. Loading has no time limit, and only time in which this
        process itself ran counts: the machine may have been suspended.
        """
        if engine.phase is not Phase.CONFIGURED or engine.pid == os.getpid():
            return ""

        def elapsed_s(since_ns: int) -> float:
            return (self._clock() - max(since_ns, self._running_since_ns)) / 1e9

        silent_s = elapsed_s(max(engine.state.heartbeat_ns(), engine.since_ns))
        if silent_s > self._heartbeat_timeout_s:
            limit = f"(limit: {self._heartbeat_timeout_s:g} s)"
            return f"hung: no heartbeat for {silent_s:.1f} s {limit}"
        limit = f"takes longer than {self._job_timeout_s:g} s (parameter job_timeout_s)"
        late = [dnn for dnn, at in engine.state.running_jobs().items() if elapsed_s(at) > self._job_timeout_s]
        if late:
            return f"hung: a job of DNN {', '.join(late)} {limit}"
        if engine.retired and elapsed_s(engine.since_ns) > self._drain_s:
            return f"hung: it did not finish its frames within {self._drain_s:g} s"
        return ""

    # -- losses

    def _lose(self, engine: Engine, cause: str, *, refused: bool = False) -> None:
        """An engine has ended, hangs, or cannot continue: end it and remove it from its role, which others take over
        without waiting for its end. refused: it could not be configured, which is no fault of a DNN at run time.
        """
        if engine.phase is Phase.KILLED:
            return
        served = {dnn for dnn, it in self.routes.items() if it is engine}
        self.routes = {dnn: it for dnn, it in self.routes.items() if it is not engine}
        computing = ", ".join(engine.state.running_jobs())
        was_ready = engine.phase is not Phase.CONFIGURING
        self._kill(engine, cause)
        if self._swap is not None and engine in self._swap.engines.values():
            self._swap.cancel(cause if refused else f"the new engine process was lost: {cause}")
        for group in list(self._groups):
            if not served.isdisjoint(group.dnns):
                what = f"{group.name} was lost" + (f" while computing {computing}" if computing else "")
                group.served_since_ns, since_ns = None, group.served_since_ns
                if since_ns is not None and self._clock() - since_ns >= self._window_ns:
                    group.pauses = group.retries = 0
            elif group.spare is engine and self._is_served(group):
                group.spare, group.spare_cause = None, cause  # perhaps it does not fit into the memory
                group.next_attempt_ns = self._clock() + (0 if was_ready else pause_ns(self._pauses.restart, -1))
                log.warning("%s: the standby was lost: %s", group.name, cause)
                continue
            elif group.spare is engine:
                group.spare = None
                what = f"{group.name}: preparing an engine process for {', '.join(group.dnns)} failed"
            else:
                continue
            log.error("%s: %s", what, cause)
            self._count_loss(group, cause, fault=not refused and engine.dnns == group.dnns)

    def _count_loss(self, group: Group, cause: str, *, fault: bool) -> None:
        """fault: of a DNN of the group, and not of another one with which it shares an engine."""
        now_ns = self._clock()
        if not group.is_missed:
            group.lost_ns, group.gap_ms = now_ns, None
        group.cause = cause
        group.losses = [at for at in group.losses if now_ns - at < self._window_ns] + [now_ns] * fault
        if fault and len(group.dnns) > 1 and len(group.losses) > 1:
            self._divide(group)
        elif fault and len(group.dnns) == 1 and (len(group.losses) > 1 or group.retries):
            group.next_attempt_ns = now_ns + pause_ns(self._pauses.retry, group.retries)
            group.retries += 1
            group.losses = []
            retry = f"next retry in {(group.next_attempt_ns - now_ns) / 1e9:g} s"
            group.disabled = f"disabled because its engine process was lost: {cause}; {retry}"
            if self._ledger is not None:
                self._ledger.failure(Failure(group.dnns[0], group.disabled, 1, True))
        else:
            group.next_attempt_ns = now_ns + pause_ns(self._pauses.restart, group.pauses)
            group.pauses += 1

    def _divide(self, group: Group) -> None:
        """Each DNN gets an engine of its own; a hot standby serves all of them until then."""
        log.warning(
            "%s: %s get an engine process each after two losses within %g s (parameter fault_window_s)",
            group.name, ", ".join(group.dnns), self._window_ns / 1e9,
        )  # fmt: skip
        at, spare = self._groups.index(group), group.spare
        self._groups[at : at + 1] = singles = [
            Group(group.device, (dnn,), own=True, cause=group.cause, lost_ns=group.lost_ns) for dnn in group.dnns
        ]
        for single in singles:
            if spare is not None and spare.phase is Phase.CONFIGURED:
                self._assign(single, spare)

    # -- from the actual to the desired state

    def _reconcile(self) -> None:
        swap = self._swap
        for group in self._groups:
            self._restore(group)
            if group.is_missed and self._ledger is not None:
                self._measure_gap(group, self._ledger)
        if swap is not None:
            if not swap.engines.keys() <= {group.dnns for group in self._groups}:
                swap.cancel("after a fault, its DNNs are being divided among processes; try again later")
            swap.check(self._ledger)
        self._end_unused()

    def _is_served(self, group: Group) -> bool:
        """Whether an engine serves the group and no DNN of another group."""
        engine = self.routes.get(group.dnns[0])
        return engine is not None and (not group.own or engine.dnns == group.dnns)

    def _is_ready(self, group: Group) -> bool:
        """Whether the standby of a group can take over."""
        phase = Phase.CONFIGURED if self._standby == "hot" else Phase.READY
        return group.spare is not None and group.spare.phase is phase

    def _restore(self, group: Group) -> None:
        """Prepare an engine for a group that needs one, or a standby; let it serve when it is configured."""
        needed, shares = not self._is_served(group), group.dnns[0] in self.routes
        paused = self._clock() < group.next_attempt_ns
        swapping = self._swap is not None and self._swap.is_under_way
        wanted = needed or (self._standby != "none" and not group.own and not swapping)
        if group.spare is None and wanted and not paused:
            group.spare = self._new_engine(group.device)
            if group.spare is None:
                group.next_attempt_ns = self._clock() + pause_ns(self._pauses.restart, max(1, group.pauses))
                group.pauses += 1
        spare = group.spare
        if spare is None or (group.disabled and paused):
            return
        if not spare.dnns and (needed or self._standby == "hot"):
            self._configure(spare, group.dnns, self._configs[group.device], in_background=shares)
        if needed and spare.phase is Phase.CONFIGURED:
            group.spare = None
            self._assign(group, spare)
        elif not needed and self._is_ready(group):
            group.spare_cause = ""

    def _measure_gap(self, group: Group, ledger: Ledger) -> None:
        for dnn in group.dnns:
            engine, gap_ms = ledger.server(dnn)
            if engine is not None and engine is self.routes.get(dnn) and group.is_missed:
                group.gap_ms = (self._clock() - group.lost_ns) / 1e6 if gap_ms is None else gap_ms
                log.warning(
                    "%s serves %s again after %.0f ms (restarts: %d)",
                    group.name, ", ".join(group.dnns), group.gap_ms, group.restarts,
                )  # fmt: skip

    def _end_unused(self) -> None:
        """Make engines without a role finish their frames, then end them."""
        used = {*self.routes.values(), *(group.spare for group in self._groups)}
        used |= set(self._swap.engines.values()) if self._swap is not None and self._swap.is_under_way else set()
        for engine in self._engines:
            if engine in used or engine.phase is Phase.KILLED:
                continue
            if not engine.retired:
                engine.retired, engine.since_ns = True, self._clock()
            if engine.ledger is None or not engine.ledger.is_reading(engine):
                self._kill(engine, "it is no longer needed")

    # -- operations

    def _new_engine(self, device: str) -> Engine | None:
        try:
            engine = self._start_engine(device)
        except Exception as error:
            log.error("engine %s: an engine process could not be started: %s", device, error)
            return None
        engine.ledger = self._ledger
        self._engines.append(engine)
        return engine

    def _configure(self, engine: Engine, dnns: tuple[str, ...], config: NodeConfig, *, in_background: bool) -> None:
        engine.dnns, engine.config = dnns, config
        engine.enter(Phase.CONFIGURING, self._clock())
        engine.send(messages.Configure(config, dnns, self._build, in_background))

    def _assign(self, group: Group, engine: Engine) -> None:
        """Let a configured engine serve the group."""
        group.disabled = ""
        group.served_since_ns = self._clock()
        group.restarts += group.is_missed
        if self._ledger is not None:
            self._ledger.enable(group.dnns)  # also if their previous engine had disabled them
        self.routes = {**self.routes, **dict.fromkeys(group.dnns, engine)}

    def _adopt(self, swap: Swap) -> None:
        """The engines that a swap has prepared serve from now on; called with the lock."""
        self._configs = dict(swap.configs)
        for engine in self._engines:  # one that is being configured gets the latest runtime parameters from there
            if engine.config is not None:
                engine.config = swap.configs[engine.device]
        for group in self._groups:
            if group.dnns in swap.engines:
                if group.spare is not None and group.spare.dnns:  # it has the previous settings
                    group.spare = None
                group.retries = group.next_attempt_ns = 0
                self._assign(group, swap.engines[group.dnns])
        self._reconcile()

    def _kill(self, engine: Engine, cause: str) -> None:
        """End an engine without a role; its frames are dropped at once."""
        if engine.phase is not Phase.KILLED:
            engine.enter(Phase.KILLED, self._clock())
            engine.kill(cause)
            if engine.ledger is not None:
                engine.ledger.engine_lost(engine, cause)


def _runtime_parameters(config: NodeConfig, dnn: str) -> dict[str, Any]:
    """The runtime parameters of a DNN and their values, by name without `dnn.<dnn>.`."""
    settings = config.dnns[dnn]
    found = {name: getattr(settings, name) for name in runtime_fields(type(settings))}
    for output, section in settings.outputs.items():
        found.update({f"output.{output}.{name}": getattr(section, name) for name in runtime_fields(type(section))})
    return found
