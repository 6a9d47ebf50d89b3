"""The paper's experiments: counting and comparing, without assertions on speed."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.benchmark.paper.dnns import Work, check_partition, make_loop, make_network
from multi_dnn_ros.benchmark.paper.loops import Tally, Window
from multi_dnn_ros.benchmark.paper.measure import prepare, summarize
from multi_dnn_ros.benchmark.paper.sets import CONDITIONS, FIGURES, SETS, Network, choose_conditions
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.compression.macs import cost

CPU = torch.device("cpu")
TINY = Network("squeezenet1_1", side=64)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """The scenario sets PyTorch's threads for its process, here that of the tests."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# -- the command


@pytest.mark.long  # it starts four processes
@pytest.mark.timeout(600)
def test_table_1_at_a_small_size_through_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(TINY, builder="squeezenet1_0")
    monkeypatch.setitem(SETS, "tiny_x1", (TINY,))
    monkeypatch.setitem(SETS, "tiny_x6", (TINY, other))
    monkeypatch.setitem(FIGURES, "table1", ("tiny_x1", "tiny_x6"))
    output = tmp_path / "paper.json"
    assert main(["benchmark", "paper", "--set", "table1", "--conditions", "ori_mp", "ours", "--repeats", "2",
                 "--seconds", "0.2", "--device", "cpu", "--jobs", "3", "--output", str(output)]) == 0  # fmt: skip
    found = json.loads(output.read_text())
    assert list(found["sets"]) == ["tiny_x1", "tiny_x6"]
    results = found["sets"]["tiny_x6"]
    assert results["dnns"] == ["squeezenet1_1", "squeezenet1_0"]
    for name in ("ori_mp", "ours"):
        assert [run["block"] for run in results["conditions"][name]["runs"]] == [0, 1]
        for run in results["conditions"][name]["runs"]:
            assert set(run["ms"]) == set(results["dnns"])
            assert all(times["samples"] >= 1 for times in run["ms"].values())
    assert results["summary"]["ori_mp"]["of_baseline"] == 1.0
    assert results["summary"]["ours"]["of_baseline"] > 0.0
    assert {"command", "versions", "machine", "settings"} <= found.keys()
    assert "| ours " in capsys.readouterr().out
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sms", "16"], "--sms is 16; only an NVIDIA GPU"),
        (["--conditions", "ours_fp16"], "needs a GPU"),
        (["--output", "paper.png"], "--output is paper.png; expected a .json file"),
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "paper", "--device", "cpu", *arguments]) == 2
    assert words in capsys.readouterr().err


# -- what is run


def test_conditions_fit_the_device() -> None:
    on_gpu, on_cpu = ({it.name for it in choose_conditions([], torch.device(name))} for name in ("cuda", "cpu"))
    assert on_cpu == {"ori_mp", "dcomp_mp", "ours", "ours_dcomp"}
    assert on_gpu - on_cpu == {"ours_fp16", "ours_dcomp_fp16", "compile_mp"}
    assert [condition.name for condition in choose_conditions(["ours", "ori_mp", "ours"], CPU)] == ["ours", "ori_mp"]
    on_a_share = {it.name for it in choose_conditions([], torch.device("cuda"), sms=16)}
    assert on_gpu - on_a_share == {"compile_mp"}
    with pytest.raises(UsageError, match="'compile_mp', which runs on a whole GPU"):
        choose_conditions(["compile_mp"], torch.device("cuda"), sms=16)
    check_partition(CPU, None)


def test_networks_compute_finite_values_and_are_decomposed_by_structure() -> None:
    (original, image), (decomposed, _) = make_network(SETS["small"][0]), make_network(SETS["small"][0], alignment=8)
    assert cost(decomposed, (image,)).macs < 0.7 * cost(original, (image,)).macs
    for module in (original, decomposed):
        with torch.inference_mode():
            assert module(image).shape == (1, 10)
            assert float(module(image).std()) == pytest.approx(1.0, rel=0.01)
    assert torch.equal(make_network(SETS["small"][0])[0](image), original(image))


# -- what counts


@given(st.lists(st.integers(1, 100)))
def test_inferences_within_the_window_count(lengths: list[int]) -> None:
    tally, now = Tally(Window(20, 80)), 0
    begun, inside = [], []
    for length in lengths:
        if not tally.wants_more(now):
            break
        tally.add(now, now + length)
        begun += [length] if now >= 20 else []
        inside += [length] if now >= 20 and now + length <= 80 else []
        now += length
    assert tally.latencies_ns == (inside or begun[:1])  # an inference longer than the window is better than none
    assert tally.wants_more(80) == (not begun)


def test_ratios_are_taken_within_a_block() -> None:
    def runs(*times: tuple[int, float]) -> list[dict[str, Any]]:
        return [{"block": block, "mean_ms": ms, "ms": {"a": {"p50": ms, "p99": ms}}, "inferences_per_s": 1.0}
                for block, ms in times]  # fmt: skip

    conditions: dict[str, dict[str, Any]] = {
        "ori_mp": {"runs": runs((0, 10.0), (1, 20.0)), "memory_bytes": 0},
        "ours": {"runs": runs((0, 5.0), (1, 10.0)), "memory_bytes": 0},
    }
    assert {name: it["of_baseline"] for name, it in summarize(conditions).items()} == {"ori_mp": 1.0, "ours": 0.5}
    found = summarize({"ours": conditions["ours"]})
    assert found["ours"]["of_baseline"] is None
    assert found["ours"]["mean_ms"] == 7.5


@pytest.mark.parametrize("name", ["ori_mp", "ours_dcomp", "ours_batched_dcomp"])
def test_every_layout_can_be_prepared(name: str) -> None:
    networks = (TINY,) * (1 if CONDITIONS[name].layout == "processes" else 2)
    work = Work(CONDITIONS[name], networks, "cpu", jobs=3)
    tallies = make_loop(work)(Window.ahead(0.0, 0.05))
    assert len(tallies) == len(networks)
    assert all(tally.latencies_ns for tally in tallies)


def test_what_a_process_raises_and_its_end_are_reported() -> None:
    networks = (replace(TINY, builder="no_such"), TINY)
    works = [Work(CONDITIONS["ours"], (network,), "cpu", jobs=3) for network in networks]
    with ExitStack() as stack:
        with pytest.raises(CommandError, match=r"condition ours: .*no_such"):
            prepare("ours", works[:1], stack)
        others = set(multiprocessing.active_children())
        run = prepare("ours", works[1:], stack)
        (process,) = set(multiprocessing.active_children()) - others
        process.kill()
        with pytest.raises(CommandError, match="condition ours has ended by itself"):
            run(0.1)
    assert not multiprocessing.active_children()
