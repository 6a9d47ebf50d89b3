"""Backend inductor: compiled stages compute the same; a stage that cannot be compiled runs eager, with a warning."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._inductor.config
from test_branched_graph import FakeStreams

from multi_dnn_ros.backends import Tensors, inductor
from multi_dnn_ros.backends.agreement import check_agreement
from multi_dnn_ros.backends.branched_graph import branches_of, compile_segments, with_branches
from multi_dnn_ros.backends.compilers import missing_compiler
from multi_dnn_ros.backends.inductor import Inductor
from multi_dnn_ros.models.cut import cut_module

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
needs_compiler = pytest.mark.skipif(bool(missing_compiler(CPU)), reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One cache for all tests here, because they compile the same code. Inductor's slow first steps are left out: other
    processes, trying out the CPU's vector units, precompiled headers."""
    import torch._inductor.cpu_vec_isa

    monkeypatch.setattr("torch._inductor.cpu_vec_isa.valid_vec_isa_list", list)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "inductor"))
    with torch._inductor.config.patch(compile_threads=1, cpp_cache_precompile_headers=False):
        yield


def network(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 1)
    ).eval()


EXAMPLE = (torch.zeros(1, 3, 8, 8),)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("multi_dnn_ros")]


def through(stages: tuple, inputs: Tensors) -> Tensors:
    with torch.inference_mode():
        for stage in stages:
            inputs = stage(inputs)
        return inputs


@needs_compiler
def test_compiled_dnns_compute_the_same_in_threads(caplog: pytest.LogCaptureFixture) -> None:
    lines: list[str] = []
    modules = [network(seed) for seed in range(2)]
    prepared = [
        Inductor(f"dnn{n}", lines.append).prepare(cut_module(module, EXAMPLE, 1, fold_batch_norm=True), EXAMPLE, CPU)
        for n, module in enumerate(modules)
    ]
    assert not warnings_in(caplog)
    assert all(not isinstance(stage, torch.nn.Module) for stages in prepared for stage in stages)
    assert len([line for line in lines if line.startswith("compiled job")]) == 2
    inputs = (torch.rand(1, 3, 8, 8),)
    turned = (inputs[0].to(memory_format=torch.channels_last),)  # not the memory layout compiled for
    results: dict[int, Tensors] = {}

    def run(index: int) -> None:
        results[index] = through(prepared[index], turned if index else inputs)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with torch.inference_mode():
        for index, module in enumerate(modules):
            check_agreement(results[index], (module(*inputs),), 1e-4)


class Forked(torch.nn.Module):
    """Two branches with a view of a common result, and their join."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.randn(2, 96, 96) / 10)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        left, right = torch.chunk(value @ self.weights[0], 2, 0)
        left = torch.sigmoid(left @ self.weights[0]) @ self.weights[1]
        right = torch.tanh(right @ self.weights[1]) @ self.weights[0]
        return torch.relu(left * right + 1.0)


@needs_compiler
def test_compiled_segments_on_several_streams_compute_the_same(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    example = (torch.zeros(192, 96),)
    module = Forked().eval()
    backend = Inductor("lane")
    (stage,) = cut_module(module, example, 1)
    parallel = with_branches(stage, 2, lambda count: FakeStreams(), fuses=True)
    assert parallel is not None
    with torch.inference_mode():
        compile_segments("job 1 of lane", parallel, example, backend.compile_segment, lambda line: None)
    assert not warnings_in(caplog)
    segments = branches_of(parallel).segments
    assert not any(isinstance(segment, torch.fx.GraphModule) for segment in segments[:-1])
    inputs = (torch.randn(192, 96),)
    with torch.inference_mode():
        for _ in range(2):
            check_agreement(parallel(inputs), (module(*inputs),), 1e-4)
    assert branches_of(parallel).plan.streams == 2


def test_without_a_compiler_stages_run_eager_with_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    module = network(0)
    prepared = Inductor("object").prepare(cut_module(module, EXAMPLE, 3), EXAMPLE, CPU)
    assert warnings_in(caplog) == [
        "object runs eager, because backend inductor needs a C++ compiler (g++, clang++ or the variable CXX), "
        "and none is found"
    ]
    inputs = (torch.rand(1, 3, 8, 8),)
    with torch.inference_mode():
        check_agreement(through(prepared, inputs), (module(*inputs),), 1e-5)
    assert "C compiler" in missing_compiler(GPU)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "needs Triton" in missing_compiler(GPU)


def test_a_stage_that_inductor_rejects_or_miscompiles_runs_eager(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inductor, "missing_compiler", lambda device: "")
    compilations = iter([RuntimeError("no lowering for that\nmore"), 1.5, 1.0])

    def compile_instead(graph: torch.fx.GraphModule, shapes: list, options: dict) -> object:
        outcome = next(compilations)
        if isinstance(outcome, Exception):
            raise outcome
        return lambda *tensors: [tensor * outcome for tensor in graph(*tensors)]

    monkeypatch.setattr("torch._inductor.compile", compile_instead)
    module = torch.nn.Sequential(*(torch.nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))).eval()
    prepared = Inductor("object").prepare(cut_module(module, EXAMPLE, 3), EXAMPLE, CPU)
    first, second = warnings_in(caplog)
    assert first == "job 1 of object runs eager, because Inductor fails: no lowering for that"
    assert second.startswith("job 2 of object runs eager, because Inductor fails: result 0 is off by")
    assert [isinstance(stage, torch.nn.Module) for stage in prepared] == [True, True, False]
    inputs = (torch.rand(1, 3, 8, 8),)
    with torch.inference_mode():
        check_agreement(through(prepared, inputs), (module(*inputs),), 1e-5)
