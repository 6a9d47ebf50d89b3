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
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving import messages
from multi_dnn_ros.serving.descriptions import Build, Changes, EngineStatus, Level
from multi_dnn_ros.serving.groups import Group, Loss, Standby, SupervisionTimes, group_status
from multi_dnn_ros.serving.hang_detector import HangDetector
from multi_dnn_ros.serving.ledger import Ledger
from multi_dnn_ros.serving.supervised_engine import Phase, SupervisedEngine
from multi_dnn_ros.serving.swap import Swap
from multi_dnn_ros.settings.dnn_parameters import assign
from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig, OutputConfig
from multi_dnn_ros.settings.section import runtime_fields

log = logging.getLogger(__name__)

#: Pause before the next standby after one was lost while it was prepared; it may not fit into memory.
_STANDBY_PAUSE_NS = 60_000_000_000
#: Share of the stop timeout in which an engine finishes its frames; in the remaining time the last results arrive.
_STOP_SHARE = 0.9
_DRAIN_GRACE_S = 1.0


@dataclass(frozen=True)
class TakenOver:
    """Event: the first result of a DNN from another engine. gap_ms: since its previous result; None: it has none."""

    dnn: str
    gap_ms: float | None


class Supervisor:
    """Thread-safe; the caller passes the events of the engines to :meth:`handle` and calls :meth:`tick` often.

    configs: by device, the settings of its DNNs. engines: by device, an engine that is configured for all of them.
    start: (device) -> a new engine; raises OSError. clock: nanoseconds, monotonic. swap: the latest swap.
    """

    def __init__(
        self,
        configs: Mapping[str, NodeConfig],
        engines: Mapping[str, SupervisedEngine],
        start: Callable[[str], SupervisedEngine],
        build: Build,
        times: SupervisionTimes,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        config = next(iter(configs.values()))
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.swap: Swap | None = None
        self._configs = dict(configs)
        self._start = start
        self._build = build
        self._times = times
        self._clock = clock
        self._standby_mode = config.standby if config.isolation == "process" else "none"
        self._hangs = HangDetector(config.job_timeout_s, config.heartbeat_timeout_s, clock)
        self._stop_timeout_s = config.stop_timeout_s
        self._runtime = {dnn: _runtime_parameters(it) for each in configs.values() for dnn, it in each.dnns.items()}
        self._ledger: Ledger | None = None  # while frames arrive
        self._engines = list(engines.values())  # that have not ended
        self._groups = [Group(device, tuple(it.dnns), engine=engines[device]) for device, it in configs.items()]
        self._standbys = {device: Standby() for device in configs}
        self._closed = False
        self._hanging: list[str] = []
        #: By DNN, the engine that serves it now; replaced as a whole, so it can be read without the lock.
        self.routes: Mapping[str, SupervisedEngine] = {}

    # -- called by the host

    def start(self, ledger: Ledger) -> None:
        """Frames arrive from now on; the answers go to `ledger`."""
        with self.lock:
            self._ledger = ledger
            for group in self._groups:
                if group.disabled is not None:
                    ledger.failure(Failure(group.dnns[0], group.disabled, 1, True))
                if group.loss is not None and group.loss.gap_ms is None:  # nothing was missed meanwhile
                    group.loss.at_ns = self._clock()
                if group.engine is not None and group.engine.phase is Phase.CONFIGURED:
                    self._serve(group)
            self._reconcile()

    def stop(self, timeout_s: float) -> list[str]:
        """Finish the frames, except those left after the timeout.

        Returns the names of threads or processes that hang; such engines are replaced.
        """
        end = time.monotonic() + timeout_s
        with self.lock:
            if self._ledger is None:
                return []
            self._hanging = []
            self._ledger, self.routes = None, {}
            self._stop_timeout_s = timeout_s
            for engine in self._engines:
                if engine.phase is Phase.SERVING:
                    engine.enter(Phase.STOPPING, self._clock())
                    engine.stop_serving(_STOP_SHARE * timeout_s)
            self.changed.wait_for(lambda: not self._finishing(), max(0.0, end - time.monotonic()))
            for engine in self._finishing():
                self._hanging.append(f"engine process {engine.pid}")
                self._lose(engine, f"hung: it did not stop within {timeout_s:g} s (parameter stop_timeout_s)")
            return list(self._hanging)

    def update(self, dnn: str, name: str, value: Any) -> None:
        """Send a runtime parameter to every engine, and to those that are started later."""
        with self.lock:
            self._runtime[dnn][name] = value
            for engine in self._engines:
                engine.send(messages.Update(dnn, name, value))

    def begin_swap(self, changes: Changes, notify: Callable[[], None]) -> Swap:
        """Prepare engines with other settings of DNNs; see :class:`Swap`. A swap that is under way is cancelled."""
        with self.lock:
            if self.swap is not None:
                self.swap.cancel("the settings have changed again")
            configs = {device: _with(_with(it, self._runtime), changes) for device, it in self._configs.items()}
            self.swap = swap = Swap(self.lock, self.kill, self.adopt, configs, notify)
            for group in self._groups:
                if not changes.keys().isdisjoint(group.dnns):
                    standby = self._standbys[group.device]
                    engine, standby.engine = standby.engine, None
                    if engine is not None and not engine.is_unbound:  # it has the previous settings
                        self.kill(engine, "its memory is needed for new settings")
                        engine = None
                    engine = engine or self._new_engine(group.device)
                    if engine is None:
                        swap.fail("an engine process could not be started")
                        break
                    swap.engines.append((group, group.dnns, engine))
            self._reconcile()
            return swap

    def adopt(self, swap: Swap) -> None:
        """The engines that a swap has prepared serve from now on; called with the lock."""
        self._configs = dict(swap.configs)
        for group, _, engine in swap.engines:
            group.retries = 0
            self._assign(group, engine)
        self._reconcile()

    def kill(self, engine: SupervisedEngine, cause: str) -> None:
        """End an engine without a role; called with the lock."""
        engine.enter(Phase.KILLED, self._clock())
        engine.kill(cause)

    def close(self, timeout_s: float) -> list[int]:
        """End all engines. Returns the ids of processes that have not ended."""
        end = time.monotonic() + timeout_s
        with self.lock:
            self._closed, self._ledger, self.routes = True, None, {}
            if self.swap is not None:
                self.swap.cancel("the engine was closed")
            engines = list(self._engines)
        for engine in engines:
            engine.kill("the engine was closed")
        return [engine.pid for engine in engines if not engine.wait(max(0.0, end - time.monotonic()))]

    # -- queries

    @property
    def is_steady(self) -> bool:
        """Whether nothing is about to change its phase."""
        with self.lock:
            steady = (Phase.READY, Phase.CONFIGURED, Phase.SERVING)
            return all(engine.phase in steady for engine in self._engines) and all(
                group.engine is not None and group.disabled is None for group in self._groups
            )

    def unserved(self, dnn: str) -> tuple[DropReason, str]:
        """Why no engine serves a DNN: the reason and the message of its drops."""
        with self.lock:
            group = next(group for group in self._groups if dnn in group.dnns)
            if self._ledger is None:
                return DropReason.SHUTDOWN, "the engine is stopping"
            if group.disabled is not None:
                return DropReason.DISABLED, group.disabled
            cause = f" ({group.loss.cause})" if group.loss is not None else ""
            return DropReason.ENGINE_LOST, f"no engine process serves the DNN at this moment{cause}"

    def statuses(self) -> list[EngineStatus]:
        """One status for each group, see :func:`group_status`; WARN also while the standby is missing."""
        with self.lock:
            now_ns, found = self._clock(), []
            for group in self._groups:
                standby = self._standbys[group.device]
                text = standby.text(self._standby_mode, self._standby_phase(group.device))
                window_s, active = self._times.fault_window_s, self._ledger is not None
                status = group_status(group, text, window_s, now_ns, active=active)
                if status.level is Level.OK and standby.engine is None and standby.reason:
                    status = replace(status, level=Level.WARN, text=f"{status.text}; standby: {text}")
                found.append(status)
            return found

    def memory(self) -> dict[str, int]:
        """Sum over all engines, bytes by name."""
        total: dict[str, int] = {}
        with self.lock:
            for engine in self._engines:
                for name, value in engine.memory.items():
                    total[f"engine processes {name}"] = total.get(f"engine processes {name}", 0) + value
        return total

    # -- events

    def handle(self, engine: SupervisedEngine | None, message: Any) -> None:
        """An event of an engine (None: of the ledger)."""
        with self.lock:
            if self._closed:
                return
            if isinstance(message, TakenOver):
                self._taken_over(message)
            elif engine is not None and engine in self._engines:
                self._handle(engine, message)
            self._reconcile()
            self.changed.notify_all()

    def tick(self) -> None:
        """Time has passed: replace the engines that hang."""
        with self.lock:
            if self._closed:
                return
            self._hangs.tick()
            faults = [(engine, self._hangs.fault(engine) or self._drain_fault(engine)) for engine in self._engines]
            # Those that serve come last, so that their DNNs are not given to an engine that hangs, too.
            for engine, fault in sorted(faults, key=lambda each: each[0].phase is Phase.SERVING):
                if fault:
                    self._lose(engine, fault)
            self._reconcile()
            self.changed.notify_all()

    def _handle(self, engine: SupervisedEngine, message: Any) -> None:
        now_ns, phase = self._clock(), engine.phase
        if isinstance(message, messages.Ended):
            self._lose(engine, message.cause)
            self._engines.remove(engine)
        elif phase is Phase.KILLED:
            return
        elif isinstance(message, messages.Ready):
            engine.enter(Phase.READY, now_ns)
        elif isinstance(message, messages.Progressed):
            if self.swap is not None:
                self.swap.progressed(engine, message.progress)
        elif isinstance(message, messages.Configured):
            engine.description = message.description
            engine.enter(Phase.CONFIGURED, now_ns)
        elif isinstance(message, messages.Refused):
            lines = message.text.strip().splitlines() or [""]
            self._lose(engine, lines[0 if message.expected else -1], refused=True)
        elif isinstance(message, messages.Report):
            engine.memory = message.memory
            if message.ended_threads:
                self._lose(engine, f"threads ended with an error: {', '.join(message.ended_threads)}")
        elif isinstance(message, messages.Stopped):
            self._hanging.extend(message.hanging)
            if phase is Phase.DRAINING:
                self.kill(engine, "it is no longer needed")
            elif message.hanging:
                self._lose(engine, f"threads did not end when it stopped: {', '.join(message.hanging)}")
            else:
                engine.enter(Phase.CONFIGURED, now_ns)
        elif isinstance(message, messages.Aborting):
            # Do not wait until it ends: after an illegal address the driver takes half a second for that (H100).
            self._lose(engine, message.cause)

    def _taken_over(self, event: TakenOver) -> None:
        group = next(group for group in self._groups if event.dnn in group.dnns)
        if group.loss is not None and group.loss.gap_ms is None:
            since_loss_ms = (self._clock() - group.loss.at_ns) / 1e6
            group.loss.gap_ms = since_loss_ms if event.gap_ms is None else event.gap_ms
            log.warning(
                "%s serves %s again after %.0f ms (restarts: %d)",
                group.name, ", ".join(group.dnns), group.loss.gap_ms, group.restarts,
            )  # fmt: skip
        if self.swap is not None and event.gap_ms is not None:
            self.swap.taken_over(event.dnn, event.gap_ms)

    # -- losses

    def _lose(self, engine: SupervisedEngine, cause: str, *, refused: bool = False) -> None:
        """An engine has ended, hangs, or cannot continue: end it and remove it from its role, which others take over
        without waiting for its end. refused: it could not be configured, which is no fault of a DNN at run time.
        """
        if engine.phase is Phase.KILLED:
            return
        standby = self._standbys[engine.device]
        was_ready = engine.phase in (Phase.READY, Phase.CONFIGURED)
        computing = ", ".join(engine.state.running_jobs())
        self.routes = {dnn: it for dnn, it in self.routes.items() if it is not engine}
        self.kill(engine, cause)
        if self.swap is not None:
            self.swap.engine_lost(engine, cause if refused else f"the new engine process was lost: {cause}")
        if standby.engine is engine:
            standby.engine, standby.reason = None, cause
            standby.next_attempt_ns = self._clock() + (0 if was_ready else _STANDBY_PAUSE_NS)
            log.warning("engine %s: the standby was lost: %s", engine.device, cause)
        for group in [group for group in self._groups if engine in (group.engine, group.replacement)]:
            what = f"{group.name} was lost" + (f" while computing {computing}" if computing else "")
            if group.engine is not engine:
                what = f"{group.name}: preparing an engine process for {', '.join(group.dnns)} failed"
            log.error("%s: %s", what, cause)
            self._count_loss(group, engine, cause, refused=refused)

    def _count_loss(self, group: Group, engine: SupervisedEngine, cause: str, *, refused: bool) -> None:
        now_ns = self._clock()
        window_ns = round(self._times.fault_window_s * 1e9)
        if group.served_since_ns is not None and now_ns - group.served_since_ns >= window_ns:
            group.pauses = group.retries = 0
        if group.engine is engine:
            group.engine = group.served_since_ns = None
        if group.replacement is engine:
            group.replacement = None
        if group.loss is None or group.loss.gap_ms is not None:
            group.loss = Loss(cause, now_ns)
        group.loss.cause = cause
        group.losses = [at for at in group.losses if now_ns - at < window_ns]
        if not refused and engine.dnns == group.dnns:  # not of an engine that still serves other groups
            group.losses.append(now_ns)
            if len(group.losses) > 1 and len(group.dnns) > 1:
                self._divide(group)
                return
            if len(group.dnns) == 1 and (len(group.losses) > 1 or group.retries):
                self._disable(group, cause)
                return
        group.next_attempt_ns = now_ns + _pause_ns(self._times.restart_s, group.pauses)
        group.pauses += 1

    def _divide(self, group: Group) -> None:
        """Each DNN gets an engine of its own; a hot standby serves all of them until then."""
        log.warning(
            "engine %s: %s get an engine process each after two losses within %g s (parameter fault_window_s)",
            group.device, ", ".join(group.dnns), self._times.fault_window_s,
        )  # fmt: skip
        singles = [Group(group.device, (dnn,), own=True, loss=group.loss) for dnn in group.dnns]
        self._groups[self._groups.index(group) : self._groups.index(group) + 1] = singles
        standby = self._take_standby(group.dnns, bound=True)
        for single in singles if standby is not None else ():
            assert standby is not None
            self._assign(single, standby)

    def _disable(self, group: Group, cause: str) -> None:
        pause_ns = _pause_ns(self._times.retry_s, group.retries)
        group.retries += 1
        group.losses = []
        group.next_attempt_ns = self._clock() + pause_ns
        group.disabled = f"disabled because its engine process was lost: {cause}; next retry in {pause_ns / 1e9:g} s"
        if self._ledger is not None:
            self._ledger.failure(Failure(group.dnns[0], group.disabled, 1, True))

    # -- from the actual to the desired state

    def _reconcile(self) -> None:
        for group in list(self._groups):
            self._restore(group)
        if self.swap is not None:
            self._advance_swap(self.swap)
        for device, standby in self._standbys.items():
            self._advance_standby(device, standby)
        self._end_unused()

    def _restore(self, group: Group) -> None:
        """Prepare an engine for a group that has none, or shares one, once its pause is over; one step per call."""
        if group.engine is not None and (not group.own or group.engine.dnns == group.dnns):
            return
        if group.replacement is None:
            standby = None if group.engine is not None else self._take_standby(group.dnns, bound=True)
            if standby is not None:  # it can serve at once: no pause
                self._assign(group, standby)
                return
            if self._clock() < group.next_attempt_ns:
                return
            group.replacement = self._take_standby(group.dnns, bound=False) or self._new_engine(group.device)
            if group.replacement is None:
                group.next_attempt_ns = self._clock() + _pause_ns(self._times.restart_s, max(1, group.pauses))
                group.pauses += 1
                return
        self._configure(group.replacement, group.dnns, in_background=group.engine is not None)
        if group.replacement.phase is Phase.CONFIGURED:
            self._assign(group, group.replacement)

    def _advance_swap(self, swap: Swap) -> None:
        for group, dnns, engine in swap.engines if swap.is_under_way else ():
            if group not in self._groups:
                swap.fail(f"after a fault, {', '.join(dnns)} are being divided among processes; try again later")
                return
            self._configure(engine, dnns, in_background=True, config=swap.configs[group.device])
        swap.check()

    def _advance_standby(self, device: str, standby: Standby) -> None:
        groups = [group for group in self._groups if group.device == device]
        busy = self.swap is not None and self.swap.is_under_way
        busy = busy or any(group.engine is None or group.replacement is not None for group in groups)
        if self._standby_mode == "none":
            return
        if standby.engine is None and not busy and self._clock() >= standby.next_attempt_ns:
            standby.engine = self._new_engine(device)
            standby.next_attempt_ns = self._clock() + _STANDBY_PAUSE_NS if standby.engine is None else 0
        if standby.engine is not None and standby.engine.dnns and len(groups) > 1:
            self.kill(standby.engine, "its DNNs have an engine process each")
            standby.engine = None
        elif standby.engine is not None and self._standby_mode == "hot" and len(groups) == 1:
            self._configure(standby.engine, groups[0].dnns, in_background=True)
        if standby.engine is not None and standby.engine.phase is self._standby_phase(device):
            standby.reason = ""

    def _end_unused(self) -> None:
        """Make engines without a role finish their frames, then end them."""
        used = [standby.engine for standby in self._standbys.values()]
        used += [engine for group in self._groups for engine in (group.engine, group.replacement)]
        if self.swap is not None and self.swap.is_under_way:
            used += [engine for _, _, engine in self.swap.engines]
        for engine in self._engines:
            if engine in used or engine.phase in (Phase.DRAINING, Phase.KILLED):
                continue
            if engine.phase is Phase.SERVING:
                engine.enter(Phase.DRAINING, self._clock())
                engine.stop_serving(self._stop_timeout_s)
            elif engine.phase is Phase.STOPPING:
                engine.enter(Phase.DRAINING, self._clock())
            else:
                self.kill(engine, "it is no longer needed")

    # -- operations

    def _new_engine(self, device: str) -> SupervisedEngine | None:
        try:
            engine = self._start(device)
        except Exception as error:  # OSError; RuntimeError: no thread can be started
            log.error("engine %s: an engine process could not be started: %s", device, error)
            return None
        self._engines.append(engine)
        return engine

    def _configure(
        self, engine: SupervisedEngine, dnns: tuple[str, ...], *, in_background: bool, config: NodeConfig | None = None
    ) -> None:
        """Configure the engine if its imports are done; no effect in any other phase."""
        if engine.phase is Phase.READY:
            engine.dnns = dnns
            engine.enter(Phase.CONFIGURING, self._clock())
            engine.send(messages.Configure(config or self._configs[engine.device], dnns, self._build, in_background))

    def _take_standby(self, dnns: tuple[str, ...], *, bound: bool) -> SupervisedEngine | None:
        """The standby of these DNNs if it can serve them at once (bound), or can be configured for them."""
        device = next(device for device, it in self._configs.items() if dnns[0] in it.dnns)
        standby = self._standbys[device]
        engine = standby.engine
        if engine is None:
            return None
        usable = engine.dnns == dnns and (engine.phase is Phase.CONFIGURED or not bound)
        if not usable and (bound or not engine.is_unbound):
            return None
        standby.engine = None
        return engine

    def _assign(self, group: Group, engine: SupervisedEngine) -> None:
        """Assign a configured engine to the group; it serves if frames arrive."""
        group.engine, group.replacement = engine, None
        if group.loss is not None and group.loss.gap_ms is None:
            group.restarts += 1
        if self._ledger is not None:
            self._serve(group)

    def _serve(self, group: Group) -> None:
        """Route the frames of the group to its engine."""
        engine, ledger = group.engine, self._ledger
        assert engine is not None
        assert ledger is not None
        for dnn in group.dnns:  # also a DNN that its previous engine had disabled
            ledger.enabled(dnn)
        group.disabled = None
        if engine.phase is Phase.CONFIGURED:
            engine.enter(Phase.SERVING, self._clock())
            engine.start_serving(ledger, self._runtime)
        group.served_since_ns = self._clock()
        self.routes = {**self.routes, **dict.fromkeys(group.dnns, engine)}

    def _finishing(self) -> list[SupervisedEngine]:
        return [engine for engine in self._engines if engine.phase in (Phase.STOPPING, Phase.DRAINING)]

    def _drain_fault(self, engine: SupervisedEngine) -> str:
        limit_s = self._stop_timeout_s + _DRAIN_GRACE_S
        if engine.phase is not Phase.DRAINING or (self._clock() - engine.since_ns) / 1e9 <= limit_s:
            return ""
        return f"hung: it did not finish its frames within {limit_s:g} s (parameter stop_timeout_s)"

    def _standby_phase(self, device: str) -> Phase:
        """The phase in which the standby of a device can take over."""
        groups = [group for group in self._groups if group.device == device]
        return Phase.CONFIGURED if self._standby_mode == "hot" and len(groups) == 1 else Phase.READY


def _pause_ns(pauses_s: Collection[float], earlier: int) -> int:
    return round(list(pauses_s)[min(earlier, len(pauses_s) - 1)] * 1e9)


def _with(config: NodeConfig, changes: Changes) -> NodeConfig:
    """A copy of the settings with these values; values of DNNs that it does not have are ignored."""
    changed = config.model_copy(deep=True)
    for dnn, values in changes.items():
        if dnn in changed.dnns:
            for name, value in values.items():
                assign(changed.dnns[dnn], name, value)
    return changed


def _runtime_parameters(settings: DnnConfig) -> dict[str, Any]:
    """The runtime parameters of a DNN and their values, by name without `dnn.<dnn>.`."""

    def values(section: DnnConfig | OutputConfig) -> dict[str, Any]:
        return {name: getattr(section, name) for name in runtime_fields(type(section))}

    found = values(settings)
    for output, section in settings.outputs.items():
        found.update({f"output.{output}.{name}": value for name, value in values(section).items()})
    return found
