"""A written .pt2 file has the preprocessing and the decoder of the network that it was made from."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from tiny_exports import SIZE, export
from torch import nn

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.models.sources import load_network
from multi_dnn_ros.settings.schema import DnnConfig

pytestmark = pytest.mark.usefixtures("one_thread")

_SIDECAR = """\
mean: [0.1, 0.2, 0.3]
std: [0.5, 0.6, 0.7]
color: bgr
resize: letterbox
decoder: lane
"""


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """A lane network as an ONNX file with a metadata file next to it."""
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 1, 1),
    )  # fmt: skip
    (tmp_path / "street.yaml").write_text(_SIDECAR)
    return export(network, tmp_path / "street.onnx")


@pytest.fixture
def lines(tmp_path: Path) -> str:
    """Square images, which are letterboxed: a vertical line in each."""
    for part, left in (("train", 20), ("val", 60)):
        for kind in ("images", "masks"):
            (tmp_path / "lines" / part / kind).mkdir(parents=True)
        for number in range(2):
            mask = np.zeros((SIZE[0], SIZE[0]), np.uint8)
            mask[20:, left + 3 * number : left + 3 * number + 4] = 255
            for kind in ("images", "masks"):
                cv2.imwrite(str(tmp_path / "lines" / part / kind / f"{number}.png"), mask)
    return f"lanes:{tmp_path / 'lines'}"


def test_decomposed_and_retrained_files_keep_preprocessing_and_decoder(
    original: Path, lines: str, tmp_path: Path
) -> None:
    small, better = tmp_path / "small.pt2", tmp_path / "better.pt2"
    assert main(["decompose", str(original), "--output", str(small), "--alignment", "1", "--floor", "1"]) == 0
    run = ["--data", lines, "--device", "cpu", "--epochs", "1", "--teacher", str(original)]
    assert main(["retrain", str(small), "--output", str(better), *run]) == 0
    known = load_network(str(original))
    assert (known.preprocess["fit"], known.preprocess["bgr"], known.decoder) == ("letterbox", True, "lane")
    image = torch.randint(0, 256, (70, 50, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    (expected,) = load_dnn("a", DnnConfig(role="lane", model=str(original))).inputs(image)
    for file in (small, better):
        written = load_network(str(file))
        assert (written.preprocess, written.decoder) == (known.preprocess, known.decoder)
        (seen,) = load_dnn("a", DnnConfig(role="lane", model=str(file))).inputs(image)
        assert torch.equal(seen, expected)


def test_a_decoder_found_by_shapes_is_not_written(lines: str, tmp_path: Path) -> None:
    """The node, which requires more certainty, decides for itself."""
    network = nn.Sequential(nn.Conv2d(3, 1, 3, stride=2, padding=1)).eval()
    example = (torch.zeros(1, 3, SIZE[1], SIZE[0]),)
    torch.export.save(torch.export.export(network, example), tmp_path / "plain.pt2")
    out = tmp_path / "out.pt2"
    run = ["--data", lines, "--device", "cpu", "--epochs", "1"]
    assert main(["retrain", str(tmp_path / "plain.pt2"), "--output", str(out), *run]) == 0
    written = load_network(str(out))
    assert (written.preprocess, written.decoder) == ({}, "")
