"""Statistics to diagnostic_msgs: one status per DNN and camera, one per camera, one for the node.

Units stand in the keys. Times are the engine's (monotonic), so they are right under simulated time too; only the stamp
and the age of a result against its header are on the node's clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from multi_dnn_ros.engine.statistics import Percentiles, Statistics, StreamStatistics
from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.ros.losses import NO_LOSSES, LossAccount, Losses

OK, WARN, ERROR, STALE = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR, DiagnosticStatus.STALE
Stream = tuple[str, str]

#: A DNN that gets fewer than this part of a camera's frames done is worth a warning.
_SERVED = 0.5
_WINDOW_NS = 10_000_000_000
#: Lost by the DNN's own fault.
_FAILURES = (DropReason.DNN_ERROR, DropReason.BAD_OUTPUT, DropReason.PUBLISH_ERROR)
#: A DNN slower than its camera overwrites frames all the time, and stopping drops what is under way: no faults.
_HARMLESS = (DropReason.OVERWRITTEN, DropReason.SHUTDOWN, *_FAILURES)


@dataclass
class CameraRecord:
    """What came in from one camera. Times are the engine's clock, nanoseconds.

    rate_hz, max_loss: the camera's parameters. raw: its transport is. error: why no image can arrive (incompatible
    QoS). loss_cause: why more than max_loss is missing, and what helps.
    """

    name: str
    topic: str
    since_ns: int  # subscribed
    rate_hz: InitVar[float] = 0.0
    raw: InitVar[bool] = True
    max_loss: float = 1.0
    qos: str = ""
    error: str = ""
    loss_cause: str = ""
    losses: Losses = NO_LOSSES
    image_bytes: int = 0
    received: int = 0
    last_ns: int | None = None
    shape: str = ""
    arrivals: deque[int] = field(default_factory=lambda: deque(maxlen=512))
    ages: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=512))  # arrival, age

    def __post_init__(self, rate_hz: float, raw: bool) -> None:
        self.account = LossAccount(rate_hz, raw)

    def arrived(
        self,
        now_ns: int,
        shape: str,
        image_bytes: int,
        stamp_ns: int,
        sequence: int | None,
        age_ns: int,
        *,
        alone: bool = True,
        late: bool = False,
    ) -> None:
        """Count a message. shape: size and encoding as the message claims them. sequence: the publisher's number.

        age_ns: the node's clock less the stamp; may be negative when clocks disagree. alone: the topic has one
        publisher. late: an image that was sent after this one has arrived already.
        """
        self.received += 1
        self.image_bytes = image_bytes
        self.account.arrived(now_ns, stamp_ns, sequence, alone=alone, late=late)
        self.last_ns = now_ns
        self.shape = shape
        self.arrivals.append(now_ns)
        self.ages.append((now_ns, age_ns))

    def age(self, now_ns: int) -> Percentiles:
        """How old the images of the last 10 s were on arrival, by their stamps."""
        return Percentiles.of(age for at, age in self.ages if now_ns - at <= _WINDOW_NS)

    def silent_s(self, now_ns: int) -> float:
        """Seconds since the last image, or since subscribing when there was none."""
        return (now_ns - (self.since_ns if self.last_ns is None else self.last_ns)) / 1e9

    def arrival_hz(self, now_ns: int) -> float:
        recent = [at for at in self.arrivals if now_ns - at <= _WINDOW_NS]
        return (len(recent) - 1) * 1e9 / (recent[-1] - recent[0]) if len(recent) > 1 and recent[-1] > recent[0] else 0.0


class PublishAges:
    """How old results are when they go out: header stamp to publishing, on the node's clock; one window per stream.

    Written by the DNN threads; a deque's append is atomic.
    """

    def __init__(self, streams: Iterable[Stream]) -> None:
        self._ages: dict[Stream, deque[tuple[int, int]]] = {stream: deque(maxlen=1024) for stream in streams}

    def add(self, stream: Stream, now_ns: int, age_ns: int) -> None:
        """now_ns: engine's clock. age_ns: node's clock less header stamp; may be negative when clocks disagree."""
        ages = self._ages[stream]
        ages.append((now_ns, age_ns))
        while now_ns - ages[0][0] > _WINDOW_NS:
            ages.popleft()

    def percentiles(self, stream: Stream, now_ns: int) -> Percentiles:
        return Percentiles.of(age for at, age in self._ages[stream].copy() if now_ns - at <= _WINDOW_NS)


class DiagnosticsReport:
    """Makes the messages; holds the counts of the last one, because levels are about what happened since.

    name: prefix of every status. stale_after_s: silence of a camera that makes it STALE.
    """

    def __init__(self, name: str, hardware_id: str, stale_after_s: float) -> None:
        self._name = name
        self._hardware_id = hardware_id
        self._stale_after_s = stale_after_s
        self._last: dict[Stream, StreamStatistics] = {}

    def restart(self) -> None:
        """The statistics of the next message count from 0 again: a new engine's."""
        self._last = {}

    def message(self, stamp: Time, statuses: Iterable[DiagnosticStatus]) -> DiagnosticArray:
        array = DiagnosticArray()
        array.header.stamp = stamp
        array.status = list(statuses)
        return array

    def streams(
        self, statistics: Statistics, cameras: Mapping[str, CameraRecord], ages: PublishAges, now_ns: int
    ) -> list[DiagnosticStatus]:
        """One status per DNN and camera."""
        statuses = []
        for (dnn, camera), stream in statistics.streams.items():
            before = self._last.get((dnn, camera), StreamStatistics())
            level, text = self._judge(stream, before, statistics.disabled.get(dnn), cameras[camera], now_ns)
            values = _stream_values(stream, ages.percentiles((dnn, camera), now_ns))
            statuses.append(self.status(f"{dnn} on {camera}", level, text, values))
        self._last = dict(statistics.streams)
        return statuses

    def cameras(
        self, statistics: Statistics, cameras: Mapping[str, CameraRecord], now_ns: int
    ) -> list[DiagnosticStatus]:
        """One status per camera."""
        statuses = []
        for name, camera in cameras.items():
            bad = max(
                (
                    stream.dropped.get(DropReason.BAD_IMAGE, 0)
                    for (_, of_camera), stream in statistics.streams.items()
                    if of_camera == name
                ),
                default=0,
            )
            level, text = self._judge_camera(camera, now_ns)
            values = {
                "topic": camera.topic,
                "received": camera.received,
                "bad images": bad,
                "rate (Hz)": f"{camera.arrival_hz(now_ns):.2f}",
                "silent (s)": f"{camera.silent_s(now_ns):.3f}",
                "image": camera.shape or "none yet",
                "QoS": camera.qos,
                **_percentile_values("header stamp to arrival", camera.age(now_ns)),
                **_loss_values(camera.losses),
            }
            statuses.append(self.status(f"camera {name}", level, text, values))
        return statuses

    def status(self, task: str, level: bytes, text: str, values: Mapping[str, object]) -> DiagnosticStatus:
        status = DiagnosticStatus(
            level=level, name=f"{self._name}: {task}", message=text, hardware_id=self._hardware_id
        )
        status.values = [KeyValue(key=key, value=str(value)) for key, value in values.items()]
        return status

    def _judge_camera(self, camera: CameraRecord, now_ns: int) -> tuple[bytes, str]:
        if camera.error:
            return ERROR, camera.error
        silence = self._silence(camera, now_ns)
        missing = ""
        if camera.losses.share > camera.max_loss:
            missing = f"{camera.losses.share:.0%} of the images are missing"
            if camera.loss_cause:
                missing += f": {camera.loss_cause}"
        if silence:
            return STALE, f"{silence}; {missing}" if missing else silence
        return (WARN, missing) if missing else (OK, f"{camera.arrival_hz(now_ns):.1f} Hz")

    def _silence(self, camera: CameraRecord, now_ns: int) -> str:
        silent_s = camera.silent_s(now_ns)
        if silent_s <= self._stale_after_s:
            return ""
        if camera.last_ns is None:
            return f"no image on {camera.topic} since subscribing {silent_s:.1f} s ago"
        return f"no image on {camera.topic} for {silent_s:.1f} s"

    def _judge(
        self, now: StreamStatistics, before: StreamStatistics, disabled: str | None, camera: CameraRecord, now_ns: int
    ) -> tuple[bytes, str]:
        """Level and message: about what happened since the last report, except for a disabled DNN."""
        if disabled is not None:
            return ERROR, disabled
        lost = {reason: now.dropped.get(reason, 0) - before.dropped.get(reason, 0) for reason in DropReason}
        failures = {reason: count for reason, count in lost.items() if count and reason in _FAILURES}
        if failures:
            return ERROR, _counts(failures)
        silence = self._silence(camera, now_ns)
        if silence:
            return STALE, silence
        warnings = []
        missed = now.deadline_misses - before.deadline_misses
        if missed:
            warnings.append(f"{missed} deadlines missed")
        others = {reason: count for reason, count in lost.items() if count and reason not in _HARMLESS}
        if others:
            warnings.append(_counts(others))
        done, overwritten = now.published - before.published, lost[DropReason.OVERWRITTEN]
        if overwritten and done < _SERVED * (done + overwritten):
            warnings.append(f"{overwritten} of {done + overwritten} frames overwritten before their turn")
        if warnings:
            return WARN, "; ".join(warnings)
        return OK, f"{now.rate_hz:.1f} Hz"


def _counts(lost: Mapping[DropReason, int]) -> str:
    return ", ".join(f"{count} frames lost: {reason.value}" for reason, count in lost.items())


def _loss_values(losses: Losses) -> dict[str, object]:
    return {
        "sent (estimated)": "unknown" if losses.sent is None else losses.sent,
        "lost (estimated)": "unknown" if losses.lost is None else losses.lost,
        "missing of the last 10 s (%)": f"{100 * losses.share:.1f}",
        "loss estimate from": losses.source,
        "datagrams dropped by the kernel": losses.drops,
    }


def _stream_values(stream: StreamStatistics, age: Percentiles) -> dict[str, object]:
    values: dict[str, object] = {
        "rate (Hz)": f"{stream.rate_hz:.2f}",
        "offered": stream.offered,
        "published": stream.published,
        "pending": stream.pending,
        "deadline misses": stream.deadline_misses,
        "frames per inference": f"{stream.batch:.2f}",
    }
    values.update({f"dropped: {reason.value}": stream.dropped.get(reason, 0) for reason in DropReason})
    for stage, percentiles in {**stream.latencies, "header stamp to publish": age}.items():
        values.update(_percentile_values(stage, percentiles))
    return values


def _percentile_values(stage: str, percentiles: Percentiles) -> dict[str, object]:
    return {
        f"{stage} {name} (ms)": f"{getattr(percentiles, name) if percentiles.count else math.nan:.3f}"
        for name in ("p50", "p95", "p99", "max")
    }
