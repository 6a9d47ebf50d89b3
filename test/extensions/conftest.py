"""Other packages, installed where only the processes of these tests find them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import multi_dnn_ros.ros  # noqa: F401  makes the message packages importable

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that pip has installed the toy package into."""
    source = tmp_path_factory.mktemp("source") / "toy_package"  # setuptools builds inside the source tree
    shutil.copytree(HERE / "toy_package", source)
    target = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(source)], check=True, timeout=120)
    return target


@pytest.fixture(scope="session")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an installed package all of whose extensions are wrong, each in another way."""
    target = tmp_path_factory.mktemp("broken")
    module = target / "broken_extension.py"
    module.write_text("from multi_dnn_ros.vision.result_kind import RESULT_KINDS\nNUMBER = 3\n")
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
        "other_name = toy_extension.kind:KIND\n"
    )
    return target
