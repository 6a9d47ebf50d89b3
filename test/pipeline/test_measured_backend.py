"""`backend: measured`: the choice, its table, its cache, and what is refused."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_exports import TinyMap, export

from multi_dnn_ros.backends import run_stages
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.backends.registry import BACKENDS, BackendSpec
from multi_dnn_ros.graph.checksum import network_checksum
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.pipeline import build as build_module
from multi_dnn_ros.pipeline import measured_backend
from multi_dnn_ros.pipeline.measured_backend import (
    CHOICES,
    Row,
    as_table,
    choose,
    with_measured_backend,
)
from multi_dnn_ros.settings.flat_parameters import to_config
from multi_dnn_ros.settings.schema import DnnConfig

CPU = torch.device("cpu")
MEASURING = "measuring 3 backends for lane"
SETTINGS = DnnConfig(role="lane", model="lane.onnx", backend="measured", jobs=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the model, which has only two layers: preparing many layers for three backends takes seconds."""
    folder = tmp_path_factory.mktemp("models")
    export(torch.nn.Sequential(TinyMap(), torch.nn.Conv2d(1, 1, 3, padding=1)), folder / SETTINGS.model)
    return folder


@pytest.fixture(autouse=True)
def _cache(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(CHOICES, "_folder", tmp_path / "backends")


@pytest.fixture
def dnn() -> Dnn:
    return load_dnn("lane", SETTINGS)


@pytest.fixture
def ms(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, float]], None]:
    """Sets the times by backend, in place of preparing and measuring the backends, which takes seconds."""

    def fake(times: dict[str, float]) -> None:
        def measured(
            dnn: Dnn, settings: DnnConfig, device: torch.device, rows: Sequence[Row]
        ) -> tuple[list[Row], bool]:
            return [row if row.reason else replace(row, ms=times[row.name], error=1e-6) for row in rows], True

        monkeypatch.setattr(measured_backend, "_measured", measured)

    return fake


def chosen(dnn: Dnn, settings: DnnConfig = SETTINGS, lines: list[str] | None = None) -> DnnConfig:
    return with_measured_backend(dnn, settings, CPU, (lines if lines is not None else []).append)


def test_every_backend_of_a_cpu_is_measured_and_agrees_with_eager(dnn: Dnn) -> None:
    """Nothing is faked: the times are real, and any of them may win."""
    lines: list[str] = []
    settings = chosen(dnn, lines=lines)
    assert lines[0] == MEASURING
    head, *table = lines[1].splitlines()
    cells = {row.split("|")[1].strip(): [cell.strip() for cell in row.split("|")[2:5]] for row in table[2:]}
    timed = {name: float(row[0]) for name, row in cells.items() if row[0] != "-"}
    assert set(timed) == {"eager", "torchscript", "onnxruntime/cpu"}
    assert all(float(cells[name][1]) < 1e-4 and not cells[name][2] for name in timed)
    assert cells["cuda_graph"] == ["-", "-", "it runs on cuda"]
    assert cells["inductor"] == ["-", "-", "it compiles for minutes; to use it, name it as backend"]
    name = settings.backend + (f"/{settings.providers[0]}" if settings.providers else "")
    assert head == f"dnn.lane: backend {name}, measured now:"
    assert timed[name] <= timed["onnxruntime/cpu"]


def test_the_choice_is_read_from_the_cache_until_the_network_or_the_machine_changes(
    dnn: Dnn,
    ms: Callable[[dict[str, float]], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ms({"eager": 3.0, "torchscript": 1.0, "onnxruntime/cpu": 2.0})
    assert chosen(dnn).backend == "torchscript"
    ms({"eager": 1.0, "torchscript": 2.0, "onnxruntime/cpu": 3.0})
    lines: list[str] = []
    assert chosen(dnn, lines=lines).backend == "torchscript"
    (text,) = lines
    assert text.startswith(f"dnn.lane: backend torchscript, from {CHOICES.folder}")
    lines.clear()
    with torch.no_grad():
        next(dnn.module.parameters()).add_(0.01)
    assert chosen(dnn).backend == "eager"
    monkeypatch.setattr("multi_dnn_ros.backends.onnx_providers.cpu_model", lambda: "Board 9000")
    caplog.clear()
    assert chosen(dnn, lines=lines).backend == "eager"
    assert lines[0] == MEASURING
    (warning,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "the measured backends of lane in" in warning
    assert "are not used: cpu is '" in warning
    assert warning.endswith("' there and 'Board 9000' here")


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[{}]",
        "7",
        '[{"backend": "eager", "ms": -1.0}]',
        '[{"backend": "rocket", "ms": 0.001}]',
        '[{"ms": "fast"}]',
    ],
)
def test_a_damaged_choice_is_measured_again(
    content: str, dnn: Dnn, ms: Callable[[dict[str, float]], None], caplog: pytest.LogCaptureFixture
) -> None:
    ms({"eager": 3.0, "torchscript": 1.0, "onnxruntime/cpu": 2.0})
    chosen(dnn)
    (entry,) = CHOICES.entries()
    (entry / "content.json").write_text(content)
    lines: list[str] = []
    assert chosen(dnn, lines=lines).backend == "torchscript"
    assert lines[0] == MEASURING
    assert "are not used" in caplog.text


def test_facts_that_do_not_match_the_folder_are_refused(
    dnn: Dnn, ms: Callable[[dict[str, float]], None], caplog: pytest.LogCaptureFixture
) -> None:
    ms({"eager": 3.0, "torchscript": 1.0, "onnxruntime/cpu": 2.0})
    chosen(dnn)
    (entry,) = CHOICES.entries()
    facts = json.loads((entry / "facts.json").read_text())
    facts["machine"]["cpu"] = "Board 9000"
    (entry / "facts.json").write_text(json.dumps(facts))
    lines: list[str] = []
    chosen(dnn, lines=lines)
    assert lines[0] == MEASURING
    assert "facts.json does not match the folder" in caplog.text


def _add_toy(monkeypatch: pytest.MonkeyPatch, kind: type[Eager]) -> None:
    """Add a backend `toy` of this class."""
    specs = [BackendSpec("toy", lambda request: kind()), *BACKENDS.usable()]
    monkeypatch.setattr(BACKENDS, "usable", lambda: specs)
    monkeypatch.setattr(BACKENDS, "get", {spec.name: spec for spec in specs}.__getitem__)


class _Wrong(Eager):
    def prepare(self, stages: Sequence[Any], *rest: Any) -> Any:
        first, *others = super().prepare(stages, *rest)
        return (lambda carried: tuple(tensor + 1.0 for tensor in first(carried)), *others)


class _Broken(Eager):
    def prepare(self, *rest: Any) -> Any:
        raise RuntimeError("no such instruction")


class _Replaced(Eager):
    def prepare(self, *rest: Any) -> Any:
        logging.getLogger("multi_dnn_ros.backends.toy").warning("lane runs as eager, because toy fails")
        return super().prepare(*rest)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(_Wrong, "is off by"), (_Broken, "no such instruction"), (_Replaced, "lane runs as eager, because toy fails")],
)
def test_a_backend_that_does_not_work_here_is_not_chosen(
    kind: type[Eager], reason: str, dnn: Dnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    _add_toy(monkeypatch, kind)
    lines: list[str] = []
    assert chosen(dnn, lines=lines).backend != "toy"
    (row,) = [line for line in lines[-1].splitlines() if line.startswith("| toy ")]
    assert reason in row


class _Moved(Eager):
    def prepare(self, stages: Sequence[Any], *rest: Any) -> Any:
        for stage in stages:
            stage.to(torch.float64).to(torch.float32)  # assigns to the parameters, as a move to a GPU does
        return super().prepare(stages, *rest)


def test_a_backend_can_move_the_stages(dnn: Dnn, monkeypatch: pytest.MonkeyPatch) -> None:
    _add_toy(monkeypatch, _Moved)
    lines: list[str] = []
    chosen(dnn, lines=lines)
    (row,) = [line for line in lines[-1].splitlines() if line.startswith("| toy ")]
    assert "Inference tensors" not in row
    assert " - " not in row


class _NeedsMemory(Eager):
    def prepare(self, *rest: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


def test_a_choice_made_while_a_backend_ran_out_of_memory_is_not_cached(
    dnn: Dnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    _add_toy(monkeypatch, _NeedsMemory)
    for _ in range(2):
        lines: list[str] = []
        assert chosen(dnn, lines=lines).backend != "toy"
        assert lines[0] == "measuring 4 backends for lane"
        assert "the choice for lane is not cached: a backend ran out of memory" in lines[1]


def test_identical_gpus_measure_once(
    ms: Callable[[dict[str, float]], None], dnn: Dnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads stand for the engine processes of the GPUs; each opens the lock itself, as a process does. The first one
    measures until another has said that it waits.
    """
    ms({"eager": 4.0, "torchscript": 2.0, "onnxruntime/cpu": 3.0})
    lines: list[str] = []
    measure = measured_backend._measured

    def measured(*arguments: Any) -> Any:
        deadline = time.monotonic() + 20.0
        while not any(line.startswith("lane: waiting for another process that has locked ") for line in lines):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return measure(*arguments)

    monkeypatch.setattr(measured_backend, "_measured", measured)
    with ThreadPoolExecutor(4) as pool:
        choices = list(pool.map(lambda _: chosen(dnn, lines=lines), range(4)))
    assert {choice.backend for choice in choices} == {"torchscript"}
    assert lines.count(MEASURING) == 1


def test_int8_has_one_backend_and_is_not_measured(dnn: Dnn) -> None:
    lines: list[str] = []
    settings = chosen(dnn, SETTINGS.model_copy(update={"precision": "int8"}), lines)
    assert (settings.backend, lines) == ("onnxruntime", ["dnn.lane: backend onnxruntime, the only one with int8"])


TIMES = st.one_of(st.none(), st.floats(0.01, 100.0))


@given(usual=TIMES, others=st.lists(TIMES, max_size=4))
def test_the_usual_backend_stays_unless_another_is_clearly_faster(
    usual: float | None, others: list[float | None]
) -> None:
    rows = [Row("usual", ms=usual), *(Row(f"other{index}", ms=ms) for index, ms in enumerate(others))]
    best = choose(rows, "usual")
    faster = [ms for ms in others if ms is not None and (usual is None or ms <= 0.98 * usual)]
    if faster:
        assert best.ms == min(ms for ms in others if ms is not None)
    else:
        assert best.backend == "usual"


def test_the_table_names_every_backend() -> None:
    rows = [Row("onnxruntime", "openvino:gpu", 1.5, 2e-6), Row("cuda_graph", reason="it runs on cuda")]
    text = as_table(rows)
    assert "| onnxruntime/openvino:gpu | 1.5 | 2.0e-06 |                 |" in text
    assert "| cuda_graph               | -   | -       | it runs on cuda |" in text


def test_the_checksum_is_of_structure_and_parameters(dnn: Dnn) -> None:
    other = load_dnn("lane", SETTINGS)
    assert network_checksum(dnn.module) == network_checksum(other.module)
    with torch.no_grad():
        next(other.module.parameters()).add_(0.01)
    assert network_checksum(dnn.module) != network_checksum(other.module)
    activations = torch.nn.Sequential(torch.nn.ReLU()), torch.nn.Sequential(torch.nn.SiLU())
    assert network_checksum(activations[0]) != network_checksum(activations[1])


def _stages(backend: str, lines: list[str], expected: str = "") -> Sequence[Any]:
    """The stages that a pipeline with this parameter `backend` runs. expected: the measured backend that it keeps."""
    settings = SETTINGS.model_copy(update={"backend": backend})
    flat = {
        f"dnn.lane.{name}": value for name, value in settings.model_dump(include={*settings.model_fields_set}).items()
    }
    config = to_config({"cameras": ["front"], "dnns": ["lane"], "device": "cpu", **flat})
    pipeline = build_module.build(config, lines.append)
    assert {name: of.backend for name, of in pipeline.backends.items()} == ({"lane": expected} if expected else {})
    (task,) = pipeline.tasks
    return task.stages


def _kind(stages: Sequence[Any]) -> str:
    return type(stages[0]).__name__


def test_a_pipeline_runs_the_measured_backend(ms: Callable[[dict[str, float]], None], dnn: Dnn) -> None:
    ms({"eager": 3.0, "torchscript": 2.0, "onnxruntime/cpu": 1.0})
    lines: list[str] = []
    stages = _stages("measured", lines, "onnxruntime")
    assert MEASURING in lines
    assert _kind(stages) == "SessionStage"
    image = noise_like(dnn.example_inputs())
    with torch.inference_mode():
        outputs = dnn.module(*image)
        expected = tuple(outputs.values()) if isinstance(outputs, dict) else outputs
        expected = expected if isinstance(expected, tuple) else (expected,)
        check_agreement(run_stages(stages, image), expected, 1e-3)


def test_auto_uses_what_was_measured_and_measures_nothing(ms: Callable[[dict[str, float]], None]) -> None:
    usual, lines = _kind(_stages("auto", [])), list[str]()
    ms({"eager": 1.0, "torchscript": 2.0, "onnxruntime/cpu": 3.0})
    measured = _kind(_stages("measured", [], "eager"))
    assert measured != usual == "SessionStage"
    assert _kind(_stages("auto", lines, "eager")) == measured
    assert MEASURING not in lines
    assert any(line.startswith(f"dnn.lane: backend eager, from {CHOICES.folder}") for line in lines)


def test_rows_survive_the_cache() -> None:
    row = Row("onnxruntime", "cpu", 1.0, 1e-6)
    assert Row(**json.loads(json.dumps(vars(row)))) == row == replace(row)
