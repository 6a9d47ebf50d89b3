"""Which parameters change by a swap, and which files must exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from multi_dnn_ros.settings.parameter_table import markdown
from multi_dnn_ros.settings.swappable import is_swappable, missing_file


@pytest.mark.parametrize(
    ("name", "swappable"),
    [
        ("dnn.object.model", True),
        ("dnn.object.output.boxes.labels", True),
        ("dnn.object.cameras", False),
        ("dnn.object.outputs", False),
        ("dnn.object.track_max_lost_s", False),
        ("camera.front.topic", False),
        ("policy", False),
    ],
)
def test_swappable_parameters_are_marked_in_the_table(name: str, swappable: bool) -> None:
    assert is_swappable(name) is swappable
    field = name.rpartition(".")[2]
    assert any(
        row.startswith("| *`") and row.split("`")[1].endswith(f".{field}") for row in markdown().splitlines()
    ) is (swappable)


def test_files_and_folders_that_do_not_exist_are_named(tmp_path: Path) -> None:
    file = tmp_path / "model.ONNX"
    assert missing_file("dnn.object.model", str(file)) == (
        f"parameter dnn.object.model is '{file}': there is no such file"
    )
    file.touch()
    assert missing_file("dnn.object.model", str(file)) == ""
    assert "there is no such file" in missing_file("dnn.object.weights", "nothing.pth")
    assert "there is no such folder" in missing_file("dnn.object.calibration_images", str(file))
    assert missing_file("dnn.object.model", "~nobody here/a.onnx") == (
        "parameter dnn.object.model is '~nobody here/a.onnx': the home folder of this user is not known"
    )
    assert missing_file("dnn.object.check_images", 300 * "a").endswith("the folder cannot be found: File name too long")
    for name, value in (("model", "builtin:object"), ("weights", "COCO_V1"), ("check_images", ""), ("labels", ["a"])):
        assert missing_file(f"dnn.object.{name}", value) == ""
