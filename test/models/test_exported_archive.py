"""A .pt2 that would run code while it is loaded is refused, and an ordinary one is not."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn

from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.settings.schema import DnnConfig


class Rows(nn.Module):
    """(N, 3, h, w) -> (N, 6, cells): the shape of a YOLO-style head of two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 6, 3, stride=2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.convolution(image).flatten(2)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("archive") / "rows.pt2"
    batch = torch.export.Dim("batch", min=1, max=8)
    program = torch.export.export(Rows().eval(), (torch.zeros(2, 3, 32, 48),), dynamic_shapes=({0: batch},))
    torch.export.save(program, file)
    return file


def settings_of(file: Path) -> DnnConfig:
    return DnnConfig(role="object", model=str(file), decoder="yolo", labels=["car", "truck"])


def load(file: Path) -> None:
    load_dnn("object", settings_of(file))


def rewritten(archive: Path, tmp_path: Path, edit: Callable[[str], str], extra: dict[str, bytes]) -> Path:
    """The archive with its graph's text edited and files added."""
    result = tmp_path / "hostile.pt2"
    with zipfile.ZipFile(archive) as before, zipfile.ZipFile(result, "w", zipfile.ZIP_STORED) as after:
        for item in before.infolist():
            content = before.read(item)
            if item.filename.endswith("models/model.json"):
                text = content.decode()
                content = edit(text).encode()
                assert extra or content.decode() != text
            after.writestr(item.filename, content)
        for name, content in extra.items():
            after.writestr(f"{item.filename.partition('/')[0]}/{name}", content)
    return result


def test_a_free_batch_axis_is_one_image(archive: Path) -> None:
    load(archive)


@pytest.mark.parametrize(
    ("pattern", "text", "message"),
    [
        (r'"expr_str": "[^"]*"', '"expr_str": "CODE"', "symbolic size"),
        (r'"image"', '"image=CODE"', "name"),
        (r"convolution\.weight", r'convolution.we\\"),CODE,(\\"', "name"),
        (r"torch\.ops\.aten\.flatten\.using_ints", "torch.hub.load", "operation"),
        (r"torch\.ops\.aten\.flatten\.using_ints", "torch.ops.load_library", "operation"),
        (r"torch\.ops\.aten\.flatten\.using_ints", "torch.ops.aten.__class__", "operation"),
        (r"torch\.ops\.aten\.flatten\.using_ints", "torch.ops.aten.from_file.default", "operation"),
        (r"torch\.ops\.aten\.flatten\.using_ints", "torch.ops.aten.save.default", "operation"),
        (r'"as_int": \d+', '"as_operator": "torch.hub.load"', "operation"),
    ],
)
def test_text_that_would_become_code_is_refused(
    archive: Path, tmp_path: Path, pattern: str, text: str, message: str
) -> None:
    mark = tmp_path / "mark"
    code = f"__import__('pathlib').Path('{mark}').touch()"
    file = rewritten(archive, tmp_path, lambda graph: re.sub(pattern, text.replace("CODE", code), graph), {})
    with pytest.raises(ModelError, match=rf"hostile\.pt2: refused.* {message} "):
        load(file)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["data/aotinductor/model/code.so", "data/constants/custom_obj_0", "code/a.py"])
def test_compiled_code_and_objects_are_refused(archive: Path, tmp_path: Path, name: str) -> None:
    file = rewritten(archive, tmp_path, lambda graph: graph, {name: b"\x7fELF"})
    with pytest.raises(ModelError, match=rf"hostile\.pt2: refused.*holds '{name}'"):
        load(file)


def test_weights_with_an_auxiliary_head_fit_the_network_without(tmp_path: Path) -> None:
    """torchvision's own DeepLab and FCN weights contain such a head."""
    builder = "deeplabv3_mobilenet_v3_large"
    trained = torchvision.models.get_model(builder, weights=None, weights_backbone=None, aux_loss=True)
    file = tmp_path / "trained.pth"
    torch.save(trained.state_dict(), file)
    values = {"model": f"torchvision:{builder}", "weights": str(file), "input_width": 64, "input_height": 64}
    dnn = load_dnn("lane", DnnConfig(role="lane", keep=["car"], **values))
    own = dnn.module.state_dict()
    assert torch.equal(own["network.classifier.4.weight"], trained.state_dict()["classifier.4.weight"])
