"""Calls for several devices: at the same time for different GPUs, one after another on the same processor."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from multi_dnn_ros.planning.batch_units import parse_unit
from multi_dnn_ros.serving.host import ConfigureError, Progress

Value = TypeVar("Value")


def call_concurrently(
    calls: Sequence[Callable[[], Value]], on_failure: Callable[[], object] = lambda: None
) -> list[Value]:
    """The results of all calls. Several calls run in separate threads, so that they share one timeout.

    If a call raises, `on_failure` is called at once, which should end the other calls. When all have ended, the
    exception that was raised first is raised; further ones are discarded.
    """
    if len(calls) <= 1:
        return [call() for call in calls]
    failures: list[BaseException] = []  # in the order of time

    def run(call: Callable[[], Value]) -> Value:
        try:
            return call()
        except BaseException as error:
            failures.append(error)
            on_failure()
            raise

    with ThreadPoolExecutor(len(calls)) as pool:
        try:
            futures = [pool.submit(run, call) for call in calls]
        except BaseException:  # no more threads
            on_failure()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if failures:
        raise failures[0]
    return [future.result() for future in futures]


def call_by_device(
    devices: Sequence[str], call: Callable[[str], Value], on_failure: Callable[[], object]
) -> dict[str, Value]:
    """What `call` returns for each device, in the order of `devices`.

    Different GPUs at the same time. Devices that share a GPU one after another, because the times that are measured on
    one would depend on the other. The devices of the CPU last and one after another, because preparing DNNs for a GPU
    uses the cores.

    on_failure: see call_concurrently. With several devices a ConfigureError begins with the name of its device.
    """
    if len(devices) <= 1:  # its name may be `auto`, which is not that of a processor
        return {device: call(device) for device in devices}
    by_processor: dict[str, list[str]] = {}
    for device in devices:
        by_processor.setdefault(parse_unit(device).device, []).append(device)
    on_cpu = by_processor.pop("cpu", [])
    found: dict[str, Value] = {}

    def one_after_another(names: Sequence[str]) -> None:
        for device in names:
            try:
                found[device] = call(device)
            except ConfigureError as error:
                raise ConfigureError(f"{device}: {error.text}", expected=error.expected) from error

    call_concurrently([partial(one_after_another, names) for names in by_processor.values()], on_failure)
    one_after_another(on_cpu)
    return {device: found[device] for device in devices}


class DeviceProgress:
    """Combines the progress of several devices; thread-safe.

    dnns: by device, the number of its DNNs. report: called with each step, by one thread at a time. With several
    devices the text begins with the name of the device. clock: seconds, monotonic.
    """

    def __init__(
        self, dnns: Mapping[str, int], report: Callable[[Progress], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._dnns = dict(dnns)
        self._report = report
        self._clock = clock
        self._lock = threading.Lock()  # also held while reporting, so that `ready` never decreases
        self._ready = dict.fromkeys(dnns, 0)
        self._end_s: dict[str, float | None] = dict.fromkeys(dnns)  # estimated; of the devices that are not done

    def report(self, device: str, step: Progress) -> None:
        """A device has made progress."""
        with self._lock:
            now = self._clock()
            self._ready[device] = step.ready
            self._end_s[device] = None if step.left_s is None else now + step.left_s
            text = f"{device}: {step.text}" if len(self._dnns) > 1 else step.text
            ready, total = sum(self._ready.values()), sum(self._dnns.values())
            self._report(replace(step, text=text, ready=ready, total=total, left_s=self._left_s(now)))

    def done(self, device: str) -> None:
        """A device is configured."""
        with self._lock:
            self._ready[device] = self._dnns[device]
            self._end_s.pop(device, None)

    def _left_s(self, now: float) -> float | None:
        """Seconds until the last device is done; None: unknown.

        A device that waits for another one on its processor has not reported a time yet. The largest time is therefore
        that of devices that are all being configured at the same time.
        """
        ends = list(self._end_s.values())
        known = [end for end in ends if end is not None]
        return max(0.0, max(known) - now) if len(known) == len(ends) else None
