"""Operations and bytes of layers in training, against hand counts; property tests of fits and predictions."""

from __future__ import annotations

import dataclasses
import itertools
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from multi_dnn_ros.profiling.training.interconnect import Link, Overlap, Sample, Topology, fit_link, message_sizes
from multi_dnn_ros.profiling.training.measure import count_work
from multi_dnn_ros.profiling.training.prediction import LayerTimes, StepModel, Task, predict_scaling, simulate
from multi_dnn_ros.profiling.training.report import faster_method
from multi_dnn_ros.profiling.training.step import Batch, Replica
from multi_dnn_ros.profiling.training.trace import (
    Message,
    Recorder,
    Segment,
    Timeline,
    exposed_by_message,
    joined,
    windows,
)
from multi_dnn_ros.profiling.training.work import Work

B, C, H = 2, 4, 8  # images, channels, side
N = B * C * H * H  # elements of a feature map
F32 = 4


class Between(nn.Module):
    """A layer between a convolution, which needs a gradient, and a sum of squares, whose gradient occupies memory."""

    def __init__(self, layer: nn.Module, *, tokens: bool = False) -> None:
        super().__init__()
        self.before = nn.Conv2d(3, C, 1)
        self.layer = layer
        self.tokens = tokens

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.before(image)
        x = x.flatten(2).transpose(1, 2).contiguous() if self.tokens else x
        y = (
            self.layer(x, x, x, need_weights=False)[0]
            if isinstance(self.layer, nn.MultiheadAttention)
            else self.layer(x)
        )
        return y.flatten(1).square().sum(1)


def counted(layer: nn.Module, *, tokens: bool = False) -> dict[str, Work]:
    """Work of the layer and its submodules by phase."""
    replica = Replica(Between(layer, tokens=tokens))
    work = count_work(replica, Batch(torch.randn(B, 3, H, H), torch.zeros(B, dtype=torch.long)))
    found: dict[str, Work] = {}
    for (number, phase), of in work.items():
        if replica.layers.names[number].startswith("layer"):
            found[phase] = found.get(phase, Work()) + of
    replica.close()
    return found


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_convolution(groups: int) -> None:
    work = counted(nn.Conv2d(C, C, 3, padding=1, groups=groups, bias=False))
    weights = C * C // groups * 9
    macs = B * H * H * weights
    assert work["forward"] == Work(2 * macs, F32 * (2 * N + weights))
    # takes the gradient of the output, input and weight; gives the gradients of input and weight
    assert work["backward"] == Work(4 * macs, F32 * (3 * N + 2 * weights))


def test_transposed_convolution() -> None:
    work = counted(nn.ConvTranspose2d(C, 6, 2, stride=2, bias=False))
    macs = B * H * H * C * 6 * 4
    assert (work["forward"].flops, work["backward"].flops) == (2 * macs, 4 * macs)


def test_linear() -> None:
    work = counted(nn.Sequential(nn.Flatten(), nn.Linear(C * H * H, 5)))
    macs = N * 5
    assert work["forward"] == Work(2 * macs, F32 * (N + 5 * C * H * H + 5 + B * 5))
    # two products; the bias's gradient adds up the output's, one operation per element
    assert work["backward"].flops == 4 * macs + B * 5
    product = F32 * (B * 5 + N + 5 * C * H * H)
    assert work["backward"].bytes == 2 * product + F32 * (B * 5 + 5)


def test_batch_normalization() -> None:
    work = counted(nn.BatchNorm2d(C))
    # 4 for mean and variance, 2 to normalize, 2 for scale and shift, and 1 for the counter of batches
    forward = work["forward"]
    assert forward.flops == 8 * N + 1
    # input and output; weight, bias, running mean and variance read; saved mean and deviation written; the counter
    assert forward.bytes == F32 * (2 * N + 6 * C) + 2 * 8
    backward = work["backward"]
    assert backward.flops == 9 * N
    assert backward.bytes == F32 * (3 * N + 7 * C)


def test_layer_normalization() -> None:
    work = counted(nn.LayerNorm(C), tokens=True)
    rows = B * H * H
    assert work["forward"] == Work(8 * N, F32 * (2 * N + 2 * C + 2 * rows))
    assert work["backward"] == Work(9 * N, F32 * (3 * N + 4 * C + 2 * rows))


def test_maximum_pooling() -> None:
    work = counted(nn.MaxPool2d(2))
    out = N // 4
    assert work["forward"] == Work(4 * out, F32 * (N + out) + 8 * out)  # the indices of the maxima have 8 bytes each
    assert work["backward"] == Work(out, F32 * (out + 2 * N) + 8 * out)


def test_average_pooling() -> None:
    work = counted(nn.AvgPool2d(2))
    out = N // 4
    assert work["forward"] == Work(4 * out, F32 * (N + out))
    assert work["backward"] == Work(4 * out, F32 * (out + 2 * N))
    assert counted(nn.AdaptiveAvgPool2d(1))["forward"].flops == N


def test_attention() -> None:
    heads, length = 2, H * H
    work = counted(nn.MultiheadAttention(C, heads, batch_first=True, bias=False), tokens=True)
    projections = 2 * (B * length) * C * (4 * C)
    products = 2 * 2 * B * heads * length * length * (C // heads)
    # PyTorch's fused backward pass computes the scores again: five products for two
    assert work["forward"].flops == projections + products
    assert 2 * projections + 5 * products // 2 <= work["backward"].flops <= 2 * projections + 5 * products // 2 + 9 * N


def test_the_work_is_that_of_pytorchs_counter() -> None:
    """For a network without grouped convolutions, whose backward pass PyTorch's counter overestimates."""
    from torch.utils.flop_counter import FlopCounterMode

    network = nn.Sequential(nn.Conv2d(3, C, 3), nn.Flatten(), nn.Linear(C * 36, 5))
    replica = Replica(network)
    batch = Batch(torch.randn(B, 3, H, H), torch.zeros(B, dtype=torch.long))
    with FlopCounterMode(display=False) as counter:
        replica.launch(batch)
    work = count_work(replica, batch)
    products = sum(of.flops for (number, phase), of in work.items() if phase == "forward" and number in (1, 3))
    assert products == 2 * (B * 36 * C * 27 + B * 5 * C * 36)
    total = products + sum(of.flops for (number, phase), of in work.items() if phase == "backward" and number in (1, 3))
    assert counter.get_total_flops() == total - B * 5  # the sum for the bias is no product


LINKS = st.builds(Link, st.floats(1e-7, 1e-2), st.floats(1e6, 1e12), st.booleans())
SECONDS = st.floats(0.0, 1.0)
LAYERS = st.lists(st.builds(LayerTimes, SECONDS, SECONDS, SECONDS, st.integers(0, 1 << 28)), min_size=1, max_size=8)


@given(link=LINKS, processes=st.integers(2, 64))
def test_a_fit_recovers_the_link_of_its_samples(link: Link, processes: int) -> None:
    sizes = message_sizes(1 << 28)
    assert (sizes[0], sizes[-1], len(sizes)) == (4096, 1 << 28, 9)
    samples = [Sample(size, processes, link.seconds(size, processes)) for size in sizes]
    fitted = fit_link(samples, per_step=link.per_step)
    for sample in samples:
        assert fitted.seconds(sample.bytes, processes) == pytest.approx(sample.seconds, rel=1e-5)


def test_the_latency_between_gpus_does_not_grow_with_their_number() -> None:
    """As measured on two and on four H200s: 46 us for 4 kB on both, 0.957 and 1.288 ms for 256 MiB."""
    samples = [Sample(4096, 2, 46.2e-6), Sample(16384, 2, 45.9e-6), Sample(1 << 28, 2, 957e-6)]
    between_gpus, ring = fit_link(samples, per_step=False), fit_link(samples)
    assert between_gpus.seconds(4096, 4) == pytest.approx(46e-6, rel=0.02)
    assert between_gpus.seconds(1 << 28, 4) == pytest.approx(1.288e-3, rel=0.15)
    assert ring.seconds(4096, 4) == pytest.approx(3 * 46e-6, rel=0.02)


@given(st.lists(st.tuples(st.integers(1, 1 << 28), st.floats(1e-6, 10.0)), min_size=2, unique_by=lambda of: of[0]))
def test_a_fit_is_never_negative(samples: list[tuple[int, float]]) -> None:
    fitted = fit_link([Sample(count, 2, seconds) for count, seconds in samples])
    assert fitted.latency_s >= 0.0
    assert fitted.bytes_per_s > 0.0


def test_a_fit_needs_two_sizes_and_two_processes() -> None:
    with pytest.raises(ValueError, match="two sizes"):
        fit_link([Sample(4096, 2, 1.0)])
    with pytest.raises(ValueError, match="two processes"):
        fit_link([Sample(4096, 1, 1.0), Sample(8192, 1, 1.0)])


@given(layers=LAYERS, link=LINKS, processes=st.integers(2, 64), slower=st.floats(1.0, 2.0), longer=st.floats(1.0, 2.0))
def test_a_step_is_within_its_bounds_and_monotone(
    layers: list[LayerTimes], link: Link, processes: int, slower: float, longer: float
) -> None:
    buckets = tuple((index,) for index, layer in enumerate(layers) if layer.gradient_bytes)
    model = StepModel(tuple(layers), buckets, Overlap(slower, longer))
    topology = Topology(link)
    communication = sum(link.seconds(layer.gradient_bytes, processes) for layer in layers)
    for step in (model.layers_s, model.ddp_s):
        seconds = step(topology, processes)
        assert step(topology, 1) == pytest.approx(model.alone_s())
        assert max(model.alone_s(), communication) * (1 - 1e-9) <= seconds
        assert seconds <= (model.alone_s() + communication) * 2.0 * (1 + 1e-9)
        worse = Topology(Link(link.latency_s * 2, link.bytes_per_s / 2))
        assert step(worse, processes) >= seconds * (1 - 1e-9)
        assert step(topology, processes + 1) >= seconds * (1 - 1e-9)
    # without mutual slowdown, updating each layer as early as possible is never slower than buckets of one layer
    calm = dataclasses.replace(model, overlap=Overlap())
    assert calm.layers_s(topology, processes) <= calm.ddp_s(topology, processes) * (1 + 1e-9)


def test_simulated_by_hand() -> None:
    """Two seconds of computation release a message of three; two more overlap with it, at half the speed each."""
    tasks = [Task(2.0, releases=1), Task(2.0), Task(1.0, after=0)]
    assert simulate(tasks, [3.0], Overlap()) == pytest.approx(2 + 3 + 1)
    assert simulate(tasks, [3.0], Overlap(2.0, 2.0)) == pytest.approx(2 + 4 + 1 + 1)
    with pytest.raises(ValueError, match="no earlier task"):
        simulate([Task(1.0, after=0)], [1.0], Overlap())


def test_scaling_over_hosts() -> None:
    layers = (LayerTimes(0.01, 0.02, 0.001, 1 << 24), LayerTimes(0.02, 0.03, 0.001, 1 << 20))
    inside, between = Link(1e-6, 1e11), Link(1e-5, 1e9)
    model = StepModel(layers, ((0, 1),))
    rows = predict_scaling(model, Topology(inside, between, 8), [1, 2, 8, 16, 64])
    assert [row.hosts for row in rows] == [1, 1, 1, 2, 8]
    assert rows[0].layers_efficiency == rows[0].ddp_efficiency == 1.0
    rising = 1 + 1e-9
    assert all(a.ddp_s <= b.ddp_s * rising and a.layers_s <= b.layers_s * rising for a, b in pairwise(rows))
    with pytest.raises(ValueError, match="16 processes, 8 per host"):
        predict_scaling(model, Topology(inside, None, 8), [16])


def test_exposed_time_is_shared_by_the_messages_that_end_one_after_another() -> None:
    messages = (Message((2,), 8, 0.0, 3.0), Message((1,), 8, 1.0, 5.0), Message((0,), 8, 1.5, 4.5))
    timeline = Timeline((Segment(0, "backward", 0.0, 6.0),), messages)
    assert exposed_by_message(timeline, 2.0, 6.0) == pytest.approx([1.0, 0.5, 1.5])
    assert exposed_by_message(timeline, 2.0, 4.0) == pytest.approx([1.0, 0.0, 1.0])


@given(st.integers(1, 40), st.integers(1, 50), st.lists(st.integers(0, 39), max_size=5))
def test_a_step_with_time_stamps_in_parts_is_joined(count: int, size: int, messages: list[int]) -> None:
    """With a fake clock whose base differs for every part."""
    ticks = itertools.count()

    def recorded(window: range | None) -> Recorder:
        recorder = Recorder(torch.device("cpu"), window)
        base = 1_000_000_000 * next(ticks)
        now = 0
        recorder.stamp = lambda: base + now  # type: ignore[method-assign]
        for number in range(count):
            now = number**2 * 1000
            recorder.switch(number, "forward")
            for _ in range(messages.count(number)):
                stamps = recorder.launch((number,), 8)
                if stamps is not None:
                    stamps.append(base + now + 5_000_000)
        now = count**2 * 1000
        recorder.finish()
        return recorder

    whole = recorded(None).timeline()
    parts = joined([recorded(window) for window in windows(count, size)])
    assert len(parts.segments) == count
    assert len(parts.messages) == len([number for number in messages if number < count])
    for ours, expected in zip((*parts.segments, *parts.messages), (*whole.segments, *whole.messages), strict=True):
        assert (ours.start_s, ours.end_s) == pytest.approx((expected.start_s, expected.end_s))


def test_different_steps_are_not_joined() -> None:
    recorders = [Recorder(torch.device("cpu"), window) for window in (range(1), range(1, 2))]
    for layer, recorder in enumerate(recorders):
        recorder.switch(0, "forward")
        recorder.switch(layer, "backward")
        recorder.finish()
    with pytest.raises(RuntimeError, match="different order"):
        joined(recorders)


def test_the_time_saved_by_the_faster_method_is_relative_to_the_slower_one() -> None:
    assert faster_method(80.0, 100.0) == "a step takes 20.0% less time with reduction by layers"
    assert faster_method(100.0, 80.0) == "a step takes 20.0% less time with DDP"
