"""Stages as sessions of ONNX Runtime: the results of eager PyTorch, shared weights, or TorchScript and the reason."""

from __future__ import annotations

import functools
import gc
import importlib.util
import logging
import re
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
import torch
import torchvision
from small_builtin import small_builtin
from torch import nn
from torchvision.models.mobilenetv3 import _mobilenet_v3_conf

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.batches import prepare_batches, repeat_inputs
from multi_dnn_ros.backends.onnxruntime_backend import OnnxRuntime
from multi_dnn_ros.backends.onnxruntime_sessions import SessionStage
from multi_dnn_ros.backends.precision import InPrecision
from multi_dnn_ros.backends.torchscript import TorchScript
from multi_dnn_ros.graph.cut import cut_graph, cut_module
from multi_dnn_ros.graph.trace import trace
from multi_dnn_ros.models.sources import load_network
from multi_dnn_ros.pipeline.choices import ConfigError, backend_name, choose_backend

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
IMAGE = (torch.zeros(1, 3, 32, 48),)


class Residual(nn.Module):
    """Batch norms, a branch that is carried over cuts, pooling and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 1))
        self.last = nn.Linear(16, 7)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        image = self.first(image)
        image = torch.relu(self.second(image) + image)
        return self.last(nn.functional.adaptive_avg_pool2d(image, 1).flatten(1))


class Detector(Residual):
    """Heads as in torchvision's SSD, whose reshapes are traced as `_unsafe_view`; returns a dict."""

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        image = nn.functional.hardswish(self.first(image))
        boxes = [image, nn.functional.max_pool2d(image, 2)]
        rows = [each.view(1, 4, -1, *each.shape[2:]).permute(0, 3, 4, 1, 2).reshape(1, -1, 4) for each in boxes]
        together = torch.cat(rows, 1)
        return {"boxes": together, "best": together.argmax(2), "sure": together.sigmoid() > 0.5}


class Segmentation(Residual):
    """Upsampling, squeeze-and-excitation, depthwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Conv2d(16, 16, 3, padding=2, dilation=2, groups=16)
        self.gate = nn.Conv2d(16, 16, 1)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        small = self.deep(self.first(image))
        small = small * nn.functional.hardsigmoid(self.gate(small.mean((2, 3), keepdim=True)))
        wide = nn.functional.interpolate(small, size=image.shape[2:], mode="bilinear", align_corners=False)
        return wide.softmax(1), nn.functional.interpolate(small, scale_factor=2.0, mode="nearest")


class Transformer(Residual):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True, activation="gelu")

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        tokens = self.first(image).flatten(2).transpose(1, 2)
        return self.last(self.layer(tokens)[:, 0])


class PassesOn(nn.Module):
    """One output is the input, another one is a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 3, padding=1)
        self.anchors = nn.Parameter(torch.arange(6.0))

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        features = self.layer(image).relu()
        return self.layer(features), image, self.anchors * 2, features


class Keeps(nn.Module):
    """Keeps state for the next frame."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return image * self.count


class Special(nn.Module):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(image)


@functools.cache
def seeded(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    module = kind().eval()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean = torch.randn(part.num_features) * 0.1
            part.running_var = torch.rand(part.num_features) + 0.5
    return module


def through(stages: Sequence[Stage], carried: Tensors) -> Tensors:
    with torch.inference_mode():
        for stage in stages:
            carried = stage(carried)
        return carried


@functools.lru_cache(maxsize=8)
def traced(module: nn.Module, inputs: Tensors) -> torch.fx.GraphModule:
    """The graph that :func:`cut_module` splits, which is the same for all numbers of jobs."""
    return trace(module, inputs, fold_batch_norm=True)


def sessions(module: nn.Module, inputs: Tensors, jobs: int, dnn: str = "") -> list[SessionStage]:
    """The stages of a DNN; all must be sessions."""
    stages = OnnxRuntime(dnn=dnn).prepare(cut_graph(traced(module, inputs), jobs), inputs, CPU)
    return [stage for stage in stages if isinstance(stage, SessionStage) or pytest.fail("not exported")]


def check_all(module: nn.Module, inputs: Tensors, jobs: int) -> list[SessionStage]:
    """Check the results of the stages and of the single session."""
    stages = sessions(module, inputs, jobs)
    image = tuple(tensor * 0.7 for tensor in noise_like(inputs))
    with torch.inference_mode():
        expected = tuple(torch.utils._pytree.tree_leaves(module(*image)))
    check_agreement(through(stages, image), expected, 1e-4)
    assert (stages[0].single_launch is None) == (len(stages) == 1)
    if stages[0].single_launch is not None:
        check_agreement(through([stages[0].single_launch], image), expected, 1e-4)
    return stages


@pytest.mark.parametrize("jobs", [1, 2, 7])
@pytest.mark.parametrize("kind", [Residual, Detector, Segmentation, Transformer, PassesOn])
def test_sessions_compute_the_same_as_the_module(kind: type[nn.Module], jobs: int) -> None:
    check_all(seeded(kind), IMAGE, jobs)


@pytest.mark.parametrize("model", ["lane", "object_small"])
def test_built_in_dnns_original_and_decomposed(model: str) -> None:
    assert len(check_all(*small_builtin(model), 4)) == 4


def test_a_network_of_torchvision() -> None:
    torch.manual_seed(0)
    settings, channels = _mobilenet_v3_conf("mobilenet_v3_small")  # all kinds of its blocks are among the first
    module = torchvision.models.MobileNetV3(settings[:4], channels, num_classes=5)
    check_all(module.eval(), (torch.zeros(1, 3, 64, 64),), 4)


@pytest.mark.long
def test_a_detector_of_torchvision() -> None:
    torch.manual_seed(0)
    detector = load_network("torchvision:ssdlite320_mobilenet_v3_large", weights="random")
    check_all(detector.network, (torch.zeros(1, 3, 96, 96),), 4)


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_networks_from_files(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"network{suffix}"
    if suffix == ".pt2":
        torch.export.save(torch.export.export(seeded(Segmentation), IMAGE), path)
    else:
        torch.onnx.export(seeded(Residual), IMAGE, path, dynamo=False, verbose=False)
    check_all(load_network(str(path)).module, IMAGE, 3)


def test_two_dnns_in_two_workers_each_get_their_own_results() -> None:
    chains = [(seeded(kind), sessions(seeded(kind), IMAGE, 3)) for kind in (Residual, Segmentation)]
    images = [tuple(torch.randn(1, 3, 32, 48) for _ in range(1)) for _ in range(20)]
    failures: list[BaseException] = []

    def run(module: nn.Module, stages: Sequence[Stage]) -> None:
        try:
            for image in images:
                with torch.inference_mode():
                    expected = tuple(torch.utils._pytree.tree_leaves(module(*image)))
                check_agreement(through(stages, image), expected, 1e-4)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=chain) for chain in chains * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_results_are_not_overwritten_by_the_next_frame() -> None:
    """A DNN's thread may decode the results of one frame while a worker runs the next."""
    stages = sessions(seeded(Residual), IMAGE, 2)
    (result,) = through(stages, (torch.ones(1, 3, 32, 48),))
    before = result.clone()
    for _ in range(5):
        through(stages, (torch.randn(1, 3, 32, 48),))
    assert torch.equal(result, before)


def test_a_tensor_that_a_stage_passes_on_is_not_copied() -> None:
    stages = sessions(seeded(PassesOn), IMAGE, 2)
    image = torch.randn(1, 3, 32, 48)
    assert through(stages, (image,))[1] is image


def test_stages_whole_network_and_batches_share_weights() -> None:
    module = seeded(Residual)
    chains = {size: cut_module(module, repeat_inputs(IMAGE, size), 3, fold_batch_norm=True) for size in (1, 2, 3)}
    folded = sum(weight.nbytes for stage in chains[1] for weight in (*stage.parameters(), *stage.buffers()))
    ready = prepare_batches(OnnxRuntime(), chains, IMAGE, CPU, 1e-4)
    found: dict[int, int] = {}
    users = 0
    for stages in ready.values():
        for stage in (*stages, stages[0].single_launch):  # type: ignore[attr-defined]
            users += len(stage.weights)
            found.update((weight.data_ptr(), weight.tensor_size_in_bytes()) for weight in stage.weights)
    assert users == 2 * 3 * len(found)  # each by its stage and by the whole network, for each batch size
    assert 0.9 * folded < sum(found.values()) <= folded


def test_sessions_share_the_memory_of_their_activations() -> None:
    """Two DNNs, each with four jobs and the whole network; one session runs at a time."""
    layers = [nn.Conv2d(3 if index == 0 else 16, 16, 1) for index in range(4)]
    wide = nn.Sequential(*layers).eval()
    inputs = (torch.zeros(1, 3, 512, 512),)
    layer_bytes = 16 * 512 * 512 * 4
    small = (torch.zeros(1, 3, 32, 32),)
    through(sessions(wide, small, 4), small)  # what the first export of a process loads stays in memory
    gc.collect()
    before = psutil.Process().memory_info().rss
    chains = [sessions(wide, inputs, 4) for _ in range(2)]
    for stages in chains:
        through(stages, inputs)
        through([stages[0].single_launch], inputs)  # type: ignore[list-item]
    gc.collect()
    held = psutil.Process().memory_info().rss - before
    # With separate memory, each of the ten sessions holds two layers or more. With shared memory, all hold about six
    # layers; memory that the process has freed before and not returned adds to that.
    assert held < 16 * layer_bytes


def test_sessions_with_one_thread_per_operation_start_none() -> None:
    """They compute in the worker that calls them, however many jobs and DNNs there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        sessions(seeded(Residual), IMAGE, 2)  # ONNX Runtime starts one of its own with the first session of a process
        running = psutil.Process().num_threads()
        chains = [sessions(seeded(kind), IMAGE, 3) for kind in (Residual, Segmentation)]
        assert psutil.Process().num_threads() == running
    finally:
        torch.set_num_threads(before)
    assert all(len(stages) == 3 for stages in chains)


def test_a_batch_has_the_results_of_its_images_alone() -> None:
    module = seeded(Residual)
    chains = {size: cut_module(module, repeat_inputs(IMAGE, size), 2, fold_batch_norm=True) for size in (1, 2)}
    ready = prepare_batches(choose_backend("onnxruntime", CPU), chains, IMAGE, CPU, 1e-4)
    images = torch.randn(2, 3, 32, 48)
    (results,) = through(ready[2], (images,))
    for row in range(2):
        check_agreement((results[row : row + 1],), through(ready[1], (images[row : row + 1],)), 1e-4)


def test_nan_in_the_weights_makes_the_results_nan() -> None:
    stages = sessions(seeded(Residual), IMAGE, 3)
    image = torch.randn(1, 3, 32, 48)
    image[0, 1, 10, 10] = float("nan")
    for chain in (stages, [stages[0].single_launch]):
        assert through(chain, (image,))[0].isnan().all()  # type: ignore[arg-type]


class Pooled(Residual):
    """The logarithm of an image, NaN for negative values, before max pooling."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        image = self.first(torch.log(image))
        image = nn.functional.max_pool2d(nn.functional.max_pool2d(image, 3, 2), 2)
        return self.last(torch.relu(self.second(image)).mean((2, 3)))


class Rarely(Pooled):
    """NaN only below -50, which does not occur in the comparison during configuration."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return super().forward(image + 50.0)


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_nan_before_max_pooling_makes_the_results_nan(jobs: int) -> None:
    stages = check_all(seeded(Rarely), IMAGE, jobs)
    image = torch.rand(1, 3, 32, 48)
    bad = image.clone()
    bad[0, 1, 10, 10] = -60.0
    for chain in [stages, [stages[0].single_launch]] if jobs > 1 else [stages]:
        assert through(chain, (bad,))[0].isnan().all()  # type: ignore[arg-type]
        assert through(chain, (image,))[0].isfinite().all()  # type: ignore[arg-type]


def test_after_an_error_a_session_runs_the_next_frame() -> None:
    stages = sessions(seeded(Residual), IMAGE, 2)
    for chain in (stages, [stages[0].single_launch]):
        with pytest.raises(Exception, match="Unexpected input data type"):
            through(chain, (torch.zeros(1, 3, 32, 48, dtype=torch.float64),))  # type: ignore[arg-type]
        assert through(chain, IMAGE)[0].shape == (1, 7)  # type: ignore[arg-type]


def test_inputs_need_not_be_contiguous() -> None:
    stages = sessions(seeded(Residual), IMAGE, 1)
    image = torch.randn(1, 3, 32, 48)
    torch.testing.assert_close(
        through(stages, (image.to(memory_format=torch.channels_last),)), through(stages, (image,))
    )


class ChangesWhenTraced(nn.Module):
    def forward(self, carried: Tensors) -> Tensors:
        return (carried[0] + (1.0 if torch.onnx.is_in_onnx_export() else 0.0),)


@pytest.mark.parametrize(
    ("stages", "inputs", "reason"),
    [
        (lambda: cut_module(Keeps().eval(), IMAGE, 1), IMAGE, "aten.copy_.default .* is kept between frames"),
        (lambda: cut_module(Special().eval(), IMAGE, 1), IMAGE, "aten::special_bessel_j0"),
        (lambda: [ChangesWhenTraced()], IMAGE, "result 0 is off by 1 "),
    ],
)
def test_a_dnn_that_cannot_be_exported_runs_as_torchscript_and_the_reason_is_logged(
    stages, inputs: Tensors, reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else find(name))
    with caplog.at_level(logging.WARNING):
        ready = OnnxRuntime(dnn="lane").prepare(stages(), inputs, CPU)
    assert not isinstance(ready[0], SessionStage)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert lines[0].startswith("lane runs as torchscript, because ONNX Runtime fails: ")
    assert re.search(reason, lines[0])
    assert capfd.readouterr().out == ""
    assert through(ready, inputs)[0].shape == inputs[0].shape


def test_a_network_with_state_keeps_it() -> None:
    ready = OnnxRuntime().prepare(cut_module(Keeps().eval(), IMAGE, 1), IMAGE, CPU)
    one = (torch.ones(1, 3, 32, 48),)
    first, second = (float(through(ready, one)[0].mean()) for _ in range(2))
    assert second == first + 1.0


def test_without_onnx_runtime_dnns_run_as_torchscript(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in list(sys.modules):
        if name.startswith(("multi_dnn_ros.backends.onnx_split", "multi_dnn_ros.backends.onnxruntime_sessions")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    module = seeded(Residual)
    with caplog.at_level(logging.WARNING):
        ready = OnnxRuntime(dnn="lane").prepare(cut_module(module, IMAGE, 2), IMAGE, CPU)
    assert "lane runs as torchscript, because ONNX Runtime fails: import of onnxruntime halted" in caplog.text
    image = noise_like(IMAGE)
    with torch.inference_mode():
        check_agreement(through(ready, image), (module(*image),), 1e-4)


def test_onnxruntime_is_the_default_on_a_cpu_in_float32() -> None:
    assert type(choose_backend("auto", CPU)) is OnnxRuntime
    assert (backend_name("auto", CPU), backend_name("auto", CPU, precision="bf16")) == ("onnxruntime", "torchscript")
    in_bf16 = choose_backend("auto", CPU, "bf16")
    assert isinstance(in_bf16, InPrecision)
    assert isinstance(in_bf16.backend, TorchScript)
    in_fp32 = choose_backend("auto", CPU, "fp32")
    assert isinstance(in_fp32, InPrecision)
    assert isinstance(in_fp32.backend, OnnxRuntime)
    with pytest.raises(ConfigError, match="precision is 'bf16'; allowed with backend onnxruntime on cpu: auto, fp32"):
        choose_backend("onnxruntime", CPU, "bf16", dnn="lane")


def test_sessions_in_host_memory_are_rejected_on_a_gpu() -> None:
    with pytest.raises(ValueError, match="for a CPU; the device is cuda:0"):
        OnnxRuntime().prepare([seeded(Residual)], IMAGE, GPU)
