"""Execution providers: the table, their order, the messages about those that do not work, and what they cache.

The ONNX Runtime that is installed for the tests has the CPU's provider only. A test that needs another provider uses a
session of the CPU's provider that claims to be the other. GPU twin: test/gpu/backends/test_onnxruntime_cuda.py.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import nn

from multi_dnn_ros.backends import run_stages
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.onnx_providers import (
    PROVIDERS,
    Choice,
    ProviderError,
    SessionRequest,
    candidates,
    compiled_folder,
    forms,
    parse,
)
from multi_dnn_ros.backends.onnxruntime_backend import OnnxRuntime
from multi_dnn_ros.backends.onnxruntime_gpu import BoundStage, OnnxRuntimeOnGpu, bound_stages
from multi_dnn_ros.backends.onnxruntime_sessions import SessionStage
from multi_dnn_ros.backends.registry import BackendRequest
from multi_dnn_ros.models.cut import cut_module
from multi_dnn_ros.models.onnx_export import export
from multi_dnn_ros.serving.choices import automatic_providers, choose_backend
from multi_dnn_ros.settings.schema import DnnConfig

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
IMAGE = (torch.zeros(1, 3, 32, 48),)


class Network(nn.Module):
    """A value that is carried over cuts, pooling, and a constant among the results."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1)
        self.anchors = nn.Parameter(torch.arange(6.0))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        image = self.first(image).relu()
        return nn.functional.max_pool2d(self.second(image).relu() + image, 2), self.anchors * 2


def network() -> Network:
    torch.manual_seed(0)
    return Network().eval()


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multi_dnn_ros.backends.onnx_providers.COMPILED._folder", tmp_path / "engines")


class Installed:
    """An ONNX Runtime with more providers. loads: those that load. wrong: the one whose results are wrong. calls: for
    each session, the options by provider.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str, loads: tuple[str, ...] = (), wrong: str = ""):
        self.calls: list[dict[str, dict[str, str]]] = []
        own = onnxruntime.InferenceSession
        keys = [PROVIDERS[name].key for name in (*names, "cpu")]

        def session(model: Any, options: Any, *, providers: Any, **rest: Any) -> Any:
            if not isinstance(providers[0], tuple):
                return own(model, options, providers=providers, **rest)
            self.calls.append(dict(providers))
            made = own(model, options, providers=["CPUExecutionProvider"])
            kept = [key for key, _ in providers if key in {PROVIDERS[name].key for name in (*loads, "cpu")}]
            made.get_providers = lambda: kept
            if wrong and PROVIDERS[wrong].key in kept:
                run = made.run
                made.run = lambda *arguments: [1.0 + array for array in run(*arguments)]
            return made

        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: keys)
        monkeypatch.setattr(onnxruntime, "InferenceSession", session)


def prepare(*providers: str, jobs: int = 2, **options: Any) -> Any:
    request = BackendRequest(CPU, 1e-2, dnn="lane", providers=providers, single_launch=True, **options)
    return OnnxRuntime(request).prepare_graph(export(network(), IMAGE), jobs)


def agrees(stages: Any) -> bool:
    image = noise_like(IMAGE)
    with torch.inference_mode():
        check_agreement(run_stages(stages, image), network()(*image), 1e-4)
    return True


@pytest.mark.parametrize("text", ["tensorrt", "cuda", "cpu", "openvino", "openvino:gpu", "openvino:gpu.1"])
def test_what_the_parameter_allows_is_what_the_table_reads(text: str) -> None:
    assert DnnConfig(role="lane", model="builtin:lane", providers=[text]).providers == [parse(text).text]


@pytest.mark.parametrize("text", ["directml", "cpu:0", "openvino:tpu", "openvino:gpu.", "openvino:", "", "cuda:1"])
def test_a_wrong_provider_is_named_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"providers\.0"):
        DnnConfig(role="lane", model="builtin:lane", providers=[text])
    if text != "openvino:":  # an empty device is the default one
        with pytest.raises(ProviderError, match=re.escape(f"'{text}'") + ".*" + re.escape(forms()[2])):
            parse(text)


def test_installed_providers_of_the_device_are_tried_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    Installed(monkeypatch, "tensorrt", "cuda", "openvino")
    names = lambda *arguments: [each.text for each in candidates(*arguments)[0]]  # noqa: E731
    assert names((), GPU, "auto") == ["tensorrt", "cuda"]
    assert names((), GPU, "fp32") == ["cuda"]
    assert names((), CPU, "auto") == ["openvino", "cpu"]
    assert names(("cpu", "openvino:gpu"), CPU, "auto") == ["cpu", "openvino:gpu"]
    assert candidates((), GPU, "fp32")[1] == []
    assert candidates(("tensorrt", "cuda"), GPU, "fp32")[1] == [
        "execution provider tensorrt is not used: it has no precision fp32; it has auto, fp16"
    ]


def test_backend_auto_stays_with_the_provider_of_the_cpu_whatever_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed = Installed(monkeypatch, "openvino", loads=("openvino",))
    assert automatic_providers("auto", CPU) == ("cpu",)
    assert automatic_providers("onnxruntime", CPU) == automatic_providers("auto", GPU) == ()
    backend = choose_backend("auto", CPU, dnn="lane", providers=automatic_providers("auto", CPU))
    ready = backend.prepare_graph(export(network(), IMAGE), 1)  # type: ignore[attr-defined]
    assert isinstance(ready[0], SessionStage)
    assert ready[0].choice.text == "cpu"
    assert installed.calls == []


def test_a_provider_that_was_not_built_in_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """The real ONNX Runtime of this machine, which has the CPU's provider only."""
    with caplog.at_level(logging.WARNING):
        ready = prepare("openvino", "cpu")
    assert [record.message for record in caplog.records] == [
        "lane: execution provider openvino is not used: the installed ONNX Runtime was built without it; it has cpu "
        "(docs/devices.md)"
    ]
    assert ready[0].choice.text == "cpu"
    assert agrees(ready)


def test_a_provider_that_does_not_load_is_one_line_and_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Installed(monkeypatch, "openvino")
    with caplog.at_level(logging.WARNING):
        ready = prepare("openvino:gpu", "cpu")
    assert [record.message for record in caplog.records] == [
        "lane does not run on openvino:gpu: execution provider openvino:gpu cannot be loaded for lane: its device "
        "gpu, a library or the driver for it is missing"
    ]
    assert ready[0].choice.text == "cpu"
    assert agrees(ready)


def test_a_required_provider_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProviderError, match=r"lane cannot run on openvino:gpu: .* was built without it; it has cpu"):
        prepare("openvino:gpu", required=True)
    Installed(monkeypatch, "openvino")
    with pytest.raises(ProviderError, match=r"lane cannot run on openvino:gpu: .*cannot be loaded for lane"):
        prepare("openvino:gpu", required=True)


def test_options_come_from_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed = Installed(monkeypatch, "openvino", loads=("openvino",))
    ready = prepare("openvino", jobs=1)
    assert ready[0].choice.text == "openvino"
    assert agrees(ready)
    (call,) = installed.calls
    folder = Path(call["OpenVINOExecutionProvider"].pop("cache_dir"))
    assert folder.parent == tmp_path / "engines"
    assert call == {
        "OpenVINOExecutionProvider": {
            "device_type": "CPU", "precision": "FP32", "num_of_threads": str(torch.get_num_threads()),
            "num_streams": "1",
        },
        "CPUExecutionProvider": {},
    }  # fmt: skip
    on_gpu = SessionRequest(torch.device("cuda:1"), "fp16", stream=1234, cache=tmp_path)
    tensorrt, cuda = (PROVIDERS[name].options(on_gpu) for name in ("tensorrt", "cuda"))
    assert (tensorrt["trt_fp16_enable"], tensorrt["trt_engine_cache_path"]) == ("1", str(tmp_path))
    for options in (tensorrt, cuda):
        assert (options["device_id"], options["user_compute_stream"]) == ("1", "1234")
    assert PROVIDERS["cuda"].options(SessionRequest(GPU, "fp32"))["use_tf32"] == "0"
    assert "user_compute_stream" not in PROVIDERS["cuda"].options(SessionRequest(GPU))


@pytest.mark.parametrize("jobs", [1, 3])
def test_bound_memory_gives_the_results_of_eager(jobs: int) -> None:
    """The stage that a GPU uses, with sessions of the CPU's provider."""
    stages = [stage.eval() for stage in cut_module(network(), IMAGE, jobs)]
    ready = bound_stages(stages, IMAGE, CPU, _on_cpu, 1e-4)
    assert all(isinstance(stage, BoundStage) for stage in ready)
    chains = [ready] if jobs == 1 else [ready, [ready[0].single_launch]]
    for chain in chains:
        assert agrees(chain)
        first, _ = run_stages(chain, noise_like(IMAGE))
        kept = first.clone()
        run_stages(chain, IMAGE)
        assert torch.equal(first, kept)  # an earlier frame's results are not overwritten


def _on_cpu(model: Any) -> Any:
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_without_a_provider_a_gpu_runs_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    stages = cut_module(network(), IMAGE, 2)
    request = BackendRequest(CPU, 1e-2, dnn="lane", providers=("tensorrt", "cuda"))
    with caplog.at_level(logging.WARNING):
        ready = OnnxRuntimeOnGpu(request).prepare(stages, IMAGE, CPU)
    assert agrees(ready)
    assert [record.message for record in caplog.records if record.name.startswith("multi_dnn_ros")] == [
        "lane: execution provider tensorrt is not used: it computes on cuda; the device is cpu",
        "lane: execution provider cuda is not used: it computes on cuda; the device is cpu",
        "lane runs as PyTorch on cpu, because no execution provider of ONNX Runtime runs it",
    ]


def test_compiled_networks_are_found_again_but_not_on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnx

    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    form = [onnx.helper.make_tensor_value_info(name, 1, [1, 4]) for name in "xy"]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", form[:1], form[1:]))
    choice = Choice(PROVIDERS["openvino"])
    folder: Callable[..., Path | None] = lambda precision="auto": compiled_folder(  # noqa: E731
        model, choice, SessionRequest(CPU, precision), "lane"
    )
    first = folder()
    assert first is not None
    assert first == folder()
    assert first != folder("fp32")
    assert compiled_folder(model, Choice(PROVIDERS["cpu"]), SessionRequest(CPU), "lane") is None
    monkeypatch.setattr("multi_dnn_ros.backends.onnx_providers.cpu_model", lambda: "Board 9000")
    elsewhere = folder()
    assert elsewhere is not None
    assert elsewhere != first
