"""Cutting DNNs by the times of their layers, from parameters to tasks; the cache of the times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from profiling_fakes import LAYERS, SHAPE, Small, chain_of, target, traced
from torch import nn

from multi_dnn_ros.models.cut import cut_graph
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.planning import layer_chain, layer_plan
from multi_dnn_ros.planning.job_plan import JobPlan
from multi_dnn_ros.planning.layer_chain import make_layer_chain
from multi_dnn_ros.planning.layer_plan import LAYER_TIMES, plan_network
from multi_dnn_ros.serving.build import build
from multi_dnn_ros.settings.flat_parameters import to_config
from multi_dnn_ros.vision.view import WHOLE


class Planned:
    """What planning uses of a Dnn. Its preprocessing takes no time."""

    name, view = "object", WHOLE

    def __init__(self, module: nn.Module | None = None) -> None:
        self.module = module or Small()

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        return (torch.zeros(SHAPE),)

    def inputs(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ()


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Plans a DNN whose layers take these milliseconds; None: measuring them fails. The cache is the test's own."""
    monkeypatch.setattr(LAYER_TIMES, "_folder", tmp_path / "layer_times")

    def of(ms: tuple[float, ...] | None, bound_ms: float, module: nn.Module | None = None, jobs: int = 3) -> JobPlan:
        def fails(*given: object) -> None:
            raise RuntimeError("sofa")

        monkeypatch.setattr(layer_plan, "make_layer_chain", fails if ms is None else chain_of(ms))
        dnn: Dnn = Planned(module)  # type: ignore[assignment]
        return plan_network(dnn, jobs, bound_ms / 1e3, target())

    return of


EACH_1_MS = (1.0,) * LAYERS


def stages_of(plan: JobPlan) -> list:
    return cut_graph(traced().graph_module, plan.jobs, costs=plan.costs, limit_s=plan.limit_s)


def test_without_a_bound_nothing_is_timed(plan) -> None:
    found = plan(None, 0.0)
    assert (found.jobs, found.costs, found.remaining_ns(())) == (3, None, None)


def test_fewest_jobs_for_a_bound_and_their_summary(plan, caplog: pytest.LogCaptureFixture) -> None:
    found = plan(EACH_1_MS, 3.2)
    stages = stages_of(found)
    assert len(stages) == 3
    assert max(stage.cost_s for stage in stages) <= 3.2e-3
    remaining = found.remaining_ns(stages)
    assert remaining[0] == pytest.approx(7e6, rel=0.01)
    assert remaining[2] == pytest.approx(1e6 * len(stages[2].layers))
    assert found.summary("object", remaining) == "object: 3 jobs, longest 3 ms of 3.2 allowed"
    assert "cannot be met" not in caplog.text


def test_a_bound_that_cannot_be_met_is_logged(plan, caplog: pytest.LogCaptureFixture) -> None:
    found = plan((1.0, 1.0, 5.0, 0.5, 0.5, 0.5, 0.5), 2.2)
    assert max(stage.cost_s for stage in stages_of(found)) == pytest.approx(5e-3)
    assert "dnn.object: blocking_ms 2.2 cannot be met: layer depthwise takes 5 ms by itself" in caplog.text


def test_layers_that_cannot_be_timed_are_cut_by_estimates(plan, caplog: pytest.LogCaptureFixture) -> None:
    found = plan(None, 1.0)
    assert (found.jobs, found.costs) == (3, None)
    assert "cut into dnn.object.jobs jobs by estimated costs: sofa" in caplog.text


def test_times_are_measured_once_for_a_network_and_machine(plan, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan(EACH_1_MS, 2.5).jobs == plan(None, 2.5).jobs == 4
    assert plan(None, 5.5).jobs == 2  # another bound, the same times
    other = Small()
    other.last.weight.data.add_(1.0)
    assert plan((2.0,) * LAYERS, 2.5, other).jobs == 7
    monkeypatch.setattr("multi_dnn_ros.backends.onnx_providers.cpu_model", lambda: "Board 9000")
    assert plan((2.0,) * LAYERS, 2.5).jobs == 7


@pytest.mark.parametrize("content", [[], {"ms": [1.0]}, {"ms": ["x"] * LAYERS}, {"times": [1.0] * LAYERS}])
def test_a_damaged_file_is_measured_again(content: object, plan) -> None:
    plan(EACH_1_MS, 2.5)
    (entry,) = LAYER_TIMES.folder.iterdir()
    (entry / "content.json").write_text(json.dumps(content))
    assert plan((2.0,) * LAYERS, 2.5).jobs == plan(None, 2.5).jobs == 7


def test_the_cost_of_a_stage_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage of a chain seems to take 3 ms, of which 2 are those of a call: 16 stages take 30 ms more than one."""
    monkeypatch.setattr(layer_chain, "timed_ms", lambda calls, device: [3.0 + 15.0 * (len(calls) == 1)] * len(calls))
    assert make_layer_chain(traced(), target())() == [pytest.approx(3.0 - (48.0 - 18.0) / 15)] * LAYERS


def test_a_bound_exceeded_by_every_layer_gives_one_job_per_layer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 1, 1)).eval()
    torch.export.save(torch.export.export(module, (torch.zeros(1, 3, 16, 16),)), tmp_path / "lanes.pt2")
    lines: list[str] = []
    config = to_config({
        "device": "cpu", "dnns": ["lane"], "dnn.lane.model": str(tmp_path / "lanes.pt2"), "dnn.lane.decoder": "lane",
        "dnn.lane.backend": "eager", "dnn.lane.precision": "bf16", "blocking_ms": 1e-6,
    })  # fmt: skip
    config.cpu_threads = torch.get_num_threads()
    (task,) = build(config, lines.append).tasks
    assert (len(task.stages), len(task.remaining_ns)) == (3, 3)
    (line,) = [line for line in lines if line.startswith("lane: ")]
    assert line.startswith("lane: 3 jobs, longest ")
    with torch.inference_mode():
        carried = inputs = task.preprocess(torch.randint(0, 256, (16, 16, 3), dtype=torch.uint8))
        for stage in task.stages:
            carried = stage(carried)
        torch.testing.assert_close(carried[0], module(*inputs), rtol=0.05, atol=0.02)
