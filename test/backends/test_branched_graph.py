"""Branches on several streams compute the same, in a safe order, with safe memory. On a GPU: test/gpu/backends."""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from torch import fx, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.branched_graph import BranchedGraph, branches_of, compile_segments, with_branches
from multi_dnn_ros.backends.branches import Segment, SerialGraphError, StreamPlan, plan_branches
from multi_dnn_ros.backends.precision import cast_stage
from multi_dnn_ros.models.cut import GraphStage, cut_module

aten = torch.ops.aten


class FakeStreams:
    """Streams on a CPU, which compute immediately. log: (what, stream, event) in the order of the calls; an event is
    its index in the log.
    """

    def __init__(self) -> None:
        self.log: list[tuple[str, int, Any]] = []
        self.current = 0

    def begin(self) -> None:
        self.log.clear()

    @contextlib.contextmanager
    def on(self, stream: int) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def signal(self, stream: int) -> int:
        self.log.append(("signal", stream, None))
        return len(self.log) - 1

    def wait(self, stream: int, event: int) -> None:
        self.log.append(("wait", stream, event))


class Watched(TorchDispatchMode):
    """Logs each operation in the log of the streams, as ("run", stream, (addresses read, addresses written)).

    storages: for each result, a weak reference to its memory, its stream, and the streams that read it. With `keep`,
    results stay alive, so that addresses are unique.
    """

    def __init__(self, device: FakeStreams, keep: bool) -> None:
        super().__init__()
        self.device = device
        self.kept: list[Any] | None = [] if keep else None
        self.storages: list[tuple[StorageWeakRef, int, set[int]]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read, result = addresses((args, kwargs)), function(*args, **(kwargs or {}))
        written = addresses(result) - read
        stream = self.device.current
        self.device.log.append(("run", stream, (read, written)))
        for reference, _, readers in self.storages:
            if not reference.expired() and reference.cdata in storages((args, kwargs)):
                readers.add(stream)
        for tensor in tensors(result):
            if tensor.untyped_storage().data_ptr() in written:
                self.storages.append((StorageWeakRef(tensor.untyped_storage()), stream, set()))
        if self.kept is not None:
            self.kept.append(result)
        return result


def tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def addresses(values: Any) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors(values)}


def storages(values: Any) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in tensors(values)}


class Block(nn.Module):
    """As in Inception: 1x1, 3x3, double 3x3 and pooling, then a concatenation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(channels, 4, 1)
        self.three = nn.Sequential(nn.Conv2d(channels, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())
        self.five = nn.Sequential(
            nn.Conv2d(channels, 4, 1), nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)
        )
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(channels, 4, 1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.one(image), self.three(image), self.five(image), self.pool(image)], 1)


class Blocks(nn.Module):
    """Two blocks with views, a reshape that shares memory, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(3), Block(16)
        self.head = nn.Linear(16, 5)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        middle = self.first(image)
        left, right = torch.chunk(middle, 2, 1)
        flat = torch.ops.aten.reshape.default(right.contiguous(), [right.shape[0], -1])
        result = self.second(middle)
        return {"class": self.head(result.mean((2, 3))), "sum": left.flatten(1).exp() + flat.tanh() * flat.sigmoid()}


class Wide(nn.Module):
    """Four equal branches, long enough for four streams also if all element-wise operations take no time."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(12))) for _ in range(4)
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(image) for branch in self.branches], 1)


EXAMPLE = (torch.zeros(2, 3, 16, 20),)


def stage_of(module: nn.Module, example: Tensors = EXAMPLE) -> GraphStage:
    (stage,) = cut_module(module.eval(), example, 1, fold_batch_norm=True)
    return stage


@functools.cache
def _traced_blocks() -> GraphStage:
    torch.manual_seed(0)
    return stage_of(Blocks())


def blocks() -> GraphStage:
    """A copy for the caller, because copying takes a hundredth of the time of tracing."""
    return copy.deepcopy(_traced_blocks())


def branched(
    stage: nn.Module,
    streams: int,
    make_streams: Callable[[int], Any] = lambda count: FakeStreams(),
    fuses: bool = False,
) -> nn.Module:
    """The stage on several streams, not compiled."""
    found = with_branches(stage, streams, make_streams, fuses=fuses)
    assert found is not None
    return found


@pytest.mark.parametrize("streams", [2, 4, 8])
@pytest.mark.parametrize("kind", ["plain", "bf16"])
def test_branches_compute_the_same_as_the_stage(kind: str, streams: int):
    stage: nn.Module = blocks()
    if kind == "bf16":
        stage = cast_stage(stage, torch.bfloat16)
    parallel = branched(stage, streams)
    image = noise_like(EXAMPLE)
    with torch.inference_mode():
        for _ in range(2):
            check_agreement(parallel(image), stage(image), 1e-6)
    shared = {id(tensor) for tensor in stage.parameters()}
    assert {id(tensor) for tensor in parallel.parameters()} <= shared


def test_googlenet_has_four_branches():
    torch.manual_seed(0)
    example = (torch.zeros(1, 3, 64, 64),)
    stage = stage_of(torchvision.models.googlenet(weights=None, init_weights=False), example)
    counts: list[int] = []

    def make_streams(count: int) -> FakeStreams:
        counts.append(count)
        return FakeStreams()

    parallel = branched(stage, 8, make_streams)
    assert counts[0] >= 4
    with torch.inference_mode():
        check_agreement(parallel(noise_like(example)), stage(noise_like(example)), 1e-6)


@pytest.mark.parametrize("streams", [2, 4, 8])
def test_the_device_would_run_no_operation_before_what_it_reads(streams: int):
    """The order that streams and events guarantee, from a log of what was launched, recorded and waited for."""
    device = FakeStreams()
    parallel = branched(blocks(), streams, lambda count: device)
    with torch.inference_mode(), Watched(device, keep=True):
        outputs = parallel(noise_like(EXAMPLE))
    log = device.log
    before: list[set[int]] = []  # by entry of the log: all entries that the device finishes first
    last: dict[int, int] = {}
    writers: dict[int, int] = {}
    for index, (what, stream, value) in enumerate(log):
        known = set() if stream not in last else before[last[stream]] | {last[stream]}
        if what == "wait":
            known |= before[value] | {value}
        before.append(known)
        if what == "run":
            read, written = value
            for address in read & writers.keys():
                assert writers[address] in known
            writers.update(dict.fromkeys(written, index))
            if stream:
                assert 0 in known  # the start, after which the inputs are ready
        last[stream] = index
    end = before[last[0]] | {last[0]}
    assert all(index in end for index, (what, _, _) in enumerate(log) if what == "run")
    assert all(writers[address] in end for address in addresses(outputs) & writers.keys())
    assert sum(what == "run" and stream > 0 for what, stream, _ in log) > 0


def test_memory_that_another_stream_reads_lives_until_the_streams_have_joined():
    """Other memory of a branch is freed while the branch runs."""
    device = FakeStreams()
    parallel = branched(blocks(), 4, lambda count: device)
    freed_at_join: list[bool] = []
    with torch.inference_mode(), Watched(device, keep=False) as watched:
        wait = device.wait

        def at_wait(stream: int, event: int) -> None:
            wait(stream, event)
            for memory, own, readers in watched.storages:
                assert readers <= {own} or not memory.expired()
            freed_at_join.append(any(memory.expired() for memory, _, _ in watched.storages))

        device.wait = at_wait  # type: ignore[method-assign]
        parallel(noise_like(EXAMPLE))
    assert freed_at_join[-1]
    assert any(readers - {own} for _, own, readers in watched.storages)


# -- segments


UNARY = (aten.relu.default, aten.sigmoid.default, aten.neg.default, aten.exp.default)


@st.composite
def traced_graphs(draw: st.DrawFn) -> fx.GraphModule:
    """Random graphs of values of shape (2, 4) with views, lists, tuples and parameters."""
    parts = nn.Module()
    parts.weight = nn.Parameter(torch.linspace(-1.0, 1.0, 8).reshape(4, 2))
    graph = fx.Graph()
    values = [graph.placeholder("left"), graph.placeholder("right")]
    values.append(graph.call_function(aten.t.default, (graph.get_attr("weight"),)))
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(("unary", "sum", "view", "chunks", "maximum")))
        one, other = (values[draw(st.integers(0, len(values) - 1))] for _ in range(2))
        if kind == "unary":
            values.append(graph.call_function(draw(st.sampled_from(UNARY)), (one,)))
        elif kind == "sum":
            values.append(graph.call_function(aten.add.Tensor, (one, other)))
        elif kind == "view":
            column = graph.call_function(aten.select.int, (one, 1, draw(st.integers(0, 3))))
            wide = graph.call_function(aten.unsqueeze.default, (column, 1))
            values.append(graph.call_function(aten.expand.default, (wide, [2, 4])))
        elif kind == "chunks":
            chunks = graph.call_function(aten.split.Tensor, (one, 2, 1))
            halves = [graph.call_function(operator.getitem, (chunks, index)) for index in (1, 0)]
            values.append(graph.call_function(aten.cat.default, (halves, 1)))
        else:
            found = graph.call_function(aten.max.dim, (one, 1, True))
            largest, place = (graph.call_function(operator.getitem, (found, index)) for index in (0, 1))
            scaled = graph.call_function(aten.mul.Tensor, (largest, place))
            values.append(graph.call_function(aten.expand.default, (scaled, [2, 4])))
    results = draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))
    graph.output((*results, values[-1]))
    return fx.GraphModule(parts, graph)


@given(traced_graphs(), st.sampled_from((2, 4)))
def test_segments_compute_the_same_as_the_graph(graph_module: fx.GraphModule, streams: int):
    """Also results that are inputs, parameters, views across segments, and items of tuples."""
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()
    parallel = BranchedGraph(graph_module, plan_branches(graph_module, streams), FakeStreams())
    inputs = (torch.linspace(-2.0, 2.0, 8).reshape(2, 4), torch.linspace(3.0, -1.0, 8).reshape(2, 4))
    with torch.no_grad():
        for result, right in zip(parallel(*inputs), graph_module(*inputs), strict=True):
            assert torch.equal(result, right)


def test_a_list_that_another_segment_reads_as_a_whole_is_refused():
    graph = fx.Graph()
    value = graph.placeholder("value")
    lists = graph.call_function(aten.unsafe_chunk.default, (value, 2))
    lists.meta["val"] = [torch.zeros(3, 3)] * 2
    joined = [graph.call_function(each, (lists, 1)) for each in (aten.cat.default, aten.stack.default)]
    graph.output(tuple(joined))
    segments = tuple(Segment((node.name,), index % 2, (), index < 2) for index, node in enumerate((lists, *joined)))
    with pytest.raises(SerialGraphError, match="passes on a list"):
        BranchedGraph(fx.GraphModule(nn.Module(), graph), StreamPlan(segments, 2, (1,), 0.0), FakeStreams())


class Compiler:
    """Calls segments as they are and counts the calls. fails: the exceptions for some of them, by their number."""

    def __init__(self, fails: dict[int, Exception] | None = None) -> None:
        self.fails = fails or {}
        self.compiled = 0
        self.calls: list[int] = []
        self.lines: list[str] = []

    def compile_segment(self, segment: Stage, inputs: Tensors) -> Stage:
        number = self.compiled
        self.compiled += 1
        if number in self.fails:
            raise self.fails[number]
        assert not torch.is_inference_mode_enabled()

        def compiled(carried: Tensors) -> Tensors:
            assert [each.stride() for each in carried] == [each.stride() for each in inputs]
            self.calls.append(number)
            return segment(carried)

        return compiled

    def run(self, stage: nn.Module, streams: int = 4) -> nn.Module:
        parallel = branched(stage, streams, fuses=True)
        with torch.inference_mode():  # as while a backend prepares stages
            compile_segments("job 1 of a", parallel, EXAMPLE, self.compile_segment, self.lines.append)
        self.calls.clear()
        return parallel


@pytest.mark.parametrize("kind", ["blocks", "wide", "bf16"])
def test_compiled_segments_compute_the_same_as_the_stage(kind: str):
    stage: nn.Module = blocks()
    if kind == "wide":
        stage = stage_of(Wide())
    elif kind == "bf16":
        stage = cast_stage(stage, torch.bfloat16, channels_last=True)
    compiler = Compiler()
    parallel = compiler.run(stage)
    image = noise_like(EXAMPLE)
    with torch.inference_mode():
        for _ in range(2):
            check_agreement(parallel(image), stage(image), 1e-6)
    assert sorted(compiler.calls) == sorted(2 * list(range(compiler.compiled)))
    assert len(compiler.lines) == compiler.compiled + 1


def test_a_segment_that_cannot_be_compiled_stays_eager_unless_the_memory_does_not_suffice(caplog):
    compiler = Compiler({1: RuntimeError("no lowering for that\nmore")})
    stage, image = blocks(), noise_like(EXAMPLE)
    parallel = compiler.run(stage)
    assert "of job 1 of a runs eager, because Inductor fails: no lowering for that" in caplog.text
    with torch.inference_mode():
        check_agreement(parallel(image), stage(image), 1e-6)
    assert sorted(compiler.calls) == [each for each in range(compiler.compiled) if each != 1]
    with pytest.raises(torch.OutOfMemoryError):
        Compiler({2: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")}).run(blocks())


def test_a_stage_without_branches_or_without_a_graph_is_left_as_it_is():
    chain = stage_of(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)))
    assert with_branches(chain, 8, lambda count: pytest.fail("no streams are needed")) is None
    assert branches_of(chain) is None
    with pytest.raises(SerialGraphError, match="consists of 0 traced graphs"):
        with_branches(nn.Sequential(nn.ReLU()), 2, lambda count: pytest.fail("no streams are needed"))
