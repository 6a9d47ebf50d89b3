"""``multi-dnn evaluate --served``: scores of a network as the node serves it."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from multi_dnn_ros.backends import Shared, Stage, Tensors
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.pipeline.choices import choose_backend
from multi_dnn_ros.planning.timing import Target
from multi_dnn_ros.training.served_network import Served
from multi_dnn_ros.training.trainable import SingleImages

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


class SameMemory:
    """Stages that write every image's outputs to the same memory, as captured graphs do, and log a warning."""

    def prepare(
        self, stages: Sequence[nn.Module], inputs: Tensors, device: torch.device, shared: Shared | None = None
    ) -> tuple[Stage, ...]:
        (stage,) = stages
        buffers = tuple(tensor.clone() for tensor in stage(inputs))

        def run(carried: Tensors) -> Tensors:
            for buffer, tensor in zip(buffers, stage(carried), strict=True):
                buffer.copy_(tensor)
            return buffers

        logging.getLogger("multi_dnn_ros.backends.any").warning("job %d is slow", 0)
        return (run,)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.near, self.far = nn.Conv2d(8, 2, 1), nn.Conv2d(8, 4, 1)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        seen = self.body(image)
        return {"near": self.near(seen), "far": self.far(seen)}


def served_in(precision: str) -> Target:
    return Target(CPU, "torchscript", lambda: choose_backend("torchscript", CPU, precision), precision)


@torch.no_grad()
def test_images_of_a_batch_do_not_share_their_outputs() -> None:
    torch.manual_seed(0)
    network, images = TwoHeads().eval(), torch.rand(3, 3, 12, 16)
    served = Served(network, (16, 12), Target(CPU, "same memory", SameMemory))
    assert next(served.parameters()).device == CPU
    assert served.warnings == ["job 0 is slow"]
    expected = network(images)
    for own, whole in zip(served(images), (expected["near"], expected["far"]), strict=True):
        torch.testing.assert_close(own, whole)
        own += 1.0  # a decoder may modify its inputs


@torch.no_grad()
def test_serving_in_bf16_rounds_outputs_and_keeps_the_network() -> None:
    torch.manual_seed(0)
    network, images = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval(), torch.rand(2, 3, 12, 16)
    before = network(images)
    served = Served(SingleImages(network), (16, 12), served_in("bf16"))(images)
    assert isinstance(served, torch.Tensor)
    assert served.dtype == torch.float32
    assert not torch.equal(served, before)
    torch.testing.assert_close(served, before, rtol=2e-2, atol=2e-2)
    assert torch.equal(network(images), before)


def test_a_second_row_shows_what_serving_in_bf16_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, road = tmp_path / "report", f"road:{tmp_path / 'road'}"
    run = ["--data", road, "--scenes", "4", "--device", "cpu", "--served", "--precision", "bf16"]
    # The decomposed DNN, because bf16 is thirty times slower on a CPU without bf16 instructions.
    assert main(["evaluate", "builtin:pedestrian_small", *run, "--limit", "3", "--report", str(report)]) == 0
    first, second = json.loads((report / "report.json").read_text())["networks"]
    assert first["served"] is None
    assert second.keys() == first.keys()
    served = second["served"]
    assert (served["backend"], served["precision"], served["warnings"]) == ("torchscript", "bf16", [])
    assert "; bf16; torchscript; torch" in served["target"]
    assert second["macs"] == first["macs"] > 0
    assert second["scores"][road]["images"] == 3
    assert second["scores"][road]["map50"] > 0.5
    assert second["scores"][road]["map"] != first["scores"][road]["map"]
    for name, score in first["scores"][road].items():
        assert second["scores"][road][name] == pytest.approx(score, abs=0.05), name
    assert "| builtin:pedestrian_small, served: torchscript bf16 |" in capsys.readouterr().out


def test_rows_of_several_networks_alternate_and_are_timed_once(colours: Path, tmp_path: Path) -> None:
    models = []
    for name in ("a", "b"):
        models.append(str(tmp_path / f"{name}.pt2"))
        network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
        torch.export.save(torch.export.export(network, (torch.zeros(1, 3, 16, 16),)), models[-1])
    data, report = f"classes:{colours}", tmp_path / "report"
    chosen = ["--decoder", "classification", "--data", data, "--device", "cpu"]
    how = ["--served", "--precision", "fp32", "--latency", "--backend", "eager"]
    assert main(["evaluate", *models, *chosen, *how, "--report", str(report)]) == 0
    rows = json.loads((report / "report.json").read_text())["networks"]
    assert [row["model"] for row in rows] == [models[0], models[0], models[1], models[1]]
    assert [row["served"] is not None for row in rows] == [False, True, False, True]
    for own, served in (rows[:2], rows[2:]):
        assert served["scores"] == own["scores"]
        assert served["latency_ms"] == own["latency_ms"]
        assert [entry["instances"] for entry in own["latency_ms"]] == [1, 2]


def test_a_precision_that_the_device_lacks_is_refused_before_scoring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["--data", f"road:{tmp_path / 'road'}", "--device", "cpu", "--served", "--precision", "fp16"]
    assert main(["evaluate", "builtin:object", *run]) == 1
    assert "precision is 'fp16'; allowed with backend torchscript on cpu: auto, fp32, bf16" in capsys.readouterr().err
    assert not (tmp_path / "road").exists()  # nothing was rendered
