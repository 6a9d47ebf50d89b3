"""Layer times for `blocking_ms`: measured once and reused, but not on another machine or from a damaged file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from profiling_fakes import Small, target

from multi_dnn_ros.graph.cut import cut_graph
from multi_dnn_ros.planning.job_plan import JobPlan, JobPlanner
from multi_dnn_ros.planning.layer_times import LAYER_TIMES
from multi_dnn_ros.planning.measure import Times
from multi_dnn_ros.vision.view import WHOLE


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LAYER_TIMES, "_folder", tmp_path / "layer_times")


def plan(
    ms: float | None, keep: bool = True, module: torch.nn.Module | None = None, bound_s: float = 0.0025
) -> JobPlan:
    """A plan with this time for every layer. None: measuring raises an error, which plan() logs."""

    def timed(traced, target, *, jobs: int) -> Times:
        if ms is None:
            raise AssertionError("the layers are measured")
        stages = cut_graph(traced.graph_module, jobs)
        return Times(tuple(stages), ((ms,) * 3,) * sum(len(stage.layers) for stage in stages), ((0.0,),), (0.0,), 0)

    dnn = SimpleNamespace(
        name="object", module=module or seeded(), example_inputs=lambda: (torch.zeros(1, 3, 8, 8),),
        inputs=lambda image: (), view=WHOLE,
    )  # fmt: skip
    return JobPlanner(None, "", bound_s, keep=keep, timed=timed, launch=lambda of: 0.0).plan(dnn, 3, target())


def seeded() -> Small:
    torch.manual_seed(0)
    return Small()


def test_times_are_measured_once_for_a_network() -> None:
    first = plan(1.0)
    assert (first.known, first.jobs) == ("measured", 4)
    again = plan(None)
    assert (again.known, again.jobs) == ("measured", 4)
    assert plan(None, bound_s=0.0055).jobs == 2  # another bound, the same times
    other = seeded()
    other.last.weight.data.add_(1.0)
    assert plan(2.0, module=other).jobs == 7


def test_without_keep_nothing_is_stored() -> None:
    plan(1.0, keep=False)
    assert list(LAYER_TIMES.entries()) == []


def test_times_of_another_machine_are_named_and_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan(1.0)
    monkeypatch.setattr("multi_dnn_ros.backends.onnx_providers.cpu_model", lambda: "Board 9000")
    assert plan(2.0).jobs == 7
    assert "layer times of object in" in caplog.text
    assert "are not used: cpu is '" in caplog.text
    assert "' there and 'Board 9000' here" in caplog.text


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: [],
        lambda content: {**content, "ms": content["ms"][1:]},
        lambda content: {**content, "ms": [-1.0] * len(content["ms"])},
        lambda content: {**content, "layers": [{**each, "nodes": ["other"]} for each in content["layers"]]},
        lambda content: {"ms": content["ms"]},
    ],
)
def test_a_damaged_file_is_measured_again(damage: Callable[[dict], object], caplog: pytest.LogCaptureFixture) -> None:
    plan(1.0)
    (entry,) = LAYER_TIMES.entries()
    file = entry.folder / "content.json"
    file.write_text(json.dumps(damage(json.loads(file.read_text()))))
    assert plan(2.0).jobs == 7
    assert f"layer times in {entry.folder} are not used" in caplog.text
    assert plan(None).jobs == 7
