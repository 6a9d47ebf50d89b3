"""Assigns the operations of a graph to streams: what runs in which order, and which event each operation waits for."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from multi_dnn_ros.graph.branches import DeviceOperation, readers, remaining_s
from multi_dnn_ros.graph.operation_groups import Groups, combine, group_operations

#: Time by which an operation starts later after one on another stream than after one on the same stream. A move to
#: another stream must save more than this, so short branches stay where they are.
EVENT_S = 1.5e-6
#: Time by which a whole graph takes longer for each event that a stream waits for: an estimate. On an H100 at fp16, the
#: graph of an attention encoder with 612 events took 1.3 us per event longer than `duration_s`, and three graphs with
#: 20 to 70 events between nothing and 6 us.
WAIT_S = 2e-6
#: Longest groups of operations that are tried, as fractions of the time of all operations.
_GROUP_LIMITS = (0.0, *(2.0**-exponent for exponent in range(7, 0, -1)))


@dataclass(frozen=True)
class Step:
    """One operation. stream: number of its stream; the inputs are ready on stream 0.

    waits: operations on other streams whose events its stream waits for first. signals: whether an event is recorded
    after it. If the first step on a stream other than 0 waits for no operation, it must wait for the start.
    """

    name: str
    stream: int
    waits: tuple[str, ...] = ()
    signals: bool = False


@dataclass(frozen=True)
class StreamPlan:
    """steps: in an order that respects all dependencies. streams: number of streams that are used.

    joins: the last operation of each stream other than 0; stream 0 waits for their events at the end. duration_s: from
    the first to the last operation if streams did not slow each other down.
    """

    steps: tuple[Step, ...]
    streams: int
    joins: tuple[str, ...]
    duration_s: float

    @property
    def events(self) -> int:
        """Number of times that a stream waits for another one, the start and the end not counted."""
        return sum(len(step.waits) for step in self.steps)


def plan_streams(
    operations: Sequence[DeviceOperation], streams: int, event_s: float = EVENT_S, wait_s: float = WAIT_S
) -> StreamPlan:
    """Assign operations to at most `streams` streams. Deterministic; ValueError for streams < 1.

    event_s, wait_s: see EVENT_S and WAIT_S.

    Method: list scheduling by the longest remaining chain (critical path first; Topcuoglu et al. 2002, HEFT, without
    insertion), of single operations and of groups of increasing length (see group_operations). Of these plans the one
    with the smallest sum of `duration_s` and `wait_s` for each event is returned. Each group goes to the stream on
    which it starts first; with equal times that of a source is preferred. The assignment needs all events: none of them
    follows from the stream order and the other events.
    """
    if streams < 1:
        raise ValueError(f"streams = {streams}: must be at least 1")
    total_s = sum(operation.cost_s for operation in operations)
    tried: list[Groups] = [tuple((operation.name,) for operation in operations)]
    for fraction in _GROUP_LIMITS if streams > 1 else ():
        groups = group_operations(operations, fraction * total_s)
        if groups not in tried:
            tried.append(groups)
    plans = [_plan(operations, groups, streams, event_s) for groups in tried]
    return min(plans, key=lambda plan: plan.duration_s + wait_s * plan.events)


def _plan(operations: Sequence[DeviceOperation], groups: Groups, streams: int, event_s: float) -> StreamPlan:
    """A plan that keeps each group on one stream. groups: as of group_operations()."""
    stream_of_group, group_order = _schedule(combine(operations, groups), streams, event_s)
    by_name = {operation.name: operation for operation in operations}
    members = {group[-1]: group for group in groups}
    order = [by_name[name] for group in group_order for name in members[group.name]]
    stream_of = {name: stream_of_group[group[-1]] for group in groups for name in group}
    waits, last = _waits(order, stream_of, streams)
    joins = tuple(last[stream] for stream in sorted(last) if stream)
    signals = {source for sources in waits.values() for source in sources} | set(joins)
    steps = tuple(Step(each.name, stream_of[each.name], waits[each.name], each.name in signals) for each in order)
    return StreamPlan(steps, len(last), joins, _duration_s(order, stream_of, event_s))


def _schedule(
    operations: Sequence[DeviceOperation], streams: int, event_s: float
) -> tuple[dict[str, int], list[DeviceOperation]]:
    """(stream of each operation, order of issue)."""
    remaining, after = remaining_s(operations), readers(operations)
    number = {operation.name: index for index, operation in enumerate(operations)}
    missing = {operation.name: len(operation.sources) for operation in operations}
    ready = [(-remaining[each.name], number[each.name]) for each in operations if not each.sources]
    heapq.heapify(ready)
    stream_of: dict[str, int] = {}
    end_s: dict[str, float] = {}
    free_s = [0.0] * streams
    order: list[DeviceOperation] = []
    while ready:
        operation = operations[heapq.heappop(ready)[1]]
        choices = []
        for stream in range(min(streams, len(set(stream_of.values())) + 1)):  # at most one unused stream
            crossing = [source for source in operation.sources if stream_of[source] != stream]
            start_s = max(free_s[stream], _ready_s(operation, stream, stream_of, end_s, event_s))
            choices.append((start_s, len(crossing), stream))
        start_s, _, stream = min(choices)
        stream_of[operation.name] = stream
        end_s[operation.name] = free_s[stream] = start_s + operation.cost_s
        order.append(operation)
        for reader in after[operation.name]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, (-remaining[reader], number[reader]))
    return stream_of, order


def _ready_s(
    operation: DeviceOperation, stream: int, stream_of: Mapping[str, int], end_s: Mapping[str, float], event_s: float
) -> float:
    """When the inputs of an operation are ready on a stream."""
    ready_s = 0.0 if operation.sources or not stream else event_s
    for source in operation.sources:
        ready_s = max(ready_s, end_s[source] + (event_s if stream_of[source] != stream else 0.0))
    return ready_s


def _duration_s(order: Sequence[DeviceOperation], stream_of: Mapping[str, int], event_s: float) -> float:
    """From the first to the last operation, each on its stream."""
    end_s: dict[str, float] = {}
    free_s = dict.fromkeys(stream_of.values(), 0.0)
    for operation in order:
        stream = stream_of[operation.name]
        start_s = max(free_s[stream], _ready_s(operation, stream, stream_of, end_s, event_s))
        end_s[operation.name] = free_s[stream] = start_s + operation.cost_s
    return max(end_s.values(), default=0.0)


def _waits(
    order: Sequence[DeviceOperation], stream_of: Mapping[str, int], streams: int
) -> tuple[dict[str, tuple[str, ...]], dict[int, str]]:
    """(for each operation the events to wait for, the last operation of each stream).

    clock[name][stream]: how many operations of that stream are finished when the operation is (a vector clock). A
    source needs no event if its number is in the clock of the stream's previous operation or of another source.
    """
    clock: dict[str, list[int]] = {}
    count = [0] * streams
    number: dict[str, int] = {}
    last: dict[int, str] = {}
    waits: dict[str, tuple[str, ...]] = {}
    for operation in order:
        stream = stream_of[operation.name]
        known = list(clock[last[stream]]) if stream in last else [0] * streams
        crossing = [each for each in operation.sources if stream_of[each] != stream]
        crossing = [each for each in crossing if known[stream_of[each]] < number[each]]
        needed = tuple(
            each
            for each in crossing
            if not any(other != each and clock[other][stream_of[each]] >= number[each] for other in crossing)
        )
        for each in needed:
            known = [max(pair) for pair in zip(known, clock[each], strict=True)]
        count[stream] += 1
        known[stream] = number[operation.name] = count[stream]
        clock[operation.name], last[stream], waits[operation.name] = known, operation.name, needed
    return waits, last
