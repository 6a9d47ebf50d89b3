"""The status `board` of /diagnostics; docs/diagnostics.md lists its values."""

from __future__ import annotations

from collections.abc import Iterator

from diagnostic_msgs.msg import DiagnosticStatus

from multi_dnn_ros.ros.board.sensors import Reading
from multi_dnn_ros.ros.diagnostics import OK, WARN, DiagnosticsReport


def board_statuses(report: DiagnosticsReport, reading: Reading, energy_j: float | None) -> Iterator[DiagnosticStatus]:
    """The status; empty for a computer without readable sensors. energy_j: energy per result; None: unknown."""
    values: dict[str, object] = {}
    total = reading.total_w
    if total is not None:
        values["power (W)"] = f"{total:.2f}"
        values["energy per result (J)"] = "unknown" if energy_j is None else f"{energy_j:.3f}"
    for unit, quantity, sensors in (
        ("W", "power", reading.power_w),
        ("C", "temperature", reading.temperatures_c),
        ("MHz", "clock", reading.clocks_mhz),
    ):
        for name, value in sensors.items():
            values[f"{name} {quantity} ({unit})"] = f"{value.value:.2f}"
            if value.limit is not None:
                values[f"{name} {quantity} limit ({unit})"] = f"{value.limit:.2f}"
    for name, reason in reading.throttled.items():
        values[f"{name} throttled"] = reason
    if not values:
        return
    warnings = reading.warnings()
    hottest = max((value.value for value in reading.temperatures_c.values()), default=None)
    parts = [f"{total:.1f} W"] if total is not None else []
    parts += [f"{hottest:.0f} degrees Celsius"] if hottest is not None else []
    yield report.status("board", WARN if warnings else OK, "; ".join(warnings or parts or ["clocks only"]), values)
