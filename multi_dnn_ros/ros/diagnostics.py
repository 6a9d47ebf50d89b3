"""The statuses of /diagnostics: one per DNN and camera, one per camera.

docs/diagnostics.md lists every status with its levels and values. The counts and percentiles of a DNN on a camera come
from :mod:`multi_dnn_ros.engine.statistics`. The statuses of the node and of the capacity are in :mod:`.node_status`,
those of the engine processes in :mod:`multi_dnn_ros.serving.engine_status`. Keys contain the unit. Times are
measured on the monotonic clock, so they are correct with simulated time, too; only the stamp of the message and the
ages relative to header stamps use the node's clock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from multi_dnn_ros.engine.statistics import DnnCamera, DnnCameraStatistics, Percentiles, Statistics
from multi_dnn_ros.engine.task import DropEffect, DropReason
from multi_dnn_ros.ros.camera_record import MAX_LOSS, CameraRecord
from multi_dnn_ros.ros.stamp_ages import StampAges
from multi_dnn_ros.serving.ledger import SWITCHED_OFF_MESSAGE

OK, WARN, ERROR, STALE = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR, DiagnosticStatus.STALE

#: If a DNN processes less than this share of a camera's frames, its status is WARN.
_MIN_SERVED = 0.5


class DiagnosticsReport:
    """Makes the statuses, and remembers the last counts, because levels depend on what has changed since.

    name: prefix of every status. stale_after_s: time without an image after which a camera is STALE.
    """

    def __init__(self, name: str, hardware_id: str, stale_after_s: float) -> None:
        self._name = name
        self._hardware_id = hardware_id
        self._stale_after_s = stale_after_s
        self._last: dict[DnnCamera, DnnCameraStatistics] = {}

    def restart(self) -> None:
        """The next statistics count from 0 again: the node was activated."""
        self._last = {}

    def message(self, stamp: Time, statuses: Iterable[DiagnosticStatus]) -> DiagnosticArray:
        """The message with these statuses."""
        array = DiagnosticArray()
        array.header.stamp = stamp
        array.status = list(statuses)
        return array

    def dnns(
        self,
        statistics: Statistics,
        cameras: Mapping[str, CameraRecord],
        ages: Mapping[DnnCamera, StampAges],
        now_ns: int,
        switched_off: Collection[str] = (),
    ) -> list[DiagnosticStatus]:
        """One status per DNN and camera: `<dnn> on <camera>`. ages: of the results when they were published.
        switched_off: DNNs switched off by their parameter.
        """
        statuses = []
        for (dnn, camera), figures in statistics.by_dnn_and_camera.items():
            before = self._last.get((dnn, camera), DnnCameraStatistics())
            if dnn in switched_off:
                level, text = OK, SWITCHED_OFF_MESSAGE
            else:
                level, text = self._dnn_level(figures, before, statistics.disabled.get(dnn), cameras[camera], now_ns)
            values = _dnn_values(figures, ages[dnn, camera].percentiles(now_ns))
            statuses.append(self.status(f"{dnn} on {camera}", level, text, values))
        self._last = dict(statistics.by_dnn_and_camera)
        return statuses

    def cameras(
        self, statistics: Statistics, cameras: Mapping[str, CameraRecord], now_ns: int
    ) -> list[DiagnosticStatus]:
        """One status per camera: `camera <camera>`."""
        statuses = []
        for name, camera in cameras.items():
            level, text = self._camera_level(camera, now_ns)
            values = _camera_values(camera, _bad_images(statistics, name), now_ns)
            statuses.append(self.status(f"camera {name}", level, text, values))
        return statuses

    def status(self, task: str, level: bytes, text: str, values: Mapping[str, object]) -> DiagnosticStatus:
        """A status of this node. task: its name without the node's name."""
        status = DiagnosticStatus(
            level=level, name=f"{self._name}: {task}", message=text, hardware_id=self._hardware_id
        )
        status.values = [KeyValue(key=key, value=str(value)) for key, value in values.items()]
        return status

    def _camera_level(self, camera: CameraRecord, now_ns: int) -> tuple[bytes, str]:
        """Level and message."""
        if camera.error:
            return ERROR, camera.error
        silence = self._silence(camera, now_ns)
        missing = ""
        if (share := camera.missing(now_ns)) > MAX_LOSS:
            missing = f"{share:.0%} of the images are missing: {camera.cause}"
        elif silence and camera.cause:
            missing = camera.cause
        problems = "; ".join(text for text in (silence, camera.warning, missing) if text)
        if silence:
            return STALE, problems
        return (WARN, problems) if problems else (OK, f"{camera.arrival_hz(now_ns):.1f} Hz")

    def _silence(self, camera: CameraRecord, now_ns: int) -> str:
        silent_s = camera.silent_s(now_ns)
        if silent_s <= self._stale_after_s:
            return ""
        if camera.last_ns is None:
            return f"no image on {camera.topic} since subscribing {silent_s:.1f} s ago"
        return f"no image on {camera.topic} for {silent_s:.1f} s"

    def _dnn_level(
        self,
        now: DnnCameraStatistics,
        before: DnnCameraStatistics,
        disabled: str | None,
        camera: CameraRecord,
        now_ns: int,
    ) -> tuple[bytes, str]:
        """Level and message, for the time since the last report. disabled: why the DNN is disabled; None: it is not."""
        if disabled is not None:
            return ERROR, disabled
        lost = {reason: now.dropped.get(reason, 0) - before.dropped.get(reason, 0) for reason in DropReason}
        failures = {reason: count for reason, count in lost.items() if count and reason.effect is DropEffect.FAILURE}
        if failures:
            return ERROR, _counts(failures)
        silence = self._silence(camera, now_ns)
        if silence:
            return STALE, silence
        warnings = []
        missed = now.deadline_misses - before.deadline_misses
        if missed:
            warnings.append(f"{missed} deadlines missed")
        others = {reason: count for reason, count in lost.items() if count and reason.effect is DropEffect.LOSS}
        if others:
            warnings.append(_counts(others))
        done, overwritten = now.published - before.published, lost[DropReason.OVERWRITTEN]
        if overwritten and done < _MIN_SERVED * (done + overwritten):
            warnings.append(f"{overwritten} of {done + overwritten} frames overwritten before they were processed")
        if warnings:
            return WARN, "; ".join(warnings)
        return OK, f"{now.rate_hz:.1f} Hz"


def _counts(lost: Mapping[DropReason, int]) -> str:
    return ", ".join(f"{count} frames lost: {reason.value}" for reason, count in lost.items())


def _bad_images(statistics: Statistics, camera: str) -> int:
    """Images of a camera that could not be decoded: the largest count of a DNN, as every DNN counts each image."""
    counts = (
        figures.dropped.get(DropReason.BAD_IMAGE, 0)
        for (_, name), figures in statistics.by_dnn_and_camera.items()
        if name == camera
    )
    return max(counts, default=0)


def _camera_values(camera: CameraRecord, bad_images: int, now_ns: int) -> dict[str, object]:
    return {
        "topic": camera.topic,
        "received": camera.received,
        "bad images": bad_images,
        "rate (Hz)": f"{camera.arrival_hz(now_ns):.2f}",
        "rate_hz": f"{camera.rate_hz:.2f}" if camera.rate_hz else "unknown",
        "silent (s)": f"{camera.silent_s(now_ns):.3f}",
        "image": camera.shape or "none yet",
        "QoS": camera.qos,
        **_percentile_values("header stamp to arrival", camera.age(now_ns)),
        "lost (reported by the middleware)": camera.lost,
        "missing of the last 10 s (%)": f"{100 * camera.missing(now_ns):.1f}",
    }


def _dnn_values(figures: DnnCameraStatistics, age: Percentiles) -> dict[str, object]:
    values: dict[str, object] = {
        "rate (Hz)": f"{figures.rate_hz:.2f}",
        "offered": figures.offered,
        "published": figures.published,
        "pending": figures.pending,
        "deadline misses": figures.deadline_misses,
        "frames per inference": f"{figures.batch:.2f}",
    }
    values.update({f"dropped: {reason.value}": figures.dropped.get(reason, 0) for reason in DropReason})
    for step, percentiles in {**figures.latencies, "header stamp to publish": age}.items():
        values.update(_percentile_values(step, percentiles))
    return values


def _percentile_values(step: str, percentiles: Percentiles) -> dict[str, object]:
    return {
        f"{step} {name} (ms)": f"{getattr(percentiles, name) if percentiles.count else math.nan:.3f}"
        for name in ("p50", "p95", "p99", "max")
    }
