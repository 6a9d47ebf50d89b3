"""Costs of DNNs for `placement: auto`: measured once, predicted where a predictor knows the DNN."""

from __future__ import annotations

import copy
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from multi_dnn_ros.common.machine_cache import Key
from multi_dnn_ros.common.resources import cache_folder
from multi_dnn_ros.graph.live_memory import peak_bytes, weight_bytes
from multi_dnn_ros.graph.trace import trace
from multi_dnn_ros.pipeline.choices import timing_target
from multi_dnn_ros.pipeline.known_costs import CostCache, cost_key
from multi_dnn_ros.pipeline.measured_backend import CHOICES
from multi_dnn_ros.planning.device import device_name
from multi_dnn_ros.planning.features import LINEAR_FEATURES
from multi_dnn_ros.planning.measure import trace_for
from multi_dnn_ros.planning.placement import Cost
from multi_dnn_ros.planning.predictor import Linear, Predictor, layers_of, trained_range, write_predictor
from multi_dnn_ros.planning.samples import LayerCounts, Load, Sample, Setting
from multi_dnn_ros.serving import default_build, measure_costs
from multi_dnn_ros.settings.flat_parameters import to_config
from multi_dnn_ros.settings.schema import NodeConfig

CPU = torch.device("cpu")


class Small(nn.Module):
    """A network for lane masks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(image)
        return result


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "small.pt2"
    torch.export.save(torch.export.export(Small().eval(), (torch.zeros(1, 3, 16, 16),)), path)
    return path


def config_of(model: Path, **more: object) -> NodeConfig:
    return to_config(
        {
            "dnns": ["lane"], "device": "cpu", "dnn.lane.model": str(model), "dnn.lane.input_width": 16,
            "dnn.lane.input_height": 16, "dnn.lane.decoder": "lane", "dnn.lane.backend": "eager",
            "cpu_threads": torch.get_num_threads(), **more,
        }
    )  # fmt: skip


def measured(config: NodeConfig, texts: list[str] | None = None) -> Cost:
    def report(step: object) -> None:
        if texts is not None:
            texts.append(step.text)  # type: ignore[attr-defined]

    costs = measure_costs.measure_costs(config, default_build.build, report)
    assert not costs.impossible
    return costs.costs["lane"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_second_configure_measures_nothing(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = measured(config_of(exported))
    assert first.source == "measured"
    monkeypatch.setattr(measure_costs, "time_on_black_ms", lambda *args: pytest.fail("measured"))
    texts: list[str] = []
    again = measured(config_of(exported, **{"dnn.lane.priority": 7, "dnn.lane.deadline_ms": 50.0}), texts)
    assert (again.ms, again.source) == (pytest.approx(first.ms), "measured earlier")
    assert again.memory_bytes == pytest.approx(first.memory_bytes, abs=1000)
    assert any(text.endswith(f"DNN lane: {again.ms:.2f} ms per frame, measured earlier") for text in texts)


@pytest.mark.parametrize(
    "change", ["the file", "dnn.lane.backend", "dnn.lane.jobs", "cpu_threads", "dnn.lane.branches", "device"]
)
def test_what_the_cost_depends_on_is_measured_again(exported: Path, change: str) -> None:
    before = cost_key("lane", config_of(exported), CPU)
    assert cost_key("lane", config_of(exported), CPU) == before
    values = {
        "dnn.lane.backend": "torchscript", "dnn.lane.jobs": 2, "cpu_threads": torch.get_num_threads() + 1,
        "dnn.lane.branches": 2, "device": "cpu:1",
    }  # fmt: skip
    if change == "the file":
        torch.manual_seed(1)
        torch.export.save(torch.export.export(Small().eval(), (torch.zeros(1, 3, 16, 16),)), exported)
        assert cost_key("lane", config_of(exported), CPU) != before
    else:
        assert cost_key("lane", config_of(exported, **{change: values[change]}), CPU) != before


def test_a_new_choice_of_a_backend_changes_the_costs_of_backends_auto_and_measured_only(exported: Path) -> None:
    """Otherwise `placement: auto` would use the costs of the former backend."""

    def keys() -> tuple[str, ...]:
        names = ("auto", "measured", "eager")
        return tuple(cost_key("lane", config_of(exported, **{"dnn.lane.backend": name}), CPU) for name in names)

    before = keys()
    key = Key("0" * 64, {"device": "cpu"}, {"cpu": "this one"})
    CHOICES.write(key, [{"backend": "eager", "ms": 1.0}])
    first = keys()
    CHOICES.write(key, [{"backend": "eager", "ms": 2.0}])
    for changed in (first, keys()):
        assert changed[0] != before[0]
        assert changed[1] != before[1]
        assert changed[2] == before[2]
    assert first[0] != keys()[0]


def test_the_cost_of_backend_measured_is_kept_under_its_choice(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(exported, **{"dnn.lane.backend": "measured"})
    assert measured(config).source == "measured"
    monkeypatch.setattr(measure_costs, "time_on_black_ms", lambda *args: pytest.fail("measured"))
    assert measured(config).source == "measured earlier"


def test_costs_that_are_stored_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    """As by the processes of several GPUs; each thread opens the files and the lock itself, as a process does."""
    path = tmp_path / "placement.json"
    keys = [f"{device} {number}" for number in range(20) for device in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda key: CostCache(path).put(key, Cost(1.0, 1000)), keys))
    assert [key for key in keys if CostCache(path).get(key) is None] == []


def test_the_decoder_of_an_output_counts_and_its_class_names_do_not(exported: Path) -> None:
    def key(**output: object) -> str:
        given = {f"dnn.lane.output.mask.{name}": value for name, value in {"decoder": "lane", **output}.items()}
        config = config_of(exported, **{"dnn.lane.decoder": "auto", "dnn.lane.outputs": ["mask"], **given})
        return cost_key("lane", config, CPU)

    assert key(decoder="drivable") != key()
    assert key(raw_outputs=["0"]) != key()
    assert key(score_threshold=0.7, labels=["line"]) == key()


def test_a_model_of_another_name_and_equal_content_counts_as_another(exported: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pt2"
    shutil.copy(exported, other)
    assert cost_key("lane", config_of(other), CPU) != cost_key("lane", config_of(exported), CPU)


def test_costs_of_several_devices_are_kept_in_one_file(tmp_path: Path) -> None:
    one, other = CostCache(), CostCache()
    one.put("a", Cost(1.5, 3_000_000))
    other.put("b", Cost(2.5, 0))
    assert one.get("b") == Cost(2.5, 0, "measured earlier")
    assert other.get("a") == Cost(1.5, 3_000_000, "measured earlier")
    assert one.get("c") is None
    assert json.loads((cache_folder() / "placement.json").read_text())["format"] == "multi_dnn_ros timings 1"


def test_a_cache_that_is_damaged_or_cannot_be_written_is_reported(tmp_path: Path, caplog) -> None:
    (tmp_path / "placement.json").write_text("{")
    assert CostCache(tmp_path / "placement.json").get("a") is None
    assert "timings in" in caplog.text
    CostCache(tmp_path / "placement.json" / "folder" / "file").put("a", Cost(1.0))
    assert "costs of DNNs are not cached" in caplog.text


def predictor_file(config: NodeConfig, path: Path, ms: float = 30.0, **changes: object) -> Path:
    """The file of a predictor that predicts `ms` for each layer of Small."""
    target = timing_target("lane", config.dnns["lane"], CPU)
    layers = layers_of(trace_for(copy.deepcopy(Small()), (1, 3, 16, 16), target))
    setting = Setting(device_name(target), "eager", "auto", 1, 2, 0, 1e9, 1e9)
    rows = [Sample("small", of.name, LayerCounts.of(of), setting, Load(), *(ms,) * 4, 5) for of in layers]
    weights = [0.0] * len(LINEAR_FEATURES)
    weights[LINEAR_FEATURES.index("launch, alone")] = ms
    seen = trained_range(rows)
    predictor = Predictor(
        device=device_name(target), backend="eager", precision="auto", threads=1, cores=2, flops_per_s=1e9,
        bytes_per_s=1e9, seen=seen, loads={"dnn": 8}, model=Linear(weights=dict.fromkeys(seen, tuple(weights))),
    )  # fmt: skip
    write_predictor(path, predictor.model_copy(update=changes))
    return path


def test_with_a_predictor_nothing_is_built_or_measured(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(exported)
    file = predictor_file(config, tmp_path / "p.json")
    monkeypatch.setattr(measure_costs, "_measure_cost", lambda *args: pytest.fail("measured"))
    cost = measured(config_of(exported, predictor=str(file)))
    layers = [layer for layer in layers_of(trace_for(Small(), (1, 3, 16, 16), timing_target(
        "lane", config.dnns["lane"], CPU))) if LayerCounts.of(layer).kind != "view"]  # fmt: skip
    assert cost.source == "predicted"
    assert 30.0 * len(layers) <= cost.ms < 30.0 * len(layers) + 100.0  # plus preprocessing and decoding
    assert cost.memory_bytes >= 4 * (3 * 8 * 9 + 8)


def test_what_the_predictor_does_not_cover_is_measured_with_a_warning(
    exported: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = predictor_file(config_of(exported), tmp_path / "p.json", device="Orin, 16 SMs; auto")
    assert measured(config_of(exported, predictor=str(file))).source == "measured"
    assert "dnn.lane is measured on cpu, because the predictor" in caplog.text
    assert "it was trained on 'Orin, 16 SMs; auto'; this is '" in caplog.text


def test_the_predicted_memory_is_that_of_weights_and_results_alive_at_once() -> None:
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(100, 100)

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            kept = value.exp()
            for _ in range(5):
                value = self.layer(value).view(10, 10, 10).flatten(1)
            return value + kept

    graph_module = trace(Chain().eval(), (torch.zeros(10, 100),))
    assert weight_bytes(graph_module) == 4 * (100 * 100 + 100)
    assert peak_bytes(graph_module) == 4 * 3 * 1000  # kept, a source and its result
