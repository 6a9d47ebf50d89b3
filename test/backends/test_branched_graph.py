"""Branches on several streams compute the same, in a safe order, with safe memory. On a GPU: test/gpu/backends."""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.branched_graph import BranchedGraph, branches_of, with_branches
from multi_dnn_ros.backends.branches import SerialGraphError, plan_branches
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

    Results stay alive, so that addresses are unique.
    """

    def __init__(self, device: FakeStreams) -> None:
        super().__init__()
        self.device = device
        self.kept: list[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read, result = addresses((args, kwargs)), function(*args, **(kwargs or {}))
        self.device.log.append(("run", self.device.current, (read, addresses(result) - read)))
        self.kept.append(result)
        return result


def tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def addresses(values: Any) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors(values)}


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


def branched(stage: nn.Module, streams: int, device: FakeStreams) -> nn.Module:
    """The stage on several streams, not compiled."""
    found = with_branches(stage, streams, lambda count: device)
    assert found is not None
    return found


@pytest.mark.parametrize("streams", [2, 4, 8])
@pytest.mark.parametrize("kind", ["plain", "bf16"])
def test_branches_compute_the_same_as_the_stage(kind: str, streams: int):
    stage: nn.Module = blocks()
    if kind == "bf16":
        stage = cast_stage(stage, torch.bfloat16)
    parallel = branched(stage, streams, FakeStreams())
    image = noise_like(EXAMPLE)
    with torch.inference_mode():
        for _ in range(2):
            check_agreement(parallel(image), stage(image), 1e-6)
    shared = {id(tensor) for tensor in stage.parameters()}
    assert {id(tensor) for tensor in parallel.parameters()} <= shared


@pytest.mark.parametrize("streams", [2, 4, 8])
def test_the_device_would_run_no_operation_before_what_it_reads(streams: int):
    """The order that streams and events guarantee, from a log of what was launched, recorded and waited for."""
    device = FakeStreams()
    parallel = branched(blocks(), streams, device)
    with torch.inference_mode(), Watched(device):
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


def test_a_stage_without_branches_or_without_a_graph_is_left_as_it_is():
    chain = stage_of(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)))
    assert with_branches(chain, 8, lambda count: pytest.fail("no streams are needed")) is None
    assert branches_of(chain) is None
    with pytest.raises(SerialGraphError, match="consists of 0 traced graphs"):
        with_branches(nn.Sequential(nn.ReLU()), 2, lambda count: pytest.fail("no streams are needed"))
