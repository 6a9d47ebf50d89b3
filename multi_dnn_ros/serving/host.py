"""The engines of the node: one per device, supervised, in processes of their own or in the node's process."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial

from multi_dnn_ros.backends.host import has_gpu_driver
from multi_dnn_ros.common.resources import cpu_count
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.planning.units import UnitError, parse_unit, sharing_warnings
from multi_dnn_ros.serving import messages
from multi_dnn_ros.serving.descriptions import (
    Build,
    Cancelled,
    ConfigureError,
    EngineDescription,
    build_pipeline,
    modules_of,
)
from multi_dnn_ros.serving.engine_process import Engine, Events, LocalEngine
from multi_dnn_ros.serving.ledger import Ledger
from multi_dnn_ros.serving.process_settings import with_memory_limit
from multi_dnn_ros.serving.shared_memory import Slot, SlotPool, open_pools
from multi_dnn_ros.serving.supervisor import PAUSES_S, Supervisor
from multi_dnn_ros.settings.schema import NodeConfig

log = logging.getLogger(__name__)

#: Interval at which a wait for an engine looks for a cancellation.
_POLL_S = 0.05
#: Maximum time between two checks of the engines.
_TICK_S = 0.1
#: Maximum time for killed engines to end.
_KILL_S = 0.8


class Host(Supervisor):
    """Order of calls: configure, start, (offer, update)*, stop, start, ..., close.

    Methods may be called from any thread. At most one of configure, start, stop and close may run at a time, except
    that cancel and close may be called while configure is running.

    build: makes the pipeline in the engine's process. pauses_s: of the supervision.
    """

    def __init__(self, build: Build = build_pipeline, pauses_s: tuple[float, ...] = PAUSES_S) -> None:
        super().__init__(build, pauses_s)
        self._cancelled = threading.Event()
        self._preparing = threading.Lock()  # held by configure
        self._config: NodeConfig | None = None  # while configured
        self._events: Events = queue.SimpleQueue()
        self._pools: Mapping[str, SlotPool] = {}

    # -- before serving

    def configure(self, config: NodeConfig, progress: Callable[[str], None]) -> EngineDescription:
        """Load, cut and warm up the DNNs; blocks. Raises ConfigureError or Cancelled, after freeing everything."""
        with self._preparing:
            if self._config is not None:
                raise RuntimeError("the engine is already configured; call close() before configure()")
            self._cancelled.clear()
            self._config, self._events = config.model_copy(deep=True), queue.SimpleQueue()
            try:
                self._pools = open_pools(config)
                engines = self._configure_all(self._config, progress)
            except OSError as error:
                self._discard()
                raise ConfigureError(with_memory_limit(f"an engine process cannot be started: {error}")) from error
            except BaseException:
                self._discard()
                raise
            descriptions = {it.device: it.description for it in engines if it.description is not None}
            self._supervise({it.device: it.config for it in engines if it.config is not None}, engines)
            threading.Thread(target=self._run, args=(self._events,), name="engine supervision", daemon=True).start()
            return _combine(config, descriptions)

    def cancel(self) -> None:
        """Make a running configure raise Cancelled within a second; no effect otherwise."""
        self._cancelled.set()

    def _start_engine(self, device: str) -> Engine:
        assert self._config is not None
        make = LocalEngine if self._config.isolation == "none" else Engine
        dnns, modules = tuple(self._config.dnns), modules_of(self._build)
        return make(f"engine {device}", device, dnns, self._pools, self._events, modules)

    def _configure_all(self, config: NodeConfig, progress: Callable[[str], None]) -> list[Engine]:
        """The configured engine of each device, one after another, because configuring includes time measurements."""
        parts = divide_devices(config)
        for device in parts:
            self._engines.append(self._start_engine(device))  # at once, so that it is ended if the next one fails
        for engine, (device, part) in zip(self._engines, parts.items(), strict=True):
            self._configure(engine, tuple(part.dnns), part, in_background=False)
            engine.description = self._configured(progress, f"{device}: " if len(parts) > 1 else "")
            engine.device = device if len(parts) > 1 else engine.description.device  # its name is only known now
            engine.since_ns = self._clock()
        return self._engines

    def _configured(self, progress: Callable[[str], None], device: str) -> EngineDescription:
        """Wait until an engine is configured. device: begins each line of progress. Raises ConfigureError if an engine
        refuses or ends, and Cancelled.
        """
        while not self._cancelled.is_set():
            try:
                _, message = self._events.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if isinstance(message, messages.Progress):
                progress(device + message.text)
            elif isinstance(message, messages.Refused):
                raise ConfigureError(message.text, expected=message.expected)
            elif isinstance(message, messages.Ended):
                raise ConfigureError(f"the engine process ended while configuring: {message.cause}")
            elif isinstance(message, EngineDescription):
                return message
        raise Cancelled

    def close(self) -> None:
        """Stop, and free everything, within 2 s."""
        self._cancelled.set()
        with self._preparing:  # a running configure() ends within a second
            with self._lock:
                ledger, self._ledger = self._ledger, None
            if ledger is not None:
                ledger.drop_unanswered(DropReason.SHUTDOWN, "the engine was closed")
            with self._locked():
                self._cancel("the engine was closed")
            self._discard()

    def _discard(self) -> None:
        """End the engines, and free their memory."""
        with self._lock:
            engines, self._engines, self._groups = self._engines, [], []
            self.routes, self._swap, self._config = {}, None, None
        for engine in engines:
            engine.kill("the engine was closed")
        end = time.monotonic() + _KILL_S  # for all together
        for engine in engines:
            if not engine.wait(max(0.0, end - time.monotonic())):
                log.error("%s, process %d, did not end; its memory is not free until it ends", engine.label, engine.pid)
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()

    # -- serving

    def memory(self) -> dict[str, int]:
        """Memory in use by the engines, bytes by name."""
        total = Counter[str]()
        for engine in list(self._engines):
            total.update({f"engine processes {name}": value for name, value in engine.memory().items()})
        return dict(total)

    def buffer(self, camera: str, timeout_s: float) -> Slot | None:
        """Memory for the next image of a camera, which the caller releases or offers; None on timeout."""
        pool = self._pools.get(camera)
        return None if pool is None else pool.take(timeout_s)

    def serves(self, dnns: Collection[str]) -> bool:
        """Whether at least one of the DNNs has an engine now."""
        return not self.routes.keys().isdisjoint(dnns)

    def offer(self, ledger: Ledger, frame: Frame, buffer: Slot, dnns: Collection[str]) -> None:
        """Hand a frame, whose image is in `buffer`, to the DNNs that have an engine, and drop it for the others. Blocks
        only while an engine process receives nothing, for at most a second per process.
        """
        height, width = frame.size
        number, engines = ledger.open(frame, buffer, dnns, partial(self.route, ledger))
        for engine, served in engines.items():
            if engine is not None:
                engine.send(messages.Offer(
                    number, frame.camera, buffer.index, height, width, frame.stamp_ns, frame.received_ns,
                    frame.decode_ns, tuple(served),
                ))  # fmt: skip
                continue
            for dnn in served:
                ledger.drop(number, dnn, *self.unserved(dnn))

    def _run(self, events: Events) -> None:
        """The supervising thread."""
        while events is self._events and self._groups:
            try:
                engine, message = events.get(timeout=_TICK_S)
            except queue.Empty:
                message = None
            try:
                if message is not None:
                    self.handle(engine, message)
                self.tick()
            except Exception:  # without this thread no lost engine would be replaced
                log.exception("an error in the supervision of the engine processes; supervision continues")


def divide_devices(config: NodeConfig) -> dict[str, NodeConfig]:
    """The settings of each device's DNNs, by its name; with `isolation: none` all in one.

    Only an engine knows the GPUs: it refuses a device that the machine does not have. Until then `auto` is taken for
    the first GPU where a driver is loaded.
    """
    if config.isolation == "none" or all(dnn.device == "auto" for dnn in config.dnns.values()):
        return {config.device: config}
    first, parts = "cuda:0" if has_gpu_driver() else "cpu", dict[str, list[str]]()
    for name, settings in config.dnns.items():
        device = settings.device if settings.device != "auto" else config.device
        with suppress(UnitError):
            device = parse_unit(first if device == "auto" else device).name
        parts.setdefault(device, []).append(name)
    with suppress(UnitError):
        for warning in sharing_warnings([parse_unit(device) for device in parts], cpu_count()):
            log.warning("parameters dnn.<dnn>.device: %s", warning)
    return {
        device: config.model_copy(update={"dnns": {name: config.dnns[name] for name in names}})
        for device, names in parts.items()
    }


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
    )
