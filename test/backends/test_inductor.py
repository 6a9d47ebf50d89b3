"""Backend inductor: compiled stages compute the same; a stage that cannot be compiled runs eager, with a warning."""

from __future__ import annotations

import os
import stat
import tempfile
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
from multi_dnn_ros.backends.cuda_graph import CudaGraph
from multi_dnn_ros.backends.inductor import Inductor, cache_directory
from multi_dnn_ros.backends.precision import InPrecision
from multi_dnn_ros.common import resources
from multi_dnn_ros.models.cut import cut_module
from multi_dnn_ros.serving.choices import ConfigError, backend_name, choose_backend

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


def test_the_ninth_dnn_of_a_class_is_compiled_like_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo would compile eight instances of a class and run the others eager."""
    monkeypatch.setattr(inductor, "missing_compiler", lambda device: "")
    compiled: list[torch.fx.GraphModule] = []

    def compile_instead(graph: torch.fx.GraphModule, shapes: list, options: dict) -> object:
        assert options["freezing"]
        assert [tuple(shape.shape) for shape in shapes] == [(1, 3, 8, 8)]
        compiled.append(graph)
        return graph

    monkeypatch.setattr("torch._inductor.compile", compile_instead)
    for seed in range(9):
        stages = Inductor().prepare(cut_module(network(seed), EXAMPLE, 1), EXAMPLE, CPU)
        assert not isinstance(stages[0], torch.nn.Module)
    assert len(compiled) == 9


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


def test_the_cache_is_in_a_folder_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert str(cache_directory()) == os.environ["TORCHINDUCTOR_CACHE_DIR"]
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())  # what PyTorch writes there
    assert cache_directory() == tmp_path / "multi_dnn_ros" / "inductor"
    inductor._choose_cache()
    assert stat.S_IMODE(cache_directory().stat().st_mode) == 0o700
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(cache_directory())


def test_inductor_is_captured_on_a_gpu_and_not_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    assert type(choose_backend("inductor", CPU)) is Inductor
    assert type(choose_backend("inductor", GPU)) is CudaGraph
    in_fp16 = choose_backend("inductor", GPU, "fp16")
    assert type(in_fp16) is InPrecision
    assert type(in_fp16.backend) is CudaGraph
    assert backend_name("inductor", CPU) == "inductor"
    with pytest.raises(ConfigError, match=r"dnn.lane.precision is 'tf32'; allowed with backend eager on cuda:0: auto"):
        choose_backend("eager", GPU, "tf32", dnn="lane")


def test_an_unwritable_cache_is_replaced_by_a_folder_that_others_cannot_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found: list[Path] = []
    for mode in (None, None, 0o755):  # another process of this user; a folder that others can access
        if mode is not None:
            found[0].parent.chmod(mode)
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "cache"))
        resources._replacement.cache_clear()  # as in another process
        inductor._choose_cache()
        found.append(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]))
        assert f"{tmp_path / 'file' / 'cache'} cannot be written, so caches are kept in {found[-1]}" in caplog.text
    assert found[0] == found[1] == tmp_path / f"multi_dnn_ros_{os.getuid()}" / "cache"
    assert found[2] != found[0]
    assert stat.S_IMODE(found[2].parent.stat().st_mode) == 0o700
