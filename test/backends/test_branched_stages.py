"""The number of streams: measured, kept only where faster and correct, cached."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_branched_graph import EXAMPLE, FakeStreams, Wide, blocks, stage_of
from torch import nn

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.branch_choice import ChoiceCache, check_repeatable, choose_fastest, measure_in_turn
from multi_dnn_ros.backends.branched_graph import streams_used
from multi_dnn_ros.backends.branched_segments import SegmentCompiler, SegmentedStage
from multi_dnn_ros.backends.branched_stages import BranchedStages

IMAGE = noise_like(EXAMPLE)


class Device:
    """Captures nothing; a stage takes as long as `times` says for its number of streams, otherwise 9 ms.

    wrong: numbers of streams whose capture raises. captured: numbers of streams in the order of the captures.
    """

    def __init__(self, times: dict[int, float], wrong: tuple[int, ...] = ()) -> None:
        self.times, self.wrong = times, wrong
        self.captured: list[int] = []
        self.running = 1

    def capture(self, stage: Stage) -> Stage:
        streams = streams_used(stage)
        self.captured.append(streams)
        if streams in self.wrong:
            raise ValueError("result 0 is off by 1")

        def run(carried: Tensors) -> Tensors:
            self.running = streams
            return stage(carried)

        return run

    def ms(self, call: Callable[[], object]) -> float:
        call()
        return self.times.get(self.running, 9.0)

    def choose(self, setting: str, folder: Path, stage: nn.Module | None = None) -> int:
        stages = BranchedStages(setting, lambda count: FakeStreams(), self.capture, self.ms, ChoiceCache(folder))
        stage = stage or blocks()
        with torch.inference_mode():
            return streams_used(stages.choose("job 0 of a", stage, stage, IMAGE, "a GPU"))


def test_the_fastest_number_of_streams_is_kept(tmp_path):
    assert Device({1: 3.0, 2: 2.0, 4: 1.0}).choose("auto", tmp_path) == 4
    assert Device({1: 3.0, 2: 1.0, 4: 2.0}).choose("auto", tmp_path / "other") == 2


def test_more_streams_are_kept_only_where_they_are_clearly_faster(tmp_path):
    device = Device({1: 1.0, 2: 0.99, 4: 1.5})
    assert device.choose("auto", tmp_path) == 1
    assert device.captured == [1, 2, 4, 5]  # with 8, the stage uses 5


def test_the_choice_is_cached_by_stage_and_device(tmp_path, caplog):
    first = Device({1: 3.0, 2: 2.0, 4: 1.0})
    assert first.choose("auto", tmp_path) == 4
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["ms"] == {"1": 3.0, "2": 2.0, "4": 1.0, "8": 9.0}
    again = Device({})
    assert again.choose("auto", tmp_path) == 4
    assert again.captured == []
    file.write_text('{"format": "multi_dnn_ros branches 1", "choice": 3}')
    assert Device({1: 1.0, 2: 2.0, 4: 2.0}).choose("auto", tmp_path) == 1
    assert "choice is 3; allowed: 1, 2, 4, 8" in caplog.text


def test_a_cached_choice_of_one_stream_measures_nothing(tmp_path):
    assert Device({1: 1.0, 2: 2.0, 4: 2.0}).choose("auto", tmp_path) == 1
    again = Device({})
    assert again.choose("auto", tmp_path) == 1
    assert again.captured == []


def test_a_number_is_used_without_measuring(tmp_path):
    for setting, streams in (("2", 2), ("4", 4), ("1", 1)):
        device = Device({})
        assert device.choose(setting, tmp_path) == streams
        assert device.captured == []


def test_wrong_results_rule_a_number_of_streams_out(tmp_path, caplog):
    assert Device({1: 3.0, 2: 2.0, 4: 1.0}, wrong=(4,)).choose("auto", tmp_path) == 2
    assert "job 0 of a is not run on 4 streams: result 0 is off by 1" in caplog.text
    assert not list(tmp_path.glob("*"))  # measured again next time


def test_a_stage_whose_order_matters_runs_on_one_stream(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    assert Device({}).choose("auto", tmp_path, nn.Sequential(nn.ReLU())) == 1
    assert "job 0 of a runs on one stream: it consists of 0 traced graphs" in caplog.text


class Compiler(SegmentCompiler):
    """compiled: the stages that it has compiled. error: raised instead."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(lambda segment, inputs: segment, lambda line: None)
        self.compiled: list[Stage] = []
        self._error = error

    def compile(self, title: str, stage: SegmentedStage, inputs: Tensors) -> None:
        assert title == "job 1 of a"
        if self._error is not None:
            raise self._error
        self.compiled.append(stage.parallel)


class CompilingDevice(Device):
    """Takes as long as `times` says for a number of streams while its segments are not compiled, then as long as
    `compiled` says. The stage without branches takes 2 ms. captured: the numbers, negative if compiled.
    """

    def __init__(
        self, times: dict[int, float], compiled: dict[int, float], wrong: tuple[int, ...] = (),
        error: Exception | None = None,
    ) -> None:  # fmt: skip
        super().__init__({1: 2.0, **times, **{-count: ms for count, ms in compiled.items()}}, wrong)
        self.compiler = Compiler(error)

    def capture(self, stage: Stage) -> Stage:
        run = super().capture(stage)
        if any(stage is each for each in self.compiler.compiled):
            self.captured[-1] = -self.captured[-1]
        number = self.captured[-1]

        def run_compiled(carried: Tensors) -> Tensors:
            results = run(carried)
            self.running = number
            return results

        return run_compiled

    def choose_from(self, setting: str, folder: Path) -> Stage:
        """The stage that is used. The one without branches is a function, as a compiled stage is."""
        torch.manual_seed(0)
        source = stage_of(Wide())

        def serial(carried: Tensors) -> Tensors:
            results: Tensors = source(carried)
            return results

        stages = BranchedStages(
            setting, lambda count: FakeStreams(), self.capture, self.ms, ChoiceCache(folder), self.compiler
        )
        with torch.inference_mode():
            stage = stages.choose("job 1 of a", serial, source, IMAGE, "a GPU")
            check_agreement(stage(IMAGE), source(IMAGE), 1e-6)
        assert stage is serial or stage in self.compiler.compiled
        return stage


def test_only_the_fastest_number_of_streams_is_compiled_and_compared_with_one_stream(tmp_path):
    device = CompilingDevice({2: 7.0, 4: 5.0}, {4: 1.0})
    assert streams_used(device.choose_from("auto", tmp_path)) == 4
    assert device.captured == [1, 2, 4, -4]
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["ms"] == {"1": 2.0, "4": 1.0}
    again = CompilingDevice({}, {})
    assert streams_used(again.choose_from("auto", tmp_path)) == 4
    assert again.captured == []
    assert len(again.compiler.compiled) == 1


def test_compiled_segments_that_are_not_faster_than_one_stream_are_not_used(tmp_path):
    device = CompilingDevice({2: 1.0, 4: 1.5}, {2: 2.1})  # not compiled they may be faster, but are not used
    assert streams_used(device.choose_from("auto", tmp_path)) == 1
    assert device.captured == [1, 2, 4, -2]
    again = CompilingDevice({}, {})
    assert streams_used(again.choose_from("auto", tmp_path)) == 1
    assert again.compiler.compiled == []


def test_a_number_of_streams_is_compiled_without_measuring(tmp_path):
    device = CompilingDevice({}, {})
    assert streams_used(device.choose_from("4", tmp_path)) == 4
    assert device.captured == []


def test_segments_with_wrong_results_are_not_compiled(tmp_path, caplog):
    assert streams_used(CompilingDevice({2: 7.0, 4: 5.0}, {2: 1.0}, wrong=(4,)).choose_from("auto", tmp_path)) == 2
    assert "job 1 of a is not run on 4 streams: result 0 is off by 1" in caplog.text
    device = CompilingDevice({}, {}, wrong=(2, 4))
    assert streams_used(device.choose_from("auto", tmp_path / "other")) == 1
    assert device.compiler.compiled == []
    assert not list(tmp_path.glob("*"))


def test_memory_that_does_not_suffice_for_compiling_is_an_error(tmp_path):
    with pytest.raises(torch.OutOfMemoryError):
        CompilingDevice({}, {}, error=torch.OutOfMemoryError("CUDA out of memory")).choose_from("auto", tmp_path)
    assert not list(tmp_path.glob("*"))


def test_results_that_depend_on_earlier_runs_are_noticed():
    kept: list[torch.Tensor] = [torch.zeros(EXAMPLE[0].shape)]

    def overwritten(carried: Tensors) -> Tensors:
        kept.append(carried[0])
        return (carried[0] + 1e-6 * kept[-2],)

    with pytest.raises(ValueError, match="result 0 differs between two runs with the same input"):
        check_repeatable(overwritten, EXAMPLE)
    check_repeatable(lambda carried: (carried[0] / 0.0, carried[0].bool()), EXAMPLE)


def test_candidates_are_measured_in_turn():
    calls: list[int] = []
    times = measure_in_turn({1: lambda: calls.append(1), 2: lambda: calls.append(2)}, lambda call: call() or 1.0, 3)
    assert calls == [1, 2, 1, 2, 1, 2]
    assert times == {1: [1.0] * 3, 2: [1.0] * 3}


def test_at_equal_times_fewer_streams_are_chosen():
    assert choose_fastest({1: [2.0], 4: [1.0], 2: [1.0], 8: [1.0]}) == 2


def test_a_cache_that_cannot_be_written_or_read_is_reported(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    ChoiceCache(tmp_path / "file" / "folder").put("key", 2, {1: [2.0], 2: [1.0]})
    assert "the choice is not cached" in caplog.text
    (tmp_path / "other.json").write_text("{")
    assert ChoiceCache(tmp_path).get("other") is None
    assert f"the cached choice in {tmp_path / 'other.json'} is not used, and is measured again: " in caplog.text
