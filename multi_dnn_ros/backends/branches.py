"""Independent branches of a traced network: which operations run on which stream, in segments that nothing interrupts.

Everything here is a pure function of a graph. The segments are launched by multi_dnn_ros.backends.branched_graph.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import fx
from torch.utils import _pytree as pytree

from multi_dnn_ros.models.operations import bytes_of, is_view
from multi_dnn_ros.models.trace import attribute, is_repeatable, is_selection

aten = torch.ops.aten

#: Nominal GPU at batch 1, to weigh the operations of one graph against each other; only ratios matter. The fixed part
#: is the time of one small kernel in a captured graph (2.5 us on an H200).
_FLOPS_PER_S = 50e12
_BYTES_PER_S = 1e12
_OPERATION_S = 2.5e-6
#: Time by which work starts later after work on another stream than after work on the same one. A move to another
#: stream must save more than this, so short branches stay where they are.
EVENT_S = 1.5e-6
#: Time by which a whole graph takes longer for each event that a stream waits for: an estimate. On an H100 at fp16, the
#: graph of an attention encoder with 612 events took 1.3 us per event longer than planned, and three graphs with 20 to
#: 70 events between nothing and 6 us.
WAIT_S = 2e-6
#: Longest groups of operations that are tried, as fractions of the time of all operations.
_GROUP_LIMITS = (0.0, *(2.0**-exponent for exponent in range(7, 0, -1)))

#: Operations that return a view or a copy; in most graphs a view, which takes no time.
_RESHAPES = frozenset({aten.reshape.default, aten.flatten.using_ints, aten._unsafe_view.default})
_PRODUCTS = frozenset({"matmul", "mm", "bmm", "baddbmm", "addmm", "scaled_dot_product_attention"})
#: Operations that may copy, and that a compiler fuses with those before and after them, besides element-wise ones.
_COPIES = _RESHAPES | {
    aten.contiguous.default, aten.clone.default, aten.to.dtype, aten._to_copy.default, aten.index.Tensor,
    aten.dropout.default, aten.repeat.default, aten.roll.default, aten.constant_pad_nd.default, aten.cat.default,
    aten.stack.default,
}  # fmt: skip


class SerialGraphError(ValueError):
    """The operations of a graph must run in order; the message names the first reason."""


@dataclass(frozen=True)
class Work:
    """Operations that run in this order on one stream, known by the name of the last one.

    sources: the names of other work whose results they read. cost_s: their time while nothing else runs.
    """

    operations: tuple[str, ...]
    sources: tuple[str, ...]
    cost_s: float

    @property
    def name(self) -> str:
        return self.operations[-1]


@dataclass(frozen=True)
class Segment:
    """Operations that nothing interrupts on a stream; the inputs are ready on stream 0.

    waits: indices of segments on other streams for whose events its stream waits first. If the first segment on a
    stream other than 0 waits for none, it must wait for the start. signals: whether an event is recorded after it.
    """

    operations: tuple[str, ...]
    stream: int
    waits: tuple[int, ...]
    signals: bool


@dataclass(frozen=True)
class StreamPlan:
    """segments: in an order that respects all dependencies. streams: number of streams that are used.

    joins: index of the last segment of each stream other than 0; stream 0 waits for their events at the end.
    duration_s: from the first to the last operation if streams did not slow each other down.
    """

    segments: tuple[Segment, ...]
    streams: int
    joins: tuple[int, ...]
    duration_s: float

    @property
    def events(self) -> int:
        """Number of times that a stream waits for another one, the start and the end not counted."""
        return sum(len(segment.waits) for segment in self.segments)


def plan_branches(graph_module: fx.GraphModule, streams: int, *, fuses: bool = False) -> StreamPlan:
    """Assign the operations of a graph to at most `streams` streams. Deterministic.

    fuses: for segments that will be compiled. Raises SerialGraphError if an operation writes into a tensor, is random,
    or is no ATen operation, because the order then matters.

    Method: list scheduling by the longest remaining chain (critical path first; Topcuoglu et al. 2002, HEFT, without
    insertion), of groups of operations of increasing length. Of these plans the one with the smallest sum of its
    duration and WAIT_S for each event is returned.
    """
    work = device_work(graph_module, fuses=fuses)
    tried = [work]
    for fraction in _GROUP_LIMITS if streams > 1 else ():
        groups = group_work(work, fraction * sum(each.cost_s for each in work))
        if groups not in tried:
            tried.append(groups)
    return min((plan_streams(each, streams) for each in tried), key=lambda plan: plan.duration_s + WAIT_S * plan.events)


def origins(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """For each node except the output: the node whose work must be finished before its value can be read.

    An operation that launches work, an input and a parameter are their own origins; a view or a selection has the
    origin of what it reads.
    """
    found: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op != "output":
            sources = node.all_input_nodes
            free = is_selection(node) or (is_view(node) and node.target not in _COPIES)
            found[node] = found[sources[0]] if free and len(sources) == 1 else node
    return found


def device_work(graph_module: fx.GraphModule, *, fuses: bool = False) -> tuple[Work, ...]:
    """The operations of a graph of :func:`multi_dnn_ros.models.trace.trace` that launch work, each alone, in order."""
    origin = origins(graph_module.graph)
    found = []
    for node, launcher in origin.items():
        if node.op in ("placeholder", "get_attr"):
            continue
        if not is_repeatable(node) and not _is_inactive_dropout(node):
            raise SerialGraphError(f"operation {node.name} ({node.target}) has side effects")
        if launcher is node:
            sources = dict.fromkeys(origin[source] for source in node.all_input_nodes)
            names = tuple(source.name for source in sources if source.op == "call_function")
            found.append(Work((node.name,), names, _estimated_s(graph_module, node, fuses)))
    return tuple(found)


def _is_inactive_dropout(node: fx.Node) -> bool:
    """Whether it is a dropout in eval mode, which returns its input. PyTorch tags dropout as random in any mode."""
    return node.target is aten.dropout.default and len(node.args) == 3 and node.args[2] is False


def _estimated_s(graph_module: fx.GraphModule, node: fx.Node, fuses: bool) -> float:
    """Seconds of an operation on a nominal GPU, from the traced shapes: the longer of arithmetic and memory traffic.

    Convolutions, linear layers and matrix products count their multiply-accumulates; others only their bytes. Reshapes
    take no time: precision fp16 replaces all views by them, and few of these copy. fuses: element-wise operations and
    copies are fused by a compiler and take no time themselves.
    """
    fused = fuses and (node.target in _COPIES or torch.Tag.pointwise in getattr(node.target, "tags", ()))
    if node.target in _RESHAPES or fused:
        return 0.0

    def tensor(source: fx.Node) -> torch.Tensor | None:
        value = attribute(graph_module, source) if source.op == "get_attr" else source.meta.get("val")
        return value if isinstance(value, torch.Tensor) else None

    read = [value for source in node.all_input_nodes if (value := tensor(source)) is not None]
    written = [leaf for leaf in pytree.tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor)]
    weights = [value for source in node.all_input_nodes
               if source.op == "get_attr" and (value := tensor(source)) is not None and value.ndim > 1]  # fmt: skip
    products = 0  # per result
    if weights and weights[0].shape[0]:  # output channels or features first
        products = weights[0].numel() // weights[0].shape[0]
    elif str(getattr(node.target, "_opname", "")) in _PRODUCTS and read and read[0].ndim:
        products = int(read[0].shape[-1])
    flops = 2.0 * products * sum(value.numel() for value in written)
    return _OPERATION_S + max(flops / _FLOPS_PER_S, sum(map(bytes_of, (*read, *written))) / _BYTES_PER_S)


# -- groups


def group_work(work: Sequence[Work], limit_s: float) -> tuple[Work, ...]:
    """The heads of an attention layer as one group each, for example, or the branches of an Inception block.

    limit_s: largest duration of a group that has branches itself. Such a group consists of an operation and everything
    that is computed only for it, that is, of the operations that it post-dominates (Ferrante, Ottenstein and Warren
    1987). Groups that follow each other without a fork or a join are then combined, whatever their duration. Between
    the operations of a group lies none of another one, so the groups form a graph without cycles, too.
    """
    above = _post_dominators(work)
    total_s = dict.fromkeys(above, 0.0)
    for each in work:  # what an operation post-dominates comes before it
        total_s[each.name] += each.cost_s
        if (parent := above[each.name]) is not None:
            total_s[parent] += total_s[each.name]
    last_of: dict[str, str] = {}
    for each in reversed(work):
        parent = above[each.name]
        fits = parent is not None and total_s[parent] <= limit_s
        last_of[each.name] = last_of[parent] if fits and parent is not None else each.name
    cones = _combined(work, last_of)
    after = readers(cones)
    for each in reversed(cones):
        last_of[each.name] = each.name
        if len(after[each.name]) == 1 and len((reader := after[each.name][0]).sources) == 1:
            last_of[each.name] = last_of[reader.name]
    return _combined(cones, last_of)


def readers(work: Sequence[Work]) -> Mapping[str, Sequence[Work]]:
    """By name: the work that reads its result."""
    found: dict[str, list[Work]] = {each.name: [] for each in work}
    for each in work:
        for source in each.sources:
            found[source].append(each)
    return found


def _combined(work: Sequence[Work], last_of: Mapping[str, str]) -> tuple[Work, ...]:
    """One group for all work of the same last name, in the order of the last ones, which respects all dependencies."""
    members: dict[str, list[Work]] = {}
    for each in work:
        members.setdefault(last_of[each.name], []).append(each)
    return tuple(
        Work(
            tuple(name for part in members[each.name] for name in part.operations),
            tuple(dict.fromkeys(last_of[source] for part in members[each.name] for source in part.sources
                                if last_of[source] != each.name)),
            sum(part.cost_s for part in members[each.name]),
        )
        for each in work if each.name in members
    )  # fmt: skip


def _post_dominators(work: Sequence[Work]) -> Mapping[str | None, str | None]:
    """For each operation the first one through which all chains from it to the end lead; None: they only share the end.

    Method: the nearest common ancestor of its readers in the tree of what is found so far (Cooper, Harvey and Kennedy
    2001); one pass suffices without cycles.
    """
    after = readers(work)
    parent: dict[str | None, str | None] = {}
    depth: dict[str | None, int] = {None: 0}

    def common(left: str | None, right: str | None) -> str | None:
        while left != right:
            if depth[left] < depth[right]:
                left, right = right, left
            left = parent[left]
        return left

    for each in reversed(work):
        names: list[str | None] = [reader.name for reader in after[each.name]]
        parent[each.name] = above = reduce(common, names or [None])
        depth[each.name] = depth[above] + 1
    return parent


# -- streams


def plan_streams(work: Sequence[Work], streams: int) -> StreamPlan:
    """Assign each work to the stream on which it starts first; with equal times that of a source is preferred."""
    after = readers(work)
    chain_s: dict[str, float] = {}  # the longest chain that starts with the work
    for each in reversed(work):
        chain_s[each.name] = each.cost_s + max((chain_s[reader.name] for reader in after[each.name]), default=0.0)
    number = {each.name: index for index, each in enumerate(work)}
    missing = {each.name: len(each.sources) for each in work}
    ready = [(-chain_s[each.name], number[each.name]) for each in work if not each.sources]
    heapq.heapify(ready)
    stream_of: dict[str, int] = {}
    end_s: dict[str, float] = {}
    free_s = [0.0] * streams
    order: list[Work] = []
    while ready:
        each = work[heapq.heappop(ready)[1]]
        choices = []
        for stream in range(min(streams, len(set(stream_of.values())) + 1)):  # at most one unused stream
            crossing = [source for source in each.sources if stream_of[source] != stream]
            ready_s = max((end_s[source] + EVENT_S * (source in crossing) for source in each.sources),
                          default=EVENT_S * (stream > 0))  # fmt: skip
            choices.append((max(free_s[stream], ready_s), len(crossing), stream))
        start_s, _, stream = min(choices)
        stream_of[each.name] = stream
        end_s[each.name] = free_s[stream] = start_s + each.cost_s
        order.append(each)
        for reader in after[each.name]:
            missing[reader.name] -= 1
            if not missing[reader.name]:
                heapq.heappush(ready, (-chain_s[reader.name], number[reader.name]))
    return _segments(order, stream_of, max(end_s.values(), default=0.0))


def _waits(order: Sequence[Work], stream_of: Mapping[str, int]) -> dict[str, list[str]]:
    """For each work the events to wait for: none that follows from the stream order and the other events."""
    position = {each.name: index for index, each in enumerate(order)}
    clock: dict[str, dict[int, int]] = {}  # a vector clock: by stream, the last work that is finished with this one
    last: dict[int, str] = {}  # by stream
    waits: dict[str, list[str]] = {}
    for each in order:
        stream = stream_of[each.name]
        known = dict(clock[last[stream]]) if stream in last else {}
        waits[each.name] = []
        for source in sorted(each.sources, key=position.__getitem__, reverse=True):
            if stream_of[source] != stream and known.get(stream_of[source], -1) < position[source]:
                waits[each.name].append(source)
                known = {key: max(known.get(key, -1), clock[source].get(key, -1)) for key in {*known, *clock[source]}}
        known[stream] = position[each.name]
        clock[each.name], last[stream] = known, each.name
    return waits


def _segments(order: Sequence[Work], stream_of: Mapping[str, int], duration_s: float) -> StreamPlan:
    """The plan with work that nothing interrupts in one segment: only its first work waits, only its last one signals.

    So all that it reads was computed before it starts, and all that others read of it is computed when it ends.
    """
    waits = _waits(order, stream_of)
    last = {stream_of[each.name]: each.name for each in order}
    signalling = {source for names in waits.values() for source in names}
    signalling |= {name for stream, name in last.items() if stream}
    found: list[list[Work]] = []
    index_of: dict[str, int] = {}
    open_on: dict[int, int] = {}  # by stream: the segment that its next work may continue
    for each in order:
        stream = stream_of[each.name]
        if waits[each.name] or stream not in open_on:
            open_on[stream] = len(found)
            found.append([])
        index_of[each.name] = open_on[stream]
        found[open_on[stream]].append(each)
        if each.name in signalling:
            del open_on[stream]
    segments = tuple(
        Segment(
            tuple(name for part in parts for name in part.operations), stream_of[parts[0].name],
            tuple(index_of[name] for name in waits[parts[0].name]), parts[-1].name in signalling,
        )
        for parts in found
    )  # fmt: skip
    joins = tuple(index_of[last[stream]] for stream in sorted(last) if stream)
    return StreamPlan(segments, len(last), joins, duration_s)
