"""The package's files agree with each other."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from source_trees import source_trees
from test_constraints import requirements_of_setup_py

import multi_dnn_ros

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = ElementTree.parse(ROOT / "package.xml").getroot()
SETUP = (ROOT / "setup.py").read_text(encoding="utf-8")
DECLARED = {element.text for element in MANIFEST if element.tag in ("depend", "exec_depend")}
#: rosdep keys of what setup.py requires; None: rosdep does not bring it, pip does (README, installation).
ROSDEP = {
    "filelock": "python3-filelock",
    "numpy": "python3-numpy",
    "opencv-python-headless": "python3-opencv",
    "pillow": "python3-pil",
    "packaging": "python3-packaging",
    "psutil": "python3-psutil",
    "PyYAML": "python3-yaml",
    "setuptools": "python3-setuptools",
    "tqdm": "python3-tqdm",
    "lap": None,
    "mcap": None,
    "onnx": None,
    "onnxruntime": None,
    "pydantic": None,  # there is a key, for a version that is too old on Ubuntu 22.04 and 24.04
    "rosbags": None,
    "safetensors": None,
    "torch": None,
    "torchvision": None,
}


def test_versions_agree() -> None:
    version = multi_dnn_ros.__version__
    assert MANIFEST.findtext("version") == version
    assert f'version="{version}"' in SETUP
    released = re.findall(r"^(\d+\.\d+\.\d+) \(", (ROOT / "CHANGELOG.rst").read_text(encoding="utf-8"), re.M)
    assert released[0] == version


def test_every_requirement_is_brought_by_rosdep_or_asked_of_pip() -> None:
    """rosdep knows no extras: who serves gets no optional library, who tests gets those that it has."""
    block = SETUP[SETUP.index("install_requires") : SETUP.index("extras_require")]
    block += SETUP[SETUP.index('"torch": [') + len('"torch": [') :].partition("]")[0]  # robots may have a GPU
    required = {Requirement(text).name: text for text in re.findall(r'"([A-Za-z][^"]*)"', block)}
    assert set(required) == set(ROSDEP)
    assert {key for key in ROSDEP.values() if key} <= DECLARED
    asked = (ROOT / "requirements-ros.txt").read_text(encoding="utf-8").splitlines()
    assert {required[name] for name, key in ROSDEP.items() if key is None} <= set(asked)
    optional = {"python3-matplotlib", "python3-scipy", "python3-sklearn"}
    assert optional <= {element.text for element in MANIFEST.findall("test_depend")}
    assert not optional & DECLARED


def test_every_ros_import_is_in_the_manifest() -> None:
    pattern = r"^\s*(?:from|import) (rclpy|cv_bridge|\w+_msgs|builtin_interfaces|launch\w*|ament\w*)"
    sources = [*(ROOT / "multi_dnn_ros").glob("ros/**/*.py"), *(ROOT / "launch").glob("*.py")]
    assert {name for source in sources for name in re.findall(pattern, source.read_text(), re.M)} <= DECLARED


def test_the_constraints_stay_inside_the_ranges_of_setup_py() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    for requirement in requirements_of_setup_py():
        found = [pin for pin in pins if canonicalize_name(pin.name) == canonicalize_name(requirement.name)]
        assert found, requirement
        for pin in found:
            assert requirement.specifier.contains(str(pin.specifier).removeprefix("==")), (requirement, pin)


def test_the_node_side_of_serving_does_not_import_pytorch() -> None:
    """The node's process may import every module but these, which run in the engine's process."""
    folder = ROOT / "multi_dnn_ros" / "serving"
    names = {source.stem for source in folder.glob("*.py")} - {"__init__", "configure", "torch_task"}
    imports = "; ".join(f"import multi_dnn_ros.serving.{name}" for name in sorted(names))
    code = f"import sys; {imports}; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).strip() == "False"


def test_folders_with_code_are_packages_in_the_syntax_of_python_3_10() -> None:
    """find_packages leaves out folders without __init__.py: they work in a checkout and are missing once installed."""
    for folder in {source.parent for source in source_trees()}:  # parsing raises SyntaxError for anything later
        assert (folder / "__init__.py").is_file(), folder
