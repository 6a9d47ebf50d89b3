"""Stages as segments on several streams, with a compiler that fails where the test wants. Compiled by Inductor:
test_inductor.py; on a GPU: test/gpu/backends."""

from __future__ import annotations

import logging

import pytest
import torch
from test_branched_graph import EXAMPLE, FakeStreams, Wide, blocks, stage_of
from torch import nn

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.branched_graph import streams_used
from multi_dnn_ros.backends.branched_segments import SegmentCompiler, SegmentedStage, segmented
from multi_dnn_ros.backends.precision import cast_stage
from multi_dnn_ros.graph.branches import SerialGraphError

IMAGE = noise_like(EXAMPLE)


class Compiler:
    """Calls segments as they are and counts the calls. fails: the exceptions for some of them, by their number."""

    def __init__(self, fails: dict[int, Exception] | None = None) -> None:
        self.fails = fails or {}
        self.examples: list[Tensors] = []
        self.calls: list[int] = []
        self.lines: list[str] = []

    def compile_segment(self, segment: Stage, inputs: Tensors) -> Stage:
        number = len(self.examples)
        self.examples.append(inputs)
        if number in self.fails:
            raise self.fails[number]
        assert not torch.is_inference_mode_enabled()

        def compiled(carried: Tensors) -> Tensors:
            assert [each.stride() for each in carried] == [each.stride() for each in inputs]
            self.calls.append(number)
            return segment(carried)

        return compiled

    def run(self, stage: nn.Module, streams: int = 4) -> SegmentedStage:
        segments = segmented(stage, streams, lambda count: FakeStreams(), fuses=True)
        assert segments is not None
        with torch.inference_mode():  # as while a backend prepares stages
            SegmentCompiler(self.compile_segment, self.lines.append).compile("job 1 of a", segments, EXAMPLE)
        return segments


@pytest.mark.parametrize("streams", [2, 4])
@pytest.mark.parametrize("kind", ["blocks", "wide", "bf16"])
def test_compiled_segments_compute_the_same_as_the_stage(kind: str, streams: int):
    stage: nn.Module = blocks()
    if kind == "wide":
        stage = stage_of(Wide())
    elif kind == "bf16":
        stage = cast_stage(stage, torch.bfloat16, channels_last=True)
    compiler = Compiler()
    segments = compiler.run(stage, streams)
    assert (streams if kind == "wide" else 2) <= streams_used(segments.parallel) <= streams
    assert streams_used(segments.serial) == 1
    assert len(compiler.examples) == segments.count
    compiler.calls.clear()
    with torch.inference_mode():
        for _ in range(2):
            check_agreement(segments.parallel(IMAGE), stage(IMAGE), 1e-6)
    assert sorted(compiler.calls) == sorted(2 * list(range(segments.count)))


def test_a_segment_that_cannot_be_compiled_stays_eager_and_the_others_are_compiled(caplog):
    compiler = Compiler({1: RuntimeError("no lowering for that\nmore")})
    stage = blocks()
    segments = compiler.run(stage)
    assert (
        f"segment 2 of {segments.count} of job 1 of a runs eager, because Inductor fails: no lowering for that"
        in caplog.text
    )
    compiler.calls.clear()
    with torch.inference_mode():
        check_agreement(segments.parallel(IMAGE), stage(IMAGE), 1e-6)
    assert sorted(compiler.calls) == [each for each in range(segments.count) if each != 1]


def test_out_of_memory_is_raised():
    with pytest.raises(torch.OutOfMemoryError):
        Compiler({2: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")}).run(blocks())


def test_progress_names_the_segment_and_estimates_its_time():
    compiler = Compiler()
    count = compiler.run(blocks()).count
    assert compiler.lines[0] == f"compiling segment 1 of {count} of job 1 of a"
    assert compiler.lines[1] == f"compiling segment 2 of {count} of job 1 of a, about 1 s"
    assert compiler.lines[-1].startswith(f"compiled {count} segments of job 1 of a after ")
    assert len(compiler.lines) == count + 1


def test_the_streams_of_a_stage_that_is_compiled_run_in_the_same_order():
    """Compiling replaces the segments in place; the events stay."""
    streams = FakeStreams()
    segments = segmented(blocks(), 4, lambda count: streams, fuses=True)
    assert segments is not None
    with torch.inference_mode():
        segments.parallel(IMAGE)
        before = list(streams.log)
        SegmentCompiler(Compiler().compile_segment, lambda line: None).compile("job 1 of a", segments, EXAMPLE)
        assert streams.log == before  # compiled without the streams
        segments.parallel(IMAGE)
    assert streams.log == before
    assert {stream for what, stream, _ in before if what == "wait"} > {0}


def test_a_stage_without_branches_has_no_segments():
    torch.manual_seed(0)
    chain = stage_of(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)))
    assert segmented(chain, 8, lambda count: pytest.fail("no streams are needed"), fuses=True) is None
    with pytest.raises(SerialGraphError, match="consists of 0 traced graphs"):
        segmented(nn.Sequential(nn.ReLU()), 2, lambda count: FakeStreams(), fuses=True)


class Outputs(nn.Module):
    """Results that are inputs, parameters, views across segments, and items of tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 3 * 20).reshape(3, 1, 20))
        self.blocks = nn.ModuleList(nn.Conv2d(3, 4, 3, padding=1) for _ in range(4))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = [block(image * self.weight) for block in self.blocks]
        largest, place = parts[0].max(1)
        left, right = torch.chunk(torch.cat(parts[1:], 1), 2, 1)
        return image, self.weight, self.weight.transpose(0, 2), left.transpose(2, 3), largest, place, right.sigmoid()


def test_inputs_parameters_views_and_items_of_tuples_are_returned():
    torch.manual_seed(0)
    module = Outputs()
    stage = stage_of(module)
    segments = Compiler().run(stage)
    with torch.inference_mode():
        check_agreement(segments.parallel(IMAGE), module(*IMAGE), 1e-5)
        check_agreement(segments.serial(IMAGE), module(*IMAGE), 1e-5)


def test_the_log_has_no_warning_for_segments_that_are_compiled(caplog):
    caplog.set_level(logging.WARNING)
    Compiler().run(blocks())
    assert not any(record.name.startswith("multi_dnn_ros") for record in caplog.records)
