"""Chooses a device for each DNN, so that the largest utilization of a device is as small as possible. Measures nothing.

Model: a device computes one frame after the other. Its utilization is the sum of rate x time of its DNNs. A frame waits
for at most one frame of each other DNN on the device, so the predicted latency of a DNN is the sum of the times of all
DNNs there. GPUs overlap kernels, so both are upper estimates.

The baseline has all DNNs on the first device that can hold them. If that device can serve the rates, no DNN gets a
longer predicted latency than in the baseline, except to meet more deadlines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: After this number of steps the search ends with the best placement so far; 8 DNNs on 4 devices need at most 87,380.
_MAX_STEPS = 1_000_000


class PlacementError(ValueError):
    """No placement is possible; the message names the DNNs and the reasons."""


@dataclass(frozen=True)
class Cost:
    """Cost of a DNN on a device. ms: time of one frame while nothing else runs. memory_bytes: memory of the DNN there.
    source: source of the figures, "measured", "measured earlier" or "predicted".
    """

    ms: float
    memory_bytes: int = 0
    source: str = "measured"


@dataclass(frozen=True)
class DnnLoad:
    """One DNN. hz: frames per second of all its cameras together. costs: by device on which it can run.

    deadline_ms: None means no deadline. impossible: by device on which it cannot run, the reason.
    """

    dnn: str
    hz: float
    costs: Mapping[str, Cost]
    deadline_ms: float | None = None
    impossible: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Placement:
    """Devices of all DNNs. devices: by DNN. utilization: by device; 1.0: always busy. latency_ms: predicted, by DNN.
    late: DNNs whose latency exceeds their deadline. exact: whether no better placement exists in the model; False: the
    search was cut off.
    """

    devices: Mapping[str, str]
    utilization: Mapping[str, float]
    latency_ms: Mapping[str, float]
    late: tuple[str, ...]
    exact: bool = True

    @property
    def largest(self) -> float:
        """The largest utilization of a device."""
        return max(self.utilization.values())


def choose_placement(loads: Sequence[DnnLoad], memory_bytes: Mapping[str, int]) -> Placement:
    """The best placement by these criteria, in this order: the fewest DNNs that miss their deadlines; not slower than
    the baseline; the smallest maximum utilization of a device; the smallest sum of utilizations. Deterministic. Exact
    (branch and bound) up to 8 DNNs on 4 devices.

    memory_bytes: by device, in order of preference, the memory for all its DNNs together. Raises PlacementError if a
    DNN can run nowhere, or if no placement fits the memory.
    """
    for load in loads:
        if not any(device in load.costs for device in memory_bytes):
            reasons = "; ".join(f"{device}: {reason}" for device, reason in load.impossible.items())
            raise PlacementError(f"DNN {load.dnn} can run on none of {', '.join(memory_bytes)}: {reasons}")
    search = _Search(loads, memory_bytes)
    # Begin with all DNNs on one device, so that the result is never worse than that.
    for device in memory_bytes:
        search.consider(dict.fromkeys((load.dnn for load in loads), device))
    search.run()
    if search.best is None:
        raise PlacementError(_memory_text(loads, memory_bytes))
    return evaluate(loads, search.best, memory_bytes, exact=search.steps < _MAX_STEPS)


def evaluate(
    loads: Sequence[DnnLoad],
    devices: Mapping[str, str],
    names: Sequence[str] | Mapping[str, int],
    *,
    exact: bool = True,
) -> Placement:
    """The figures of a given placement. names: all devices. Raises KeyError if a DNN cannot run on its device."""
    busy = dict.fromkeys(names, 0.0)
    together_ms = dict.fromkeys(names, 0.0)
    for load in loads:
        ms = load.costs[devices[load.dnn]].ms
        busy[devices[load.dnn]] += load.hz * ms / 1e3
        together_ms[devices[load.dnn]] += ms
    latency_ms = {load.dnn: together_ms[devices[load.dnn]] for load in loads}
    late = tuple(load.dnn for load in loads if load.deadline_ms is not None and latency_ms[load.dnn] > load.deadline_ms)
    return Placement(dict(devices), busy, latency_ms, late, exact)


class _Search:
    """Branch and bound: DNNs in order of their smallest utilization, largest first; devices in the given order."""

    def __init__(self, loads: Sequence[DnnLoad], memory_bytes: Mapping[str, int]) -> None:
        self._loads = loads
        self._memory = memory_bytes
        smallest = {load.dnn: min(load.hz * cost.ms / 1e3 for cost in load.costs.values()) for load in loads}
        self._order = sorted(loads, key=lambda load: -smallest[load.dnn])
        self._rest = [0.0]  # by number of remaining DNNs, the smallest utilization that they add
        for load in reversed(self._order):
            self._rest.append(self._rest[-1] + smallest[load.dnn])
        self._slowest_ms = _baseline_ms(loads, memory_bytes) * (1 + 1e-9)  # sums in another order differ by rounding
        self.best: dict[str, str] | None = None
        self._best_key = (len(loads) + 1, True, float("inf"), float("inf"))
        self.steps = 0

    def consider(self, devices: Mapping[str, str]) -> None:
        """Keep a complete placement if it is possible and better than the best one."""
        needed = dict.fromkeys(self._memory, 0)
        for load in self._loads:
            cost = load.costs.get(devices[load.dnn])
            if cost is None:
                return
            needed[devices[load.dnn]] += cost.memory_bytes
        if any(needed[device] > limit for device, limit in self._memory.items()):
            return
        placement = evaluate(self._loads, devices, self._memory)
        slower = max(placement.latency_ms.values(), default=0.0) > self._slowest_ms
        key = (len(placement.late), slower, placement.largest, sum(placement.utilization.values()))
        if key < self._best_key:
            self.best, self._best_key = dict(devices), key

    def run(self) -> None:
        self._extend({}, dict.fromkeys(self._memory, 0.0), dict.fromkeys(self._memory, 0))

    def _extend(self, chosen: dict[str, str], busy: dict[str, float], used: dict[str, int]) -> None:
        if len(chosen) == len(self._order):
            self.consider(chosen)
            return
        load = self._order[len(chosen)]
        for device, limit in self._memory.items():
            cost = load.costs.get(device)
            if cost is None or used[device] + cost.memory_bytes > limit or self.steps >= _MAX_STEPS:
                continue
            self.steps += 1
            chosen[load.dnn] = device
            before = busy[device]
            busy[device] += load.hz * cost.ms / 1e3
            used[device] += cost.memory_bytes
            if self._may_be_better(chosen, busy):
                self._extend(chosen, busy, used)
            busy[device] = before
            used[device] -= cost.memory_bytes
            del chosen[load.dnn]

    def _may_be_better(self, chosen: Mapping[str, str], busy: Mapping[str, float]) -> bool:
        """Whether completing `chosen`, which only increases its figures, may yield a better placement than the best."""
        total = sum(busy.values()) + self._rest[len(self._order) - len(chosen)]
        largest = max(*busy.values(), total / len(busy)) * (1 - 1e-12)  # sums in another order differ by rounding
        together_ms = self._together_ms(chosen)
        late, slower = self._late(chosen, together_ms), max(together_ms.values()) > self._slowest_ms
        return (late, slower, largest, total * (1 - 1e-12)) < self._best_key

    def _together_ms(self, chosen: Mapping[str, str]) -> dict[str, float]:
        """By device, the predicted latency of the DNNs that are placed there."""
        together_ms = dict.fromkeys(self._memory, 0.0)
        for load in self._order[: len(chosen)]:
            together_ms[chosen[load.dnn]] += load.costs[chosen[load.dnn]].ms
        return together_ms

    def _late(self, chosen: Mapping[str, str], together_ms: Mapping[str, float]) -> int:
        placed = self._order[: len(chosen)]
        deadlines = ((load.deadline_ms, together_ms[chosen[load.dnn]]) for load in placed)
        return sum(deadline_ms is not None and ms > deadline_ms * (1 + 1e-12) for deadline_ms, ms in deadlines)


def _baseline_ms(loads: Sequence[DnnLoad], memory_bytes: Mapping[str, int]) -> float:
    """Predicted latency of the baseline; infinite if its device cannot serve the rates, or if no device can hold all
    DNNs.
    """
    for device, limit in memory_bytes.items():
        costs = [load.costs.get(device) for load in loads]
        known = [cost for cost in costs if cost is not None]
        if len(known) == len(loads) and sum(cost.memory_bytes for cost in known) <= limit:
            busy = sum(load.hz * cost.ms / 1e3 for load, cost in zip(loads, known, strict=True))
            return sum(cost.ms for cost in known) if busy <= 1.0 else float("inf")
    return float("inf")


def _memory_text(loads: Sequence[DnnLoad], memory_bytes: Mapping[str, int]) -> str:
    needs = "; ".join(
        f"{load.dnn} needs " + " or ".join(f"{_mb(c.memory_bytes)} on {device}" for device, c in load.costs.items())
        for load in loads
    )
    limits = ", ".join(f"{device} {_mb(limit)}" for device, limit in memory_bytes.items())
    return f"the DNNs do not fit the memory of the devices: {needs}; available: {limits}"


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def placement_table(loads: Sequence[DnnLoad], memory_bytes: Mapping[str, int], chosen: Placement) -> str:
    """The figures behind the decision, and the decision: one line per DNN, and the utilization with alternatives."""
    devices = list(memory_bytes)
    rows = [["DNN", "Hz", "deadline", *(f"{device}: ms, memory, load" for device in devices), "device", "latency"]]
    for load in loads:
        cells = []
        for device in devices:
            cost = load.costs.get(device)
            if cost is None:
                cells.append("-")
            else:
                cells.append(f"{cost.ms:.2f}, {_mb(cost.memory_bytes)}, {load.hz * cost.ms / 1e3:.1%}")
        deadline = "-" if load.deadline_ms is None else f"{load.deadline_ms:g} ms"
        latency = f"{chosen.latency_ms[load.dnn]:.1f} ms" + (" (late)" if load.dnn in chosen.late else "")
        rows.append([load.dnn, f"{load.hz:g}", deadline, *cells, chosen.devices[load.dnn], latency])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += [
        f"{load.dnn} cannot run on {device}: {reason}" for load in loads for device, reason in load.impossible.items()
    ]
    for source in ("measured earlier", "predicted"):
        found = [
            f"{load.dnn} on {device}" for load in loads for device, cost in load.costs.items() if cost.source == source
        ]
        lines += [f"{source}: {', '.join(found)}"] if found else []
    used = ", ".join(f"{device} {share:.1%}" for device, share in chosen.utilization.items())
    lines.append(
        f"utilization: {used}" + ("" if chosen.exact else " (search cut off: there may be a better placement)")
    )
    for device in devices:
        if all(device in load.costs for load in loads):
            alone = evaluate(loads, {load.dnn: device for load in loads}, devices)
            late = f", late: {', '.join(alone.late)}" if alone.late else ""
            lines.append(f"all DNNs on {device}: {alone.utilization[device]:.1%}{late}")
    return "\n".join(lines)
