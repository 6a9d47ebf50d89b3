"""The code and the commands of docs/extending.md work as printed there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fork_server import ForkServer
from toy_node import ROOT, environment, run_forked

from multi_dnn_ros.pipeline.extension_tables import in_document

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.S)
_FILE = re.compile(r"# file: (\S+)\n")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder with the page's files, and where the page's bash commands installed the package."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    for _, text in BLOCKS:
        if match := _FILE.match(text):
            path = source / match[1]
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    (source / "my_package" / "__init__.py").touch()
    own = {"PIP_TARGET": str(target), "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0",
           "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # fmt: skip
    for language, text in BLOCKS:
        if language == "bash":
            command = text.replace("pip ", f"{sys.executable} -m pip ")
            subprocess.run(
                ["bash", "-e", "-c", command], cwd=source, env={**os.environ, **own}, check=True, timeout=120
            )
    return source, target


def run(code: str, target: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, env=environment(target)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_decoder_takes_about_40_lines() -> None:
    (decoder,) = (text for _, text in BLOCKS if text.startswith("# file: my_package/centers.py"))
    assert len(decoder.splitlines()) <= 40


@pytest.fixture(scope="module")
def printed(package: tuple[Path, Path], fork_server: ForkServer) -> tuple[str, str]:
    """The output of the examples, and that of _SERVED."""
    examples = [text for language, text in BLOCKS if language == "python" and not _FILE.match(text)]
    code = f"for text in {examples!r}: exec(text, {{}})\nprint('====')\n{_SERVED}"
    text = run_forked(fork_server, code, package[1])
    first, _, second = text.partition("====\n")
    return first, second


def test_the_examples_run_and_print_what_the_page_says(printed: tuple[str, str]) -> None:
    lines = printed[0].splitlines()
    assert lines == ["[[200. 160. 360. 240.]]", "centers detections ('cone',)"]
    assert f"`{lines[0]}`" in PAGE


def test_the_parameter_file_is_accepted_with_the_package_and_refused_without(package: tuple[Path, Path]) -> None:
    source, target = package
    code = f"""
from pathlib import Path
from multi_dnn_ros.settings.parameter_fields import ParameterError
from multi_dnn_ros.settings.params_file import read_params_file
try:
    print(read_params_file(Path({str(source / "cones.yaml")!r})).dnns["cones"].decoder)
except ValueError as error:
    print(error)
"""
    assert run(code, target).strip() == "centers"
    refused = run(code, source / "none")
    assert "dnn.cones.decoder is 'centers'; allowed: auto, torchvision, yolo, grid, segmentation, lane" in refused


def test_the_result_kind_makes_its_message_and_draws(package: tuple[Path, Path]) -> None:
    code = """
import sys
import numpy as np
import multi_dnn_ros.ros
from multi_dnn_ros.vision.drawing import draw
from multi_dnn_ros.vision.result_kind import RESULT_KINDS, Layer
from my_package.heading import Heading
from std_msgs.msg import Header
kind = RESULT_KINDS.get("heading")
message = kind.topics[0].message(Heading(3.0, 4.0, 0.5), Header(frame_id="camera"))
print(message.header.frame_id, message.point.x, message.point.y, message.point.z)
print(draw(np.zeros((48, 64, 3), np.uint8), [Layer("road", kind, Heading(32.0, 10.0, 0.5))]).any())
print("torch" in sys.modules)
"""
    assert run(code, package[1]).split("\n")[:3] == ["camera 3.0 4.0 0.5", "True", "False"]


_SERVED = """
import torch
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.pipeline.build import make_task
from multi_dnn_ros.pipeline.extension_tables import markdown
from multi_dnn_ros.pipeline.choices import choose_backend
from multi_dnn_ros.settings.schema import DnnConfig
cpu = torch.device("cpu")
config = DnnConfig(role="traffic_cone", model="company:cones", backend="channels_last", jobs=2)
dnn = load_dnn("cones", config)
task = make_task(dnn, config, ("front",), choose_backend(config.backend, cpu, config.precision), cpu)
carried = task.preprocess(torch.full((48, 64, 3), 128, dtype=torch.uint8))
with torch.inference_mode():
    expected = dnn.module(*carried)
    for stage in task.stages:
        carried = stage(carried)
print(len(task.stages), torch.allclose(carried[0], expected, atol=1e-5))
print(markdown())
"""


def test_the_backend_runs_the_network_of_the_model_source_and_the_tables_list_them(printed: tuple[str, str]) -> None:
    found, _, text = printed[1].partition("\n")
    assert found == "2 True"
    for row in (
        "| `centers` | (1, classes + 2, rows, columns) | `detections` |",
        "| `heading` | `heading` (geometry_msgs/msg/PointStamped) | no |",
        "| `channels_last` | cpu: auto, fp32, bf16 | no | no |",
        "| `company` | company:cones | no |",
    ):
        assert row in text


def test_the_tables_are_those_of_the_registries() -> None:
    assert in_document(PAGE) == PAGE, "run python -m multi_dnn_ros.pipeline.extension_tables --write"
