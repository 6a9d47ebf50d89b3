"""The paper's experiments: counting and comparing, without assertions on speed. Blocks are in test_paper_blocks."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.backends import sm_division
from multi_dnn_ros.benchmark.paper.conditions import CONDITIONS, choose_conditions
from multi_dnn_ros.benchmark.paper.loops import EngineLoop, SequentialLoop, make_batched_task, make_task
from multi_dnn_ros.benchmark.paper.networks import example_image, make_network
from multi_dnn_ros.benchmark.paper.partition import Partition, check_partition
from multi_dnn_ros.benchmark.paper.prepare import Work, build, make_loop
from multi_dnn_ros.benchmark.paper.process_group import ProcessGroup, ProcessGroupError
from multi_dnn_ros.benchmark.paper.sets import FIGURES, SETS, DnnSet, Network, choose_sets
from multi_dnn_ros.benchmark.paper.shared_queue import SharedQueue
from multi_dnn_ros.benchmark.paper.tally import Tally, Ticker, Window
from multi_dnn_ros.cli.main import build_parser, main
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.compression.macs import cost

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TINY = Network("squeezenet1_1", "Squeeze", side=64)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """The scenarios set PyTorch's threads for their process, here that of the tests."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# -- what is run


def test_sets_are_those_of_the_paper() -> None:
    counts = {name: {n.label: c for n, c in SETS[name].kinds.items()} for name in (*FIGURES["fig5"], *FIGURES["fig6"])}
    assert counts == {
        "vgg16_x8": {"VGG": 8}, "resnet152_x8": {"Res": 8}, "inception_v3_x8": {"Inception": 8},
        "regnet_y_32gf_x7": {"RegY": 7}, "mixed": {"VGG": 3, "Res": 1, "Inception": 2, "RegY": 2},
    }  # fmt: skip
    assert len(FIGURES["table1"]) == 8
    assert [dnns.name for dnns in choose_sets(["fig6", "mixed", "small"])] == ["mixed", "small"]
    with pytest.raises(UsageError, match="'vgg'; allowed: table1, fig5"):
        choose_sets(["vgg"])


def test_conditions_fit_the_device() -> None:
    on_gpu = {condition.name for condition in choose_conditions([], CUDA)}
    on_cpu = {condition.name for condition in choose_conditions([], CPU)}
    assert {"ori_mp", "dcomp_mp", "dcomp_mt", "ours", "ours_dcomp", "one_thread", "one_thread_graph"} <= on_cpu
    assert on_gpu - on_cpu == {"ours_fp16", "ours_fp16_one_job", "ours_dcomp_fp16", "compile_mp"}
    assert [condition.name for condition in choose_conditions(["ours", "ori_mp", "ours"], CPU)] == ["ours", "ori_mp"]
    with pytest.raises(UsageError, match="'ours_fp16', which needs a GPU"):
        choose_conditions(["ours_fp16"], CPU)
    with pytest.raises(UsageError, match="'fast'; allowed: ori_mp"):
        choose_conditions(["fast"], CPU)


def test_a_share_of_sms_is_refused_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    check_partition(CPU, None)
    with pytest.raises(UsageError, match="--sms is 16; only an NVIDIA GPU"):
        check_partition(CPU, 16)
    monkeypatch.setattr(sm_division, "available", lambda: False)
    with pytest.raises(UsageError, match="no CUDA green contexts"):
        check_partition(CUDA, 16)


def test_networks_compute_finite_values_and_are_decomposed_by_structure() -> None:
    network = SETS["small"].networks[0]
    image = example_image(network)
    original, decomposed = make_network(network), make_network(network, alignment=8)
    assert cost(decomposed, (image,)).macs < 0.7 * cost(original, (image,)).macs
    for module in (original, decomposed):
        with torch.inference_mode():
            assert module(image).shape == (1, 10)
            assert float(module(image).std()) == pytest.approx(1.0, rel=0.01)
    assert torch.equal(make_network(network)(image), original(image))


def test_half_precision_and_channels_last_are_for_gpus() -> None:
    work = Work(CONDITIONS["compile_mp"], (TINY,), "cuda")
    (whole,) = build(work)
    assert {weight.dtype for weight in whole.module.parameters()} == {whole.inputs[0].dtype} == {torch.float16}
    assert whole.inputs[0].is_contiguous(memory_format=torch.channels_last)
    assert whole.chains == {}
    for other in (replace(work, device="cpu"), replace(work, condition=CONDITIONS["ours_fp16"])):  # its backend casts
        (built,) = build(other)
        assert {weight.dtype for weight in built.module.parameters()} == {built.inputs[0].dtype} == {torch.float32}
        assert len(built.chains.get(1, ())) == (0 if other.device == "cpu" else 8)


# -- what counts


@given(st.lists(st.integers(1, 100)))
def test_inferences_within_the_window_count(lengths: list[int]) -> None:
    tally, now = Tally(Window(20, 80)), 0
    begun, inside, completed = [], [], 0
    for length in lengths:
        if not tally.wants_more(now):
            break
        tally.add(now, now + length)
        begun += [length] if now >= 20 else []
        inside += [length] if now >= 20 and now + length <= 80 else []
        completed += 20 < now + length <= 80
        now += length
    assert tally.completed == completed
    assert tally.latencies_ns == (inside or begun[:1])  # an inference longer than the window is better than none
    assert tally.wants_more(80) == (not begun)


def test_the_rate_does_not_depend_on_the_phase_of_the_window() -> None:
    for phase in range(10):
        tally = Tally(Window(20, 80))
        for begin in range(phase, 100, 10):
            tally.add(begin, begin + 10)
        assert tally.completed == 6, phase
        assert len(tally.latencies_ns) == (6 if phase == 0 else 5)


def test_in_sequence_every_dnn_waits_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0

    def advance(by: int) -> None:
        nonlocal now
        now += by

    monkeypatch.setattr("multi_dnn_ros.benchmark.paper.loops.time.monotonic_ns", lambda: now)
    calls = [lambda: advance(3), lambda: advance(5)]
    short, long = SequentialLoop(calls, lambda: advance(1)).run(Window(100, 200))
    assert set(short.latencies_ns) == set(long.latencies_ns) == {3 + 1 + 5 + 1}
    assert (short.completed, long.completed) == (10, 10)  # at 104, 114, ... and at 110, 120, ...
    assert (len(short.latencies_ns), len(long.latencies_ns)) == (9, 10)  # from 104, 114, ... and from 100, 110, ...
    assert short.jobs == long.jobs > 10  # jobs before the window count, too


class _Adds(torch.nn.Module):
    """A stage that adds one, or fails."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails

    def forward(self, carried: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        if self.fails:
            raise RuntimeError("no such kernel")
        return (carried[0] + 1,)


def through_engine(chains: Sequence[Any], inputs: Sequence[Any], partition: Partition) -> EngineLoop:
    names = [f"dnn{number}" for number in range(len(chains))]
    return EngineLoop([make_task(*each, partition) for each in zip(names, chains, inputs, strict=True)], partition)


@pytest.mark.parametrize("loop_of", [SharedQueue, through_engine])
def test_threads_run_all_jobs_of_all_dnns(loop_of: Any) -> None:
    inputs = [(torch.zeros(1),), (torch.zeros(1),)]
    loop = loop_of([(_Adds(),) * 3, (_Adds(),)], inputs, Partition(CPU))
    for tally, jobs in zip(loop.run(Window.ahead(0.02, 0.05)), (3, 1), strict=True):
        assert tally.completed <= len(tally.latencies_ns) + 1  # one runs when the window begins
        assert tally.latencies_ns
        assert tally.jobs >= jobs * tally.completed
        assert tally.jobs % jobs == 0
        assert tally.host_ns > 0
    loop.close()
    assert float(inputs[0][0]) == 0.0


@pytest.mark.parametrize("loop_of", [SharedQueue, through_engine])
def test_a_stage_that_raises_ends_the_run(loop_of: Any) -> None:
    loop = loop_of([(_Adds(),), (_Adds(), _Adds(fails=True))], [(torch.zeros(1),)] * 2, Partition(CPU))
    with pytest.raises(RuntimeError, match="no such kernel"):
        loop.run(Window.ahead(0.0, 0.1))
    loop.close()


@pytest.mark.parametrize("name", ["ori_mp", "dcomp_mt", "ours_dcomp", "ours_batched_fp16", "one_thread_graph"])
def test_every_layout_can_be_prepared(name: str) -> None:
    networks = (TINY,) * (1 if CONDITIONS[name].layout == "processes" else 2)
    work = Work(CONDITIONS[name], networks, "cpu", jobs=3)
    loop = make_loop(work, build(work))
    tallies = loop.run(Window.ahead(0.0, 0.05))
    loop.close()
    assert len(tallies) == len(networks)
    assert all(tally.latencies_ns for tally in tallies)


def test_dnns_of_short_operations_have_priority_under_conditions_with_priorities() -> None:
    conditions = (CONDITIONS["ours_batched_fp16"], replace(CONDITIONS["ours_batched_fp16"], ordered=True))
    wide, narrow = Network("squeezenet1_0", "Squeeze", side=96), TINY
    built = build(Work(conditions[0], (wide, wide, narrow), "cpu", jobs=2))
    for condition, expected in zip(conditions, ([0, 0], [0, 1]), strict=True):
        loop = make_loop(Work(condition, (wide, wide, narrow), "cpu", jobs=2), built)
        assert isinstance(loop, EngineLoop)
        assert [task.priority for task in loop._tasks] == expected
        assert [task.max_batch for task in loop._tasks] == [2, 1]
        assert all(tally.latencies_ns for tally in loop.run(Window.ahead(0.0, 0.05)))


def test_cameras_of_one_network_share_its_inferences() -> None:
    sizes: list[int] = []

    class Counts(_Adds):
        def forward(self, carried: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            sizes.append(len(carried[0]))
            return super().forward(carried)

    cameras, chain = ["dnn0", "dnn1", "dnn2"], (Counts(), Counts())
    task = make_batched_task("squeezenet", cameras, {1: chain, 3: chain}, (torch.zeros(1, 2),), Partition(CPU))
    tallies = EngineLoop([task], Partition(CPU)).run(Window.ahead(0.02, 0.05))
    assert len(tallies) == 3
    assert all(tally.latencies_ns for tally in tallies)
    assert 3 in sizes
    assert set(sizes) <= {1, 3}
    assert sum(tally.jobs for tally in tallies) == pytest.approx(len(sizes))


def test_the_ticker_measures_its_delay() -> None:
    with Ticker() as ticker:
        deadline = time.monotonic() + 60.0
        while len(ticker.late_ns) < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
    assert len(ticker.late_ns) >= 3
    assert all(late >= 0 for late in ticker.late_ns[1:])


# -- processes


def test_the_end_of_a_process_is_reported(tmp_path: Path) -> None:
    work = Work(CONDITIONS["ours_dcomp"], (TINY,), "cpu", artifacts=tmp_path)
    with ProcessGroup("ours_dcomp", [work]) as group:
        with pytest.raises(
            ProcessGroupError, match=r"ours_dcomp: .*lacks squeezenet1_1; expected squeezenet1_1.safetensors"
        ):
            group.prepare(120.0)
        (process,) = group._processes
        assert process.pid
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(ProcessGroupError, match="process 0 ended with exit code -9"):
            group.run(0.1)
    assert not process.is_alive()


@pytest.mark.long  # short: one process in test_paper_blocks, and the test of processes above
@pytest.mark.timeout(600)
def test_paper_through_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SETS, "small", DnnSet("small", (TINY, replace(TINY, builder="squeezenet1_0"))))
    output = tmp_path / "paper.json"
    arguments = ["--set", "small", "--conditions", "ori_mp", "ours", "--repeats", "1", "--seconds", "0.2"]
    arguments += ["--device", "cpu", "--jobs", "3", "--output", str(output)]
    assert main(["benchmark", "paper", *arguments]) == 0
    found = json.loads(output.read_text())
    small = found["sets"]["small"]
    assert small["dnns"] == ["squeezenet1_1", "squeezenet1_0"]
    for name in ("ori_mp", "ours"):
        (run,) = small["conditions"][name]["runs"]
        assert set(run["ms"]) == set(small["dnns"])
        assert all(times["samples"] >= 1 for times in run["ms"].values())
        assert run["stall_ms"]["samples"] > 0
        assert small["conditions"][name]["memory_bytes"] > 0
        assert small["summary"][name]["of_floor"] > 0
    assert small["summary"]["ori_mp"]["of_ori_mp"]["all"] == 1.0
    assert found["command"].split()[0] == "multi-dnn"
    text = output.with_suffix(".md").read_text()
    assert "| ours " in text
    assert text in capsys.readouterr().out
    assert (tmp_path / "paper_small.png").read_bytes().startswith(b"\x89PNG")
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".md", ".png"}  # nothing half-written
    # The results are complete, so resuming has nothing to do; other settings are refused.
    assert main(["benchmark", "paper", *arguments, "--resume"]) == 0
    assert json.loads(output.read_text())["sets"] == found["sets"]
    assert main(["benchmark", "paper", *arguments, "--resume", "--jobs", "4"]) == 1
    assert "settings jobs: 3 and 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sms", "16"], "--sms is 16; only an NVIDIA GPU"),
        (["--resume"], "--resume needs --output"),
        (["--set", "vgg"], "--set is 'vgg'"),
        (["--conditions", "ours_fp16"], "needs a GPU"),
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "paper", "--device", "cpu", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("scenario", ["paper"])
def test_help_gives_examples_that_are_accepted(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["benchmark", scenario, "--help"])
    text = capsys.readouterr().out
    assert "--output JSON" in text
    for line in text.splitlines():
        if line.startswith("  multi-dnn "):
            build_parser().parse_args(line.split()[1:])
