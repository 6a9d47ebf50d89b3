"""The engines of the node: one per device, supervised, in processes of their own or in the node's process."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving import default_build, messages
from multi_dnn_ros.serving.descriptions import (
    Build,
    Cancelled,
    Changes,
    ConfigureError,
    EngineDescription,
    EngineStatus,
    Progress,
)
from multi_dnn_ros.serving.engine_process import EngineProcess
from multi_dnn_ros.serving.groups import SupervisionTimes
from multi_dnn_ros.serving.ledger import Ledger
from multi_dnn_ros.serving.local_engine import InProcessEngine
from multi_dnn_ros.serving.memory import with_memory_limit
from multi_dnn_ros.serving.slots import Slot, SlotPool, open_pools
from multi_dnn_ros.serving.supervised_engine import Events, MakeEngine, Phase, SupervisedEngine
from multi_dnn_ros.serving.supervisor import Supervisor, TakenOver
from multi_dnn_ros.serving.swap import Swap
from multi_dnn_ros.settings.schema import NodeConfig

log = logging.getLogger(__name__)

#: Interval at which a wait for an engine looks for a cancellation.
_POLL_S = 0.05
#: Time between two checks while an engine is started, configured, stopped or due for a restart.
_TICK_S = 0.05
#: Otherwise that time is a tenth of the smaller of job_timeout_s and heartbeat_timeout_s, within these limits.
_MAX_TICK_S = 0.25
#: Maximum time for a killed engine to end, and for close().
_KILL_S, _CLOSE_S = 0.8, 2.0
_NO_PROCESS = "an engine process cannot be started"


class Host:
    """Order of calls: configure, start, (offer, update)*, stop, start, ..., close.

    Methods may be called from any thread. At most one of configure, start, stop and close may run at a time, except
    that cancel and close may be called while configure is running.

    build: makes the pipeline in the engine's process. make: starts an engine; None: according to the parameter
    `isolation`. times: pauses of the supervision; its window is that of the parameter fault_window_s.
    """

    def __init__(
        self,
        build: Build = default_build.build,
        *,
        make: MakeEngine | None = None,
        times: SupervisionTimes = SupervisionTimes(),  # noqa: B008  (immutable)
    ) -> None:
        self._build = build
        self._make = make
        self._times = times
        self._cancelled = threading.Event()
        self._preparing = threading.Lock()  # held by configure
        self._events: Events = queue.SimpleQueue()
        self._pools: Mapping[str, SlotPool] = {}
        self._cameras: Mapping[str, tuple[str, ...]] = {}  # by DNN
        self._supervisor: Supervisor | None = None  # once configured
        self._ledger: Ledger | None = None
        self._thread: threading.Thread | None = None
        self._tick_s = _TICK_S
        self._last_check_s = time.monotonic()

    # -- before serving

    def configure(self, config: NodeConfig, progress: Callable[[Progress], None]) -> EngineDescription:
        """Load, cut and warm up the DNNs; blocks. Raises ConfigureError or Cancelled, after freeing everything."""
        with self._preparing:
            if self._supervisor is not None:
                raise RuntimeError("the engine is already configured; call close() before configure()")
            self._cancelled.clear()
            self._events = queue.SimpleQueue()
            engines: list[SupervisedEngine] = []
            config = config.model_copy(deep=True)
            start = partial(self._start_engine, config)
            try:
                self._pools = open_pools(config)
                engines.append(start("1"))
                devices = self._divide(config, engines[0], progress)
                engines.extend(start(device) for device in list(devices)[1:])
                descriptions = self._configure_devices(devices, engines, progress)
            except OSError as error:
                self._discard(engines)
                raise ConfigureError(with_memory_limit(f"{_NO_PROCESS}: {error}")) from error
            except BaseException:
                self._discard(engines)
                raise
            if len(devices) == 1:  # its name is only known now
                devices = {descriptions[0].device: next(iter(devices.values()))}
            times = replace(self._times, fault_window_s=config.fault_window_s)
            by_device = dict(zip(devices, engines, strict=True))
            for device, engine in by_device.items():
                engine.device = device
            self._cameras = {name: dnn.cameras for it in descriptions for name, dnn in it.dnns.items()}
            timeout_s = min(config.job_timeout_s, config.heartbeat_timeout_s)
            self._tick_s = min(max(_TICK_S, timeout_s / 10), _MAX_TICK_S)
            self._supervisor = Supervisor(devices, by_device, start, self._build, times)
            self._thread = threading.Thread(target=self._supervise, name="engine supervision", daemon=True)
            self._thread.start()
            return _combine(config, dict(zip(devices, descriptions, strict=True)))

    def cancel(self) -> None:
        """Make a running configure raise Cancelled within a second; no effect otherwise."""
        self._cancelled.set()

    def _start_engine(self, config: NodeConfig, device: str) -> SupervisedEngine:
        make = self._make
        if make is None and config.isolation == "none":
            make = InProcessEngine
        elif make is None:
            make = partial(EngineProcess, modules=default_build.modules_of(self._build))
        return SupervisedEngine(make, f"engine {device}", device, tuple(config.dnns), self._pools, self._events)

    def _divide(
        self, config: NodeConfig, engine: SupervisedEngine, progress: Callable[[Progress], None]
    ) -> dict[str, NodeConfig]:
        """The settings of each device's DNNs, by its name. The engine is asked, because it knows the GPUs."""
        if all(dnn.device == "auto" for dnn in config.dnns.values()):
            return {config.device: config}
        engine.send(messages.FindDevices(config, self._build))
        answer = self._wait_for(messages.DevicesFound, "choosing the devices", progress)
        parts: dict[str, NodeConfig] = {}
        for device in dict.fromkeys(answer.devices.values()):
            dnns = {
                name: settings.model_copy(update={"device": "auto"})
                for name, settings in config.dnns.items()
                if answer.devices[name] == device
            }
            parts[device] = config.model_copy(update={"device": device, "dnns": dnns})
        return parts

    def _configure_devices(
        self,
        devices: Mapping[str, NodeConfig],
        engines: Sequence[SupervisedEngine],
        progress: Callable[[Progress], None],
    ) -> list[EngineDescription]:
        """Configure the engine of each device, one after another, because configuring includes time measurements."""
        total = sum(len(part.dnns) for part in devices.values())
        ready = 0
        descriptions = []
        for (device, part), engine in zip(devices.items(), engines, strict=True):
            name = f"{device}: " if len(devices) > 1 else ""

            def report(step: Progress, name: str = name, before: int = ready) -> None:
                progress(replace(step, text=name + step.text, ready=before + step.ready, total=total))

            engine.device, engine.dnns = device, tuple(part.dnns)
            engine.send(messages.Configure(part, engine.dnns, self._build))
            answer = self._wait_for(messages.Configured, "configuring", report, name)
            engine.description = answer.description
            engine.enter(Phase.CONFIGURED, time.monotonic_ns())
            descriptions.append(answer.description)
            ready += len(part.dnns)
        return descriptions

    def _wait_for(self, kind: type, activity: str, progress: Callable[[Progress], None], name: str = "") -> Any:
        """Wait for a message of this kind. Raises ConfigureError if an engine refuses or ends. name: begins its
        text.
        """
        while not self._cancelled.is_set():
            try:
                _, message = self._events.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if isinstance(message, messages.Progressed):
                progress(message.progress)
            elif isinstance(message, messages.Refused):
                raise ConfigureError(name + message.text, expected=message.expected)
            elif isinstance(message, messages.Ended):
                tail = f"\n{message.output_tail}" if message.output_tail else ""
                raise ConfigureError(f"the engine process ended while {activity}: {message.cause}{tail}")
            elif isinstance(message, kind):
                return message
        raise Cancelled

    def _discard(self, engines: Iterable[SupervisedEngine]) -> None:
        """End the engines of a configuration that was cancelled or failed, and free the memory."""
        for engine in engines:
            engine.kill("configuring was cancelled or failed")
        end = time.monotonic() + _KILL_S  # for all together
        _log_survivors([engine.pid for engine in engines if not engine.wait(max(0.0, end - time.monotonic()))])
        self._close_pools()

    # -- serving

    def start(self, ledger: Ledger) -> None:
        """Serve frames. Each frame that is offered is answered in `ledger` for each of its DNNs."""
        if self._supervisor is None:
            raise RuntimeError("the engine is not configured")
        self._ledger = ledger
        ledger.on_taken_over = lambda dnn, gap_ms: self._events.put((None, TakenOver(dnn, gap_ms)))
        self._supervisor.start(ledger)

    def buffer(self, camera: str, timeout_s: float) -> Slot | None:
        """Memory for the next image of a camera, which the caller releases or opens in the ledger; None on timeout."""
        pool = self._pools.get(camera)
        return None if pool is None else pool.take(timeout_s)

    def serves(self, camera: str) -> bool:
        """Whether at least one DNN of the camera has an engine now."""
        supervisor = self._supervisor
        routes = supervisor.routes if supervisor is not None else {}
        return any(engine.accepts and camera in self._cameras[dnn] for dnn, engine in routes.items())

    def decodes_jpeg(self, dnns: Collection[str]) -> bool:
        """Whether every engine that serves one of the DNNs now decodes JPEG files on its device. Other engines decode
        them on the CPU, each for itself.
        """
        routes = self._supervisor.routes if self._supervisor is not None else {}
        found = [routes[dnn].description for dnn in dnns if dnn in routes]
        return bool(found) and all(it is not None and it.decodes_jpeg for it in found)

    def offer(self, number: int, frame: Frame, buffer: Slot, dnns: Collection[str]) -> None:
        """Hand a frame of the ledger to those DNNs that have an engine, and drop it for the others. Blocks only while
        an engine process receives nothing, for at most a second per process.
        """
        supervisor, ledger = self._supervisor, self._ledger
        if supervisor is None or ledger is None:
            raise RuntimeError("a frame was offered before the engine was started")
        # Again for those whose engine has been replaced between reading the routes and the offer.
        unserved = self._offer_once(number, frame, buffer, dnns)
        for dnn in self._offer_once(number, frame, buffer, unserved) if unserved else ():
            ledger.drop(number, dnn, *supervisor.unserved(dnn))

    def _offer_once(self, number: int, frame: Frame, buffer: Slot, dnns: Collection[str]) -> list[str]:
        """Returns the DNNs that no engine has got the frame for."""
        routes = self._supervisor.routes if self._supervisor is not None else {}
        by_engine: dict[SupervisedEngine | None, list[str]] = {}
        for dnn in dnns:
            by_engine.setdefault(routes.get(dnn), []).append(dnn)
        unserved: list[str] = []
        for engine, served in by_engine.items():
            if engine is None or not engine.offer(number, frame, buffer, served):
                unserved += served
        return unserved

    def update(self, dnn: str, name: str, value: Any) -> None:
        """A runtime parameter of a DNN has changed. name: without `dnn.<dnn>.`."""
        if self._supervisor is not None:
            self._supervisor.update(dnn, name, value)

    def swap(self, changes: Changes, notify: Callable[[], None]) -> Swap:
        """Begin to change the settings of DNNs, which continue to serve. A swap that is under way is cancelled.

        notify: called in any thread when the state of the swap may have changed; must not block or use the swap.
        """
        if self._supervisor is None:
            raise ConfigureError("the engine is not configured")
        return self._supervisor.begin_swap(changes, notify)

    def stop(self, timeout_s: float) -> list[str]:
        """Finish the frames that are waiting or in progress; drop those left after the timeout.

        Returns the names of threads or processes that hang.
        """
        if self._supervisor is None:
            return []
        hanging = self._supervisor.stop(timeout_s)
        if self._ledger is not None:
            self._ledger.drop_unanswered(DropReason.SHUTDOWN, "still in progress when the engine's stop timed out")
        return hanging

    def close(self) -> None:
        """Stop, and free everything, within 2 s."""
        end = time.monotonic() + _CLOSE_S
        self._cancelled.set()
        with self._preparing:  # a running configure() ends within a second
            supervisor, self._supervisor = self._supervisor, None
        if supervisor is None:
            return
        if self._ledger is not None:
            self._ledger.drop_unanswered(DropReason.SHUTDOWN, "the engine was closed")
        _log_survivors(supervisor.close(max(0.1, end - time.monotonic())))
        self._events.put((None, None))  # the thread ends at once
        if self._thread is not None:
            self._thread.join(max(0.1, end - time.monotonic()))
        self._close_pools()

    def _close_pools(self) -> None:
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()

    # -- queries

    def statuses(self) -> list[EngineStatus]:
        """The statuses of the engines for diagnostics."""
        return self._supervisor.statuses() if self._supervisor is not None else []

    def memory(self) -> Mapping[str, int]:
        """Memory in use by the engines, by name with the unit."""
        return self._supervisor.memory() if self._supervisor is not None else {}

    def supervision_age_s(self) -> float:
        """Time since the supervision of the engines last ran; 0.0 if there are none. Takes no lock."""
        return time.monotonic() - self._last_check_s if self._supervisor is not None else 0.0

    # -- the supervising thread

    def _supervise(self) -> None:
        while (supervisor := self._supervisor) is not None:
            self._last_check_s = time.monotonic()
            try:
                engine, message = self._events.get(timeout=self._tick_s if supervisor.is_steady else _TICK_S)
            except queue.Empty:
                engine, message = None, None
            try:
                if message is not None:
                    supervisor.handle(engine, message)
                supervisor.tick()
            except Exception:  # without this thread no lost engine would be replaced
                log.exception("an error in the supervision of the engine processes; supervision continues")


def _log_survivors(pids: Iterable[int]) -> None:
    for pid in pids:
        log.error("engine process %d did not end after SIGKILL; its memory is not free until it ends", pid)


def _combine(config: NodeConfig, parts: Mapping[str, EngineDescription]) -> EngineDescription:
    """One description of all engines. parts: by device."""
    first = next(iter(parts.values()))
    if len(parts) == 1:
        return first
    dnns = {name: dnn for part in parts.values() for name, dnn in part.dnns.items()}
    return EngineDescription(
        device=", ".join(parts),
        device_name=", ".join(dict.fromkeys(part.device_name for part in parts.values())),
        workers=sum(part.workers for part in parts.values()),
        dnns={name: dnns[name] for name in config.dnns if name in dnns},
        fits={device: fit for device, part in parts.items() for fit in part.fits.values()},
        versions=first.versions,
        decodes_jpeg=all(part.decodes_jpeg for part in parts.values()),
    )
