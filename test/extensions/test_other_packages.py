"""The package of docs/extending.md, installed beside one whose extensions are all wrong: its code and commands work as
printed there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from extension_tables import in_document
from fork_server import ForkServer

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.S)
FILE = re.compile(r"# file: (\S+)\n")


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder with the page's files, and where the page's bash commands installed the package."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    for _, text in BLOCKS:
        if match := FILE.match(text):
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


@pytest.fixture(scope="session")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an installed package all of whose extensions are wrong, each in another way."""
    target = tmp_path_factory.mktemp("broken")
    (target / "broken_extension.py").write_text("NUMBER = 3\n")
    info = target / "broken_extension-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-extension\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text(
        "[multi_dnn_ros.decoders]\n"
        "yolo = broken_extension:NUMBER\n"
        "absent = module_that_is_not_there:SPEC\n"
        "number = broken_extension:NUMBER\n"
        "[multi_dnn_ros.backends]\n"
        "nameless = broken_extension:NOTHING\n"
        "[multi_dnn_ros.result_kinds]\n"
        "other_name = my_package.heading:KIND\n"
    )
    return target


def run(code: str, *folders: Path) -> str:
    """The output of a process that finds the packages in `folders`."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (*map(str, folders), str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def run_forked(server: ForkServer, code: str, *folders: Path) -> str:
    """The output of a process that finds the packages in `folders` and has already imported PyTorch."""
    begin = f"""
import sys
sys.path[:0] = {list(map(str, folders))}
for name in [name for name in sys.modules if name.partition(".")[0] == "multi_dnn_ros"]:
    del sys.modules[name]  # its parameters list the extensions that were installed when it was imported
"""
    done = server.run([sys.executable, "-c", begin + code], timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


_SERVE = """
from pathlib import Path
from multi_dnn_ros.benchmark.rig import CameraPlan, Rig
from multi_dnn_ros.settings.params_file import read_params_file
folder = Path({folder!r})
with Rig(folder, read_params_file(folder / "cones.yaml"), [CameraPlan("front", (64, 64), "rgb8", 5.0)]) as rig:
    rig.start_cameras()  # returns when results have arrived
    print(rig.result_topic("cones", "front"), "libtorch" in Path(f"/proc/{{rig.node.pid}}/maps").read_text())
print(rig.node.log.read_text())
"""


def test_the_node_serves_its_extensions_and_names_those_that_are_wrong(
    package: tuple[Path, Path], broken: Path, tmp_path: Path
) -> None:
    parameters = (package[0] / "cones.yaml").read_text()
    (tmp_path / "cones.yaml").write_text(
        parameters.replace("cones.onnx", "company:cones") + "        backend: channels_last\n"
    )
    first, _, log = run(_SERVE.format(folder=str(tmp_path)), package[1], broken).partition("\n")
    assert first == "('/multi_dnn/front/cones/detections', 'vision_msgs/msg/Detection2DArray') False"
    wrong = ("decoder 'yolo'", "decoder 'absent'", "decoder 'number'", "backend 'nameless'", "result kind 'other_name'")
    assert [what for what in wrong if f"{what} of broken-extension" not in log] == []


def test_the_result_kind_makes_its_message_and_draws_without_pytorch(package: tuple[Path, Path]) -> None:
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
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.serving.build import make_task
from extension_tables import markdown
from multi_dnn_ros.serving.choices import choose_backend
from multi_dnn_ros.settings.schema import DnnConfig
for settings in {"model": "sofa"}, {"model": "company:sofa"}:
    try:
        load_dnn("x", DnnConfig(role="traffic_cone", **settings))
    except ModelError as error:
        print(error)
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


@pytest.fixture(scope="module")
def printed(package: tuple[Path, Path], fork_server: ForkServer) -> tuple[str, str]:
    """The output of the examples, and that of _SERVED."""
    examples = [text for language, text in BLOCKS if language == "python" and not FILE.match(text)]
    code = f"for text in {examples!r}: exec(text, {{}})\nprint('====')\n{_SERVED}"
    first, _, second = run_forked(fork_server, code, package[1]).partition("====\n")
    return first, second


def test_the_examples_run_and_print_what_the_page_says(printed: tuple[str, str]) -> None:
    lines = printed[0].splitlines()
    assert lines == ["[[200. 160. 360. 240.]]", "centers detections ('cone',)"]
    assert f"`{lines[0]}`" in PAGE


def test_the_backend_runs_the_network_and_errors_and_tables_list_the_extensions(printed: tuple[str, str]) -> None:
    source, name, served, text = printed[1].split("\n", 3)
    assert source.startswith("parameter dnn.x.model is 'sofa'; allowed: builtin:lane")
    assert "company:cones" in source
    assert name == "parameter dnn.x.model is 'company:sofa'; allowed: company:cones"
    assert served == "2 True"
    for row in (
        "| `centers` | (1, classes + 2, rows, columns) | `detections` |",
        "| `heading` | `heading` (geometry_msgs/msg/PointStamped) | no |",
        "| `channels_last` | cpu: auto, fp32, bf16 | no | no |",
        "| `company` | company:cones | no |",
    ):
        assert row in text


def test_the_tables_of_the_page_are_those_of_the_registries() -> None:
    assert in_document(PAGE) == PAGE, "run python tools/extension_tables.py --write"
