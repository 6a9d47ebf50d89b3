"""bf16 on a CPU: the log warns where the instructions are missing, or where float32 is measured to be faster."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_exports import TinyMap, export

from multi_dnn_ros.backends import cpu_features
from multi_dnn_ros.pipeline import bf16_check
from multi_dnn_ros.pipeline.build import build
from multi_dnn_ros.pipeline.settings_check import check_settings
from multi_dnn_ros.settings.flat_parameters import to_config

X86 = "processor\t: 0\nmodel name\t: a CPU\nflags\t\t: fpu avx2 {}\n\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd {}\n\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A network of one convolution."""
    return str(export(TinyMap(), tmp_path_factory.mktemp("models") / "lane.onnx"))


def config(precision: str, model: str = "builtin:lane_small"):
    parameters = {"role": "lane", "model": model, "precision": precision}
    return to_config(
        {"device": "cpu", "dnns": ["lane"], **{f"dnn.lane.{name}": value for name, value in parameters.items()}}
    )


@pytest.fixture
def cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that lists the features of the CPU."""
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(cpu_features, "_CPUINFO", path)
    cpu_features.cpu_flags.cache_clear()
    yield path
    cpu_features.cpu_flags.cache_clear()


@pytest.mark.parametrize(
    ("text", "warns"),
    [
        (X86.format("avx512f avx512_vnni"), True),
        (X86.format("avx512_bf16"), False),
        (X86.format("amx_bf16 amx_tile"), False),
        (ARM.format("asimddp"), True),
        (ARM.format("asimddp bf16"), False),
    ],
)
def test_a_cpu_without_bf16_instructions_is_named_before_a_dnn_is_loaded(cpuinfo: Path, text: str, warns: bool) -> None:
    cpuinfo.write_text(text)
    findings = check_settings(config("bf16"))
    assert findings.problems == ()
    found = [line for line in findings.warnings if "no bf16 instructions" in line]
    assert len(found) == warns
    if warns:
        assert found[0].startswith("parameter dnn.lane.precision is 'bf16', but this CPU has no bf16 instructions")
    assert not check_settings(config("fp32")).warnings


@pytest.mark.parametrize(
    ("bf16_ms", "warning"),
    [
        (20.0, "dnn.lane.precision is 'bf16', which takes 20.0 ms per image on this CPU; float32 (onnxruntime) takes"),
        (10.1, None),
    ],
)  # fmt: skip
def test_bf16_that_is_measured_slower_is_named(
    cpuinfo: Path,
    model: str,
    bf16_ms: float,
    warning: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cpuinfo.write_text(X86.format("avx512_bf16"))
    compared = []

    def times(image, bf16, float32) -> tuple[float, float]:
        compared.append((bf16(image)[0], float32(image)[0]))
        return bf16_ms, 10.0

    monkeypatch.setattr(bf16_check, "median_times_ms", times)
    lines: list[str] = []
    with caplog.at_level(logging.WARNING), torch.inference_mode():
        build(config("bf16", model), lines.append)
    ((in_bf16, in_float32),) = compared
    scale = float(in_float32.abs().max())
    assert 0.0 < float((in_bf16 - in_float32).abs().max()) < 0.08 * scale  # the same DNN in two precisions
    assert "comparing lane in bf16 with float32" in lines
    assert (warning in caplog.text) if warning else ("bf16" not in caplog.text)


def test_both_stages_run_alternately_and_are_timed() -> None:
    runs: list[str] = []

    def slow(carried):
        runs.append("slow")
        torch.rand(700, 700) @ torch.rand(700, 700)
        return carried

    def fast(carried):
        runs.append("fast")
        return carried

    slow_ms, fast_ms = bf16_check.median_times_ms((torch.zeros(1),), slow, fast)
    assert slow_ms > fast_ms > 0.0
    assert runs[:4] == ["slow", "fast", "slow", "fast"]


def test_other_precisions_are_not_compared(cpuinfo: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo.write_text(X86.format("avx512_bf16"))
    monkeypatch.setattr(bf16_check, "median_times_ms", lambda *_: pytest.fail("compared"))
    build(config("fp32", model))
