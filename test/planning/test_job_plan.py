"""Cutting DNNs by predicted, measured or estimated layer times, from parameters to tasks."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from profiling_fakes import Small, target
from torch import nn

from multi_dnn_ros.graph.branches import critical_path, device_operations
from multi_dnn_ros.graph.cut import cut_graph, cut_module
from multi_dnn_ros.pipeline.build import build
from multi_dnn_ros.pipeline.choices import ConfigError
from multi_dnn_ros.pipeline.fit_check import measure_fit
from multi_dnn_ros.pipeline.pipeline import Pipeline
from multi_dnn_ros.planning.device import device_name
from multi_dnn_ros.planning.features import LINEAR_FEATURES
from multi_dnn_ros.planning.job_plan import JobPlan, JobPlanner, in_precision
from multi_dnn_ros.planning.launch_cost import launch_cost_s
from multi_dnn_ros.planning.measure import Times, Traced, trace_for
from multi_dnn_ros.planning.predicted_time import network_ms
from multi_dnn_ros.planning.predictor import Linear, Predictor, layers_of, trained_range, write_predictor
from multi_dnn_ros.planning.samples import LayerCounts, Load, Sample, Setting
from multi_dnn_ros.settings.flat_parameters import to_config
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.view import WHOLE

SHAPE = (1, 3, 8, 8)
LAYERS = 7  # of Small


def dnn(module: nn.Module | None = None, name: str = "object") -> SimpleNamespace:
    """The part of a Dnn that planning uses."""
    return SimpleNamespace(
        name=name, module=module or Small(), example_inputs=lambda: (torch.zeros(SHAPE),), inputs=lambda image: (),
        view=WHOLE,
    )  # fmt: skip


@functools.cache
def _small() -> Traced:
    return trace_for(Small(), SHAPE, target())


def taught(shape: tuple[int, ...] = SHAPE, module: nn.Module | None = None, **device: object) -> Predictor:
    """Predicts 2 ms for every layer, with and without load."""
    layers = layers_of(_small() if module is None else trace_for(module, shape, target()))
    setting = Setting(device_name(target()), "eager", "auto", 1, 2, 0, 1e9, 1e9)
    rows = [Sample("small", of.name, LayerCounts.of(of), setting, Load(), *(2.0,) * 4, 5) for of in layers]
    weights = [0.0] * len(LINEAR_FEATURES)
    weights[LINEAR_FEATURES.index("launch, alone")] = 2.0
    seen = trained_range(rows)
    predictor = Predictor(
        device=device_name(target()), backend="eager", precision="auto", threads=1, cores=2, flops_per_s=1e9,
        bytes_per_s=1e9, seen=seen, loads={"dnn": 8}, model=Linear(weights=dict.fromkeys(seen, tuple(weights))),
    )  # fmt: skip
    return predictor.model_copy(update=device)


def measured(*ms: float):
    """A fake measurement with these milliseconds per layer."""

    def timed(traced, target, *, jobs: int) -> Times:
        stages = cut_graph(traced.graph_module, jobs)
        assert sum(len(stage.layers) for stage in stages) == len(ms)
        return Times(tuple(stages), tuple((each,) * 3 for each in ms), ((0.0,),), (0.0,), 0)

    return timed


def planner(predictor: Predictor | None, bound_ms: float = 0.0, ms=(1.0,) * LAYERS, launch_ms: float = 0.0):
    return JobPlanner(
        predictor, "p.json", bound_ms / 1e3, timed=measured(*ms) if ms else None, launch=lambda of: launch_ms / 1e3
    )


def log_messages(caplog: pytest.LogCaptureFixture) -> list:
    """Log messages of this package, without PyTorch's."""
    return [record for record in caplog.records if record.name.startswith("multi_dnn_ros")]


def stages_of(plan):
    return cut_graph(_small().graph_module, plan.jobs, costs=plan.costs, limit_s=plan.limit_s)


def test_without_predictor_and_bound_nothing_is_timed() -> None:
    plan = planner(None, ms=()).plan(dnn(nn.Identity()), 3, target())
    assert (plan.jobs, plan.costs, plan.remaining_ns(())) == (3, None, None)


def test_jobs_of_equal_predicted_time_and_their_remaining_times() -> None:
    plan = planner(taught(), ms=(), launch_ms=1.0).plan(dnn(), 3, target())
    stages = stages_of(plan)
    assert sorted(len(stage.layers) for stage in stages) == [2, 2, 3]
    remaining = plan.remaining_ns(stages)
    assert remaining[0] == pytest.approx(17e6, rel=0.01)  # 7 layers, 3 launches, and hardly any preprocessing
    assert remaining[2] == pytest.approx(1e6 * (1 + 2 * len(stages[2].layers)))
    assert sorted(remaining, reverse=True) == list(remaining)
    assert (
        plan.summary("object", remaining)
        == "object: 3 jobs, longest 7 ms, launch cost 17.6 %, by predicted layer times"
    )


class Forked(nn.Module):
    """Two branches from the same input."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value.exp() + value.tanh()


def test_the_remaining_time_counts_branches_on_several_streams_once() -> None:
    stages = cut_module(Forked().eval(), (torch.zeros(4),), 1)
    plan = JobPlan(1, costs=lambda node: 10e-3)
    stages[0].cost_s = 35e-3  # 5 ms more than all operations, such as preprocessing
    assert plan.remaining_ns(stages) == plan.remaining_ns(stages, [1]) == (35_000_000,)
    assert plan.remaining_ns(stages, [2]) == (pytest.approx(25e6, rel=0.01),)


class Block(nn.Module):
    """A fork into branches of three operations and of one, a join, and two more operations."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return (image.exp().tanh().sigmoid() + image.sin()).relu().cos()


def test_the_predicted_time_of_a_job_with_branches_is_its_critical_path() -> None:
    """With predicted layer times: 2 ms for each of the seven operations, six of them in the longest chain."""
    module, predictor = Block(), taught(SHAPE, Block())
    plan = planner(predictor, ms=(), launch_ms=1.0).plan(dnn(module), 1, target())
    assert plan.known == "predicted"
    (job,) = stages = cut_module(module.eval(), (torch.zeros(SHAPE),), 1, costs=plan.costs)
    assert plan.costs is not None
    chain, longest_s = critical_path(device_operations(job.graph, plan.costs))
    assert len(chain) == 6
    (serial_ns,), (parallel_ns,) = plan.remaining_ns(stages, [1]) or (), plan.remaining_ns(stages, [4]) or ()
    assert serial_ns == pytest.approx(7 * 2e6 + 1e6, rel=0.02)  # and hardly any preprocessing
    assert parallel_ns == pytest.approx(longest_s * 1e9 + 1e6, rel=0.01)
    traced = trace_for(module, SHAPE, target())
    layers = layers_of(traced)
    ms = predictor.predict(layers, target=target()).ms
    assert network_ms(traced, layers, ms) == pytest.approx(14.0, rel=0.01)
    assert network_ms(traced, layers, ms, [4]) == pytest.approx(12.0, rel=0.01)
    assert network_ms(traced, layers, ms, [4, 4]) == pytest.approx(12.0, rel=0.2)  # the cut may divide a branch


def test_fewest_jobs_for_a_bound_and_their_summary(caplog: pytest.LogCaptureFixture) -> None:
    plan = planner(None, 3.3, launch_ms=0.1).plan(dnn(), 1, target())
    stages = stages_of(plan)
    assert len(stages) == 3
    assert max(stage.cost_s for stage in stages) <= 3.2e-3
    assert plan.summary("object", plan.remaining_ns(stages)) == (
        "object: 3 jobs, longest 3.1 ms of 3.3 allowed, launch cost 4.1 %, by measured layer times"
    )
    assert not log_messages(caplog)


def test_unmet_bounds_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    plan = planner(None, 2.2, (1.0, 1.0, 5.0, 0.5, 0.5, 0.5, 0.5), launch_ms=0.5).plan(dnn(), 1, target())
    assert max(stage.cost_s for stage in stages_of(plan)) == pytest.approx(5e-3)
    (record,) = log_messages(caplog)
    text = record.getMessage()
    assert text.startswith("dnn.object: blocking_ms 2.2 cannot be met: layer ")
    assert "takes 5.5 ms by itself and is kept as one job; launching 5 jobs takes 21.7 % of " in text
    assert text.endswith("% of their time, more than 5 %, because the bound has precedence")


def test_untrained_layers_are_logged_once_and_measured(caplog: pytest.LogCaptureFixture) -> None:
    other = planner(taught(device="Orin, 16 SMs; auto"), ms=(1.0,))
    plans = [other.plan(dnn(nn.ReLU(), name), 2, target()) for name in ("lane", "object")]
    assert [plan.known for plan in plans] == ["measured", "measured"]
    (record,) = log_messages(caplog)
    assert "dnn.lane: layers are measured, because the predictor p.json does not cover them: " in record.getMessage()
    assert "it was trained on 'Orin, 16 SMs; auto'; this is '" in record.getMessage()
    caplog.clear()
    unseen = planner(taught(module=nn.Conv2d(3, 4, 3, padding=1)))
    assert unseen.plan(dnn(), 2, replace(target(), served_by="inductor")).known == "measured"
    (record,) = log_messages(caplog)
    assert "with backend eager; this is inductor; it was not trained for element-wise layers" in record.getMessage()


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


def test_half_precision_moves_half_the_bytes() -> None:
    (single,) = layers_of(trace_for(nn.ReLU(), SHAPE, target()))
    (half,) = in_precision([single], torch.float16)
    assert (half.work.bytes_read, half.work.bytes_written) == (4 * 3 * 64 // 2, 4 * 3 * 64 // 2)
    assert half.work.flops == single.work.flops


def test_launch_cost_is_the_host_time_of_a_call() -> None:
    ticks = iter(range(1000))
    assert launch_cost_s(target("torchscript"), now=lambda: float(next(ticks))) == pytest.approx(
        1.0 / 20
    )  # for 20 calls per round


@pytest.fixture(scope="module")
def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 1, 1)).eval()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, module: nn.Module) -> Path:
    path = tmp_path_factory.mktemp("dnn") / "lanes.pt2"
    torch.export.save(torch.export.export(module, (torch.zeros(1, 3, 16, 16),)), path)
    return path


def configured(exported: Path, **node: object) -> tuple[NodeConfig, Pipeline]:
    threads = torch.get_num_threads()
    config = to_config({
        "device": "cpu", "cpu_threads": threads, "dnns": ["lane"], "dnn.lane.model": str(exported),
        "dnn.lane.decoder": "lane", "dnn.lane.jobs": 2, "dnn.lane.backend": "eager", **node,
    })  # fmt: skip
    return config, build(config, lines.append)


lines: list[str] = []


def test_a_bound_exceeded_by_every_layer_gives_one_job_per_layer(exported: Path, module: nn.Module) -> None:
    lines.clear()
    _, pipeline = configured(exported, blocking_ms=1e-6, **{"dnn.lane.precision": "bf16"})
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
    lines.clear()
    write_predictor(tmp_path / "p.json", taught((1, 3, 16, 16), module))
    for name in ("planning.job_plan.measure", "pipeline.fit_check.measure_services"):
        monkeypatch.setattr(f"multi_dnn_ros.{name}", lambda *args, **kwargs: pytest.fail("measured"))
    config, pipeline = configured(exported, predictor=str(tmp_path / "p.json"))
    (task,) = pipeline.tasks
    (line,) = [line for line in lines if line.startswith("lane: ")]
    assert line.startswith("lane: 2 jobs, longest ")
    assert line.endswith("by predicted layer times")
    assert 6e6 <= task.remaining_ns[0] < 100e6  # plus preprocessing, which is measured
    verdict = measure_fit(config, pipeline, {"front": (16, 16)}, {"front": 10.0}, pipeline.predictor).verdict()
    assert not verdict.unpredicted
    assert 0.06 <= verdict.needs["lane"] < 1.0


def test_a_predictor_that_cannot_be_read_is_named(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"parameter predictor is '.*none.json'.*cannot be read: No such file"):
        configured(exported, predictor=str(tmp_path / "none.json"))
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigError, match=r"parameter predictor is '.*broken.json'.*not a predictor"):
        configured(exported, predictor=str(tmp_path / "broken.json"))
