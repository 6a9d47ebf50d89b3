"""Whether the configured DNNs fit their devices at the cameras' rates, as reported in the log and on /diagnostics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from multi_dnn_ros.planning.fit import Fit, Verdict


@dataclass(frozen=True)
class Capacity:
    """text: the verdict for the log. advice: lines for the log. values: for diagnostics, by name with the unit."""

    fits: bool
    text: str
    advice: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)


def capacity_of_devices(fits: Mapping[str, Fit]) -> Capacity | None:
    """One verdict for all devices, with their names if there are several. fits: by device; None: nothing measured."""
    parts = {device: capacity_of(fit.verdict()) for device, fit in fits.items()}
    if len(parts) < 2:
        return next(iter(parts.values()), None)
    return Capacity(
        all(part.fits for part in parts.values()),
        "; ".join(f"{device}: {part.text}" for device, part in parts.items()),
        tuple(f"{device}: {text}" for device, part in parts.items() for text in part.advice),
        {f"{device}: {name}": it for device, part in parts.items() for name, it in part.values.items()},
    )


def capacity_of(verdict: Verdict) -> Capacity:
    """The verdict as text and diagnostic values."""
    values: dict[str, str] = {"utilization (%)": f"{100 * verdict.utilization:.1f}"}
    values.update({f"{dnn} needs (% of its time)": f"{100 * need:.1f}" for dnn, need in verdict.needs.items()})
    values.update({f"{dnn} at most (Hz)": f"{hz:.2f}" for dnn, hz in verdict.most_hz.items()})
    values.update({f"advice {number}": text for number, text in enumerate(verdict.advice, start=1)})
    return Capacity(verdict.fits, verdict.text, tuple(verdict.advice), values)
