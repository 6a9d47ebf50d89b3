"""Replaces engines that are lost or hang, keeps standbys, and switches to engines with other settings.

The rule: an engine that is lost is replaced. After the second loss within fault_window_s each of its DNNs gets an
engine of its own and keeps it. A DNN whose own engine is lost twice is disabled, and tried again with growing pauses.

After each event the actual state is compared with the desired one (:meth:`Supervisor._reconcile`), so the loss of an
engine needs no special case, whenever it happens.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving import messages
from multi_dnn_ros.serving.descriptions import Build, Changes, EngineDescription, EngineStatus
from multi_dnn_ros.serving.engine_process import Engine
from multi_dnn_ros.serving.groups import Group, Swap
from multi_dnn_ros.serving.ledger import Ledger
from multi_dnn_ros.settings.flat_parameters import assign, runtime_fields
from multi_dnn_ros.settings.schema import NodeConfig

log = logging.getLogger(__name__)

#: Seconds before an engine is replaced after the first, second, ... failure without fault_window_s of service in
#: between; and the number of failures after which a standby that cannot be prepared is tried again.
PAUSES_S = (0.0, 1.0, 10.0, 60.0, 600.0)
_STANDBY_FAILURES = 4
#: A longer interval between two ticks means that this process itself did not run.
_MAX_TICK_INTERVAL_NS = 1_000_000_000


class Supervisor:
    """Thread-safe. Its subclass starts engines, passes their events to :meth:`handle` and calls :meth:`tick` often.

    build: makes the pipeline in the engine's process. clock: nanoseconds, monotonic.
    """

    def __init__(
        self, build: Build, pauses_s: tuple[float, ...] = PAUSES_S, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._build = build
        self._pauses_s = pauses_s
        self._clock = clock
        self._lock = threading.Lock()
        self._later: list[Callable[[], None]] = []  # see _locked
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

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock, then do what is in `_later`: it calls receivers of results, which may wait for anything."""
        try:
            with self._lock:
                try:
                    yield
                finally:
                    later, self._later = self._later, []
        finally:
            for action in later:
                action()

    def _supervise(self, configs: Mapping[str, NodeConfig], engines: list[Engine]) -> None:
        """Begin with a configured engine for each device. configs: by device; changed by updates."""
        with self._locked():
            self._settings = next(iter(configs.values()))
            self._window_ns = round(self._settings.fault_window_s * 1e9)
            self._standby = self._settings.standby if self._settings.isolation == "process" else "none"
            self._configs, self._engines, self._swap = dict(configs), list(engines), None
            self._groups = [Group(device, tuple(it.dnns)) for device, it in configs.items()]
            for group, engine in zip(self._groups, engines, strict=True):
                self._assign(group, engine)
            self._update_routes()

    # -- called by the node

    def start(self, ledger: Ledger) -> None:
        """Serve frames. Each frame that is offered is answered in `ledger` for each of its DNNs."""
        with self._locked():
            if not self._groups:
                raise RuntimeError("the engine is not configured")
            self._ledger = ledger
            for engine in self._engines:
                if not engine.killed:
                    engine.ledger = ledger
            for group in self._groups:
                if group.disabled:
                    self._later.append(partial(ledger.failure, Failure(group.dnns[0], group.disabled, 1, True)))
            self._reconcile()

    def stop(self, timeout_s: float) -> list[str]:
        """Finish the frames that are waiting or in progress; drop those left after the timeout.

        Returns the names of engines that hang, which are replaced.
        """
        with self._lock:
            ledger, self._ledger = self._ledger, None
        if ledger is None or ledger.wait_idle(timeout_s):
            return []
        with self._locked():
            hanging = [engine for engine in self._engines if ledger.is_reading(engine)]
            for engine in hanging:
                self._lose(engine, f"hung: it did not stop within {timeout_s:g} s")
            self._update_routes()
        ledger.drop_unanswered(DropReason.SHUTDOWN, "still in progress when the engine's stop timed out")
        return [engine.label for engine in hanging]

    def update(self, dnn: str, name: str, value: Any) -> None:
        """A runtime parameter of a DNN has changed. name: without `dnn.<dnn>.`."""
        with self._locked():
            configs = [*self._configs.values(), *(self._swap.configs.values() if self._swap is not None else ())]
            for config in configs:
                if dnn in config.dnns:
                    assign(config.dnns[dnn], name, value)
            for engine in self._engines:
                if engine.description is not None and not engine.killed and dnn in engine.dnns:
                    engine.send(messages.Update(dnn, {name: value}))

    def swap(self, changes: Changes, notify: Callable[[], None]) -> Swap:
        """Begin to change the settings of DNNs, which continue to serve. A swap that is under way is cancelled."""
        with self._locked():
            self._cancel("the settings have changed again")
            configs = {device: it.model_copy(deep=True) for device, it in self._configs.items()}
            for config in configs.values():
                for dnn in changes.keys() & config.dnns.keys():
                    for name, value in changes[dnn].items():
                        assign(config.dnns[dnn], name, value)
            self._swap = swap = Swap(configs, notify, self._commit, self._cancel_swap)
            for group in (group for group in self._groups if not changes.keys().isdisjoint(group.dnns)):
                engine = None
                if group.is_served:  # the spare is a standby; its memory is needed for the new settings
                    engine, group.spare = group.spare, None
                engine = engine if engine is not None and not engine.dnns else self._new_engine(group.device)
                if engine is None:
                    self._cancel("an engine process could not be started")
                    break
                swap.engines[group] = engine
                self._configure(engine, group.dnns, configs[group.device], in_background=True)
            self._reconcile()
            return swap

    def _commit(self, swap: Swap) -> bool:
        with self._locked():
            if swap is not self._swap or not swap.is_prepared:
                return False
            swap.committed = True
            self._configs = dict(swap.configs)
            for engine in self._engines:  # one that is being configured gets the latest runtime parameters from there
                if engine.config is not None:
                    engine.config = swap.configs[engine.device]
            for group, engine in swap.engines.items():
                if group.spare is not None and group.spare.dnns:  # it has the previous settings
                    group.spare = None
                group.failures = group.losses = group.next_attempt_ns = 0
                self._assign(group, engine)
            self._reconcile()
            return True

    def _cancel_swap(self, swap: Swap, cause: str) -> None:
        with self._locked():
            if swap is self._swap:
                self._cancel(cause)

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

    def statuses(self) -> list[EngineStatus]:
        """The statuses of the engines for diagnostics, one for each group."""
        with self._lock:
            active, now_ns = self._ledger is not None, self._clock()
            return [it.status(self._standby, self._window_ns, now_ns, active=active) for it in self._groups]

    # -- events

    def handle(self, engine: Engine, message: Any) -> None:
        """An event of an engine."""
        with self._locked():
            if engine in self._engines:
                self._handle(engine, message)
                self._reconcile()

    def tick(self) -> None:
        """Time has passed: replace the engines that hang."""
        with self._locked():
            now_ns = self._clock()
            if now_ns - self._last_tick_ns > _MAX_TICK_INTERVAL_NS:
                self._running_since_ns = now_ns
            self._last_tick_ns = now_ns
            serving = set(self.routes.values())
            # Those that serve come last, so that their DNNs are not given to an engine that hangs, too.
            for engine in sorted(self._engines, key=lambda each: each in serving):
                if fault := engine.fault(self._settings, now_ns, self._running_since_ns):
                    self._lose(engine, fault)
            self._reconcile()

    def _handle(self, engine: Engine, message: Any) -> None:
        if isinstance(message, messages.Ended):
            self._lose(engine, message.cause)
            self._engines.remove(engine)
            if engine.ledger is not None:  # it no longer reads any slot
                self._later.append(partial(engine.ledger.engine_lost, engine, message.cause, ended=True))
        elif engine.killed:
            return
        elif isinstance(message, messages.Ready):
            engine.is_ready = True
        elif isinstance(message, messages.Progress):
            if self._swap is not None and engine in self._swap.engines.values():
                self._swap.progress = message.text
        elif isinstance(message, EngineDescription):
            engine.description, engine.since_ns = message, self._clock()
            assert engine.config is not None
            for dnn in engine.dnns:  # they may have changed meanwhile
                engine.send(messages.Update(dnn, _runtime_parameters(engine.config, dnn)))
            if self._swap is not None and engine in self._swap.engines.values():
                self._swap.notify()
        elif isinstance(message, messages.Refused):
            lines = message.text.strip().splitlines() or [""]
            self._lose(engine, lines[0 if message.expected else -1], refused=True)
        elif isinstance(message, messages.Aborting):
            # Do not wait until it ends: after an illegal address the driver takes half a second for that (H100).
            self._lose(engine, message.cause)

    # -- losses

    def _lose(self, engine: Engine, cause: str, *, refused: bool = False) -> None:
        """An engine has ended, hangs, or cannot continue: end it and remove it from its role, which others take over
        without waiting for its end. refused: it could not be configured, which is no fault of a DNN at run time.
        """
        if engine.killed:
            return
        computing = ", ".join(engine.state.running_jobs())
        self._kill(engine, cause)
        if self._swap is not None and engine in self._swap.engines.values():
            self._cancel(cause if refused else f"the new engine process was lost: {cause}")
        for group in list(self._groups):
            if group.engine is engine:
                what = f"{group.name} was lost" + (f" while computing {computing}" if computing else "")
                group.engine, group.lost_ns = None, self._clock()
                if group.lost_ns - group.served_since_ns >= self._window_ns:
                    group.failures = group.losses = 0
            elif group.spare is engine and group.is_served:
                group.spare, group.spare_cause = None, cause
                if engine.config is not None and engine.description is None:  # perhaps it does not fit into the memory
                    group.next_attempt_ns = self._clock() + self._pause_ns(_STANDBY_FAILURES)
                log.warning("%s: the standby was lost: %s", group.name, cause)
                continue
            elif group.spare is engine:
                group.spare = None
                what = f"{group.name}: preparing an engine process for {', '.join(group.dnns)} failed"
            else:
                continue
            log.error("%s: %s", what, cause)
            # A loss is no fault of a DNN that shares the engine with another group.
            self._count_loss(group, cause, is_fault=not refused and engine.dnns == group.dnns)

    def _count_loss(self, group: Group, cause: str, *, is_fault: bool) -> None:
        now_ns = self._clock()
        group.cause = cause
        group.failures += 1
        group.losses += is_fault
        group.next_attempt_ns = now_ns + self._pause_ns(group.failures)
        if not is_fault or group.losses < 2:
            return
        if len(group.dnns) > 1:
            self._divide(group)
            return
        retry = f"next retry in {(group.next_attempt_ns - now_ns) / 1e9:g} s"
        group.disabled = f"disabled because its engine process was lost: {cause}; {retry}"
        if self._ledger is not None:
            self._later.append(partial(self._ledger.failure, Failure(group.dnns[0], group.disabled, 1, True)))

    def _divide(self, group: Group) -> None:
        """Each DNN gets an engine of its own; a hot standby serves all of them until then."""
        log.warning(
            "%s: %s get an engine process each after two losses within %g s (parameter fault_window_s)",
            group.name, ", ".join(group.dnns), self._settings.fault_window_s,
        )  # fmt: skip
        at, spare = self._groups.index(group), group.spare
        self._groups[at : at + 1] = singles = [
            Group(group.device, (dnn,), own=True, cause=group.cause, lost_ns=group.lost_ns) for dnn in group.dnns
        ]
        self._cancel("after a fault, its DNNs are being divided among processes; try again later")
        if spare is not None and spare.description is not None:
            for single in singles:
                self._assign(single, spare)

    def _pause_ns(self, failures: int) -> int:
        return round(self._pauses_s[min(failures, len(self._pauses_s)) - 1] * 1e9)

    # -- from the actual to the desired state

    def _reconcile(self) -> None:
        for group in self._groups:
            self._restore(group)
        self._update_routes()
        # Engines without a role finish their frames, then they are ended.
        used = {*self.routes.values(), *(group.spare for group in self._groups)}
        used |= set(self._swap.engines.values()) if self._swap is not None and self._swap.is_under_way else set()
        for engine in self._engines:
            if engine in used or engine.killed:
                continue
            if not engine.retired:
                engine.retired, engine.since_ns = True, self._clock()
            if engine.ledger is None or not engine.ledger.is_reading(engine):
                self._kill(engine, "it is no longer needed")

    def _update_routes(self) -> None:
        self.routes = {dnn: group.engine for group in self._groups if group.engine is not None for dnn in group.dnns}

    def _restore(self, group: Group) -> None:
        """Prepare an engine for a group that needs one, or a standby; let it serve when it is configured."""
        needed, paused = not group.is_served, self._clock() < group.next_attempt_ns
        swapping = self._swap is not None and self._swap.is_under_way
        wanted = needed or (self._standby != "none" and not group.own and not swapping)
        if group.spare is None and wanted and not paused:
            group.spare = self._new_engine(group.device)
            if group.spare is None:
                group.failures += 1
                group.next_attempt_ns = self._clock() + self._pause_ns(max(2, group.failures))
        spare = group.spare
        if spare is None or (group.disabled and paused):
            return
        if not spare.dnns and (needed or self._standby == "hot"):
            in_background = group.engine is not None
            self._configure(spare, group.dnns, self._configs[group.device], in_background=in_background)
        if needed and spare.description is not None:
            group.spare = None
            self._assign(group, spare)
        elif not needed and group.has_standby(self._standby):
            group.spare_cause = ""

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
        engine.send(messages.Configure(config, dnns, self._build, in_background))

    def _assign(self, group: Group, engine: Engine) -> None:
        """Let a configured engine serve the group."""
        now_ns, names = self._clock(), ", ".join(group.dnns)
        if group.cause and group.engine is None:
            group.restarts += 1
            group.gap_ms = (now_ns - group.lost_ns) / 1e6
            log.warning("%s serves %s again after %.0f ms", group.name, names, group.gap_ms)
        group.engine, group.disabled, group.served_since_ns = engine, "", now_ns
        if self._ledger is not None:
            self._ledger.enable(group.dnns)  # also if their previous engine had disabled them

    def _cancel(self, cause: str) -> None:
        """End the preparation of a swap that is under way."""
        if self._swap is not None and self._swap.is_under_way:
            self._swap.failure = cause
            for engine in self._swap.engines.values():
                self._kill(engine, "the new settings are not used")
            self._swap.notify()

    def _kill(self, engine: Engine, cause: str) -> None:
        """End an engine without a role; its frames are dropped at once."""
        if not engine.killed:
            engine.killed = True
            engine.kill(cause)
            if engine.ledger is not None:
                self._later.append(partial(engine.ledger.engine_lost, engine, cause))


def _runtime_parameters(config: NodeConfig, dnn: str) -> dict[str, Any]:
    """The runtime parameters of a DNN and their values, by name without `dnn.<dnn>.`."""
    settings = config.dnns[dnn]
    found = {name: getattr(settings, name) for name in runtime_fields(type(settings))}
    for output, section in settings.outputs.items():
        found.update({f"output.{output}.{name}": getattr(section, name) for name in runtime_fields(type(section))})
    return found
