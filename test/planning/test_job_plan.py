"""Cutting DNNs by predicted, measured or estimated layer times, from parameters to tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from profiling_fakes import LAYERS, SHAPE, Small, target, taught, traced
from torch import nn

from multi_dnn_ros.models.cut import cut_graph
from multi_dnn_ros.models.layers import layers_of
from multi_dnn_ros.models.trace import trace
from multi_dnn_ros.planning.job_plan import JobPlan, JobPlanner
from multi_dnn_ros.planning.layer_times import LAYER_TIMES
from multi_dnn_ros.planning.measure import Times
from multi_dnn_ros.planning.predictor import Predictor, write_predictor
from multi_dnn_ros.serving.build import build
from multi_dnn_ros.serving.choices import ConfigError
from multi_dnn_ros.serving.configure import measure_fit
from multi_dnn_ros.serving.tasks import Pipeline
from multi_dnn_ros.settings.flat_parameters import to_config
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.view import WHOLE


@pytest.fixture(autouse=True)
def launch_ms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the cost of a launch, initially 0. Layer times are cached in a folder of the test's own."""
    monkeypatch.setattr(LAYER_TIMES, "_folder", tmp_path / "layer_times")

    def set_cost(ms: float) -> None:
        monkeypatch.setattr("multi_dnn_ros.planning.job_plan.launch_cost_s", lambda target: ms / 1e3)

    set_cost(0.0)
    return set_cost


def dnn(module: nn.Module | None = None, name: str = "object") -> SimpleNamespace:
    """The part of a Dnn that planning uses."""
    return SimpleNamespace(
        name=name, module=module or Small(), example_inputs=lambda: (torch.zeros(SHAPE),), inputs=lambda image: (),
        view=WHOLE,
    )  # fmt: skip


def planner(predictor: Predictor | None = None, bound_ms: float = 0.0, ms=(1.0,) * LAYERS, **options) -> JobPlanner:
    """ms: what measuring each layer yields; None: measuring is an error."""

    def timed(traced, target, *, jobs: int) -> Times:
        assert ms is not None, "the layers are measured"
        return Times(tuple(cut_graph(traced.graph_module, jobs)), ((0.0,),), tuple((each,) * 3 for each in ms))

    return JobPlanner(predictor, "p.json", bound_ms / 1e3, timed=timed, **options)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Log messages of this package, without PyTorch's."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("multi_dnn_ros")]


def stages_of(plan: JobPlan) -> list:
    return cut_graph(traced().graph_module, plan.jobs, costs=plan.costs, limit_s=plan.limit_s)


def test_without_predictor_and_bound_nothing_is_timed() -> None:
    plan = planner(ms=None).plan(dnn(nn.Identity()), 3, target())
    assert (plan.jobs, plan.costs, plan.remaining_ns(())) == (3, None, None)


def test_jobs_of_equal_predicted_time_and_their_remaining_times(launch_ms: Callable[[float], None]) -> None:
    launch_ms(1.0)
    plan = planner(taught(traced().layers()), ms=None).plan(dnn(), 3, target())
    stages = stages_of(plan)
    assert sorted(len(stage.layers) for stage in stages) == [2, 2, 3]
    remaining = plan.remaining_ns(stages)
    assert remaining[0] == pytest.approx(17e6, rel=0.01)  # 7 layers, 3 launches, and hardly any preprocessing
    assert remaining[2] == pytest.approx(1e6 * (1 + 2 * len(stages[2].layers)))
    line = plan.summary("object", remaining)
    assert line == "object: 3 jobs, longest 7 ms, launch cost 17.6 %, by predicted layer times"


class Block(nn.Module):
    """A fork into branches of three operations and of one, a join, and two more operations."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return (image.exp().tanh().sigmoid() + image.sin()).relu().cos()


def test_fewest_jobs_for_a_bound_and_their_summary(
    launch_ms: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    launch_ms(0.1)
    plan = planner(None, 3.3).plan(dnn(), 1, target())
    stages = stages_of(plan)
    assert len(stages) == 3
    assert max(stage.cost_s for stage in stages) <= 3.2e-3
    assert plan.summary("object", plan.remaining_ns(stages)) == (
        "object: 3 jobs, longest 3.1 ms of 3.3 allowed, launch cost 4.1 %, by measured layer times"
    )
    assert not messages(caplog)


def test_unmet_bounds_are_one_warning(launch_ms: Callable[[float], None], caplog: pytest.LogCaptureFixture) -> None:
    launch_ms(0.5)
    plan = planner(None, 2.2, (1.0, 1.0, 5.0, 0.5, 0.5, 0.5, 0.5)).plan(dnn(), 1, target())
    assert max(stage.cost_s for stage in stages_of(plan)) == pytest.approx(5e-3)
    (text,) = messages(caplog)
    assert text.startswith("dnn.object: blocking_ms 2.2 cannot be met: layer ")
    assert "takes 5.5 ms by itself and is kept as one job; launching 5 jobs takes 21.7 % of " in text


def test_untrained_layers_are_logged_once_and_measured(caplog: pytest.LogCaptureFixture) -> None:
    other = planner(taught(traced().layers(), device="Orin, 16 SMs; auto"), ms=(1.0,))
    plans = [other.plan(dnn(nn.ReLU(), name), 2, target()) for name in ("lane", "object")]
    assert [plan.known for plan in plans] == ["measured", "measured"]
    (text,) = messages(caplog)
    assert "dnn.lane: layers are measured, because the predictor p.json does not cover them: it was trained on" in text
    caplog.clear()
    served = replace(target(), served_by="inductor")
    assert planner(taught(traced().layers())).plan(dnn(), 2, served).known == "measured"
    assert "it was trained on 'eager'; this is 'inductor'" in caplog.text


def test_layers_that_cannot_be_timed_are_cut_by_estimates(caplog: pytest.LogCaptureFixture) -> None:
    def fails(*args: object, **kwargs: object) -> Times:
        raise RuntimeError("sofa")

    plan = JobPlanner(None, "", 1.0, timed=fails).plan(dnn(nn.ReLU()), 3, target())
    assert (plan.jobs, plan.costs) == (3, None)
    assert "cut into dnn.object.jobs jobs by estimated costs: sofa" in caplog.text

    def full(*args: object, **kwargs: object) -> Times:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        JobPlanner(None, "", 1.0, timed=full).plan(dnn(nn.ReLU()), 3, target())


# -- the cache of layer times


def cached(ms: float | None, keep: bool = True, module: nn.Module | None = None, bound_ms: float = 2.5) -> JobPlan:
    """A plan with this time for every layer; None: measuring raises an error, which plan() logs."""
    own = planner(None, bound_ms, None if ms is None else (ms,) * LAYERS, keep=keep)
    return own.plan(dnn(module), 3, target())


def test_times_are_measured_once_for_a_network() -> None:
    assert (cached(1.0).known, cached(None).known, cached(None).jobs) == ("measured", "measured", 4)
    assert cached(None, bound_ms=5.5).jobs == 2  # another bound, the same times
    other = Small()
    other.last.weight.data.add_(1.0)
    assert cached(2.0, module=other).jobs == 7


def test_without_keep_nothing_is_stored() -> None:
    cached(1.0, keep=False)
    assert list(LAYER_TIMES.folder.glob("*")) == []


def test_times_of_another_machine_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    cached(1.0)
    monkeypatch.setattr("multi_dnn_ros.backends.onnx_providers.cpu_model", lambda: "Board 9000")
    assert cached(2.0).jobs == 7


@pytest.mark.parametrize("content", [[], {"ms": [1.0]}, {"ms": [-1.0] * LAYERS}, {"times": [1.0] * LAYERS}])
def test_a_damaged_file_is_measured_again(content: object, caplog: pytest.LogCaptureFixture) -> None:
    cached(1.0)
    (entry,) = LAYER_TIMES.folder.iterdir()
    (entry / "content.json").write_text(json.dumps(content))
    assert cached(2.0).jobs == 7
    assert f"layer times in {entry} are not used" in caplog.text
    assert cached(None).jobs == 7


# -- from parameters to tasks


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 1, 1)).eval()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, module: nn.Module) -> Path:
    path = tmp_path_factory.mktemp("dnn") / "lanes.pt2"
    torch.export.save(torch.export.export(module, (torch.zeros(1, 3, 16, 16),)), path)
    return path


def configured(exported: Path, lines: list[str], **node: object) -> tuple[NodeConfig, Pipeline]:
    config = to_config({
        "device": "cpu", "dnns": ["lane"], "dnn.lane.model": str(exported),
        "dnn.lane.decoder": "lane", "dnn.lane.jobs": 2, "dnn.lane.backend": "eager", **node,
    })  # fmt: skip
    config.cpu_threads = torch.get_num_threads()
    return config, build(config, lines.append)


def test_a_bound_exceeded_by_every_layer_gives_one_job_per_layer(exported: Path, module: nn.Module) -> None:
    lines: list[str] = []
    _, pipeline = configured(exported, lines, blocking_ms=1e-6, **{"dnn.lane.precision": "bf16"})
    (task,) = pipeline.tasks
    assert (len(task.stages), len(task.remaining_ns)) == (3, 3)
    (line,) = [line for line in lines if line.startswith("lane: ")]
    assert line.startswith("lane: 3 jobs, longest ")
    assert line.endswith("by measured layer times")
    with torch.inference_mode():
        carried = inputs = task.preprocess(torch.randint(0, 256, (16, 16, 3), dtype=torch.uint8))
        for stage in task.stages:
            carried = stage(carried)
        torch.testing.assert_close(carried[0], module(*inputs), rtol=0.05, atol=0.02)


def test_the_predictor_parameter_is_used_for_cutting_and_the_fit_check(
    exported: Path, module: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    layers = layers_of(trace(module, (torch.zeros(1, 3, 16, 16),), fold_batch_norm=True))
    write_predictor(tmp_path / "p.json", taught(layers))
    for name in ("planning.job_plan.measure", "pipeline.fit_check.measure_speedup"):
        monkeypatch.setattr(f"multi_dnn_ros.{name}", lambda *args, **kwargs: pytest.fail("measured"))
    config, pipeline = configured(exported, lines, predictor=str(tmp_path / "p.json"))
    (task,) = pipeline.tasks
    (line,) = [line for line in lines if line.startswith("lane: ")]
    assert line.startswith("lane: 2 jobs, longest ")
    assert line.endswith("by predicted layer times")
    assert task.remaining_ns[0] >= 6e6  # plus preprocessing, which is measured
    fit = measure_fit(config, pipeline, {"front": 10.0}, pipeline.predictor)
    assert not fit.unpredicted
    assert sum(fit.demands[0].jobs_ms) > 6.0


def test_a_predictor_that_cannot_be_read_is_named(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"parameter predictor is '.*none.json'.*cannot be read: No such file"):
        configured(exported, [], predictor=str(tmp_path / "none.json"))
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigError, match=r"parameter predictor is '.*broken.json'.*not a predictor"):
        configured(exported, [], predictor=str(tmp_path / "broken.json"))
