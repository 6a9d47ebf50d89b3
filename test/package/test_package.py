"""The package's files agree with each other."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from importlib import metadata
from pathlib import Path

from source_trees import source_trees

import multi_dnn_ros

ROOT = Path(__file__).resolve().parents[2]

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


def test_versions_agree():
    manifest = ElementTree.parse(ROOT / "package.xml").getroot()
    setup = (ROOT / "setup.py").read_text()
    changelog = (ROOT / "CHANGELOG.rst").read_text()
    version = multi_dnn_ros.__version__
    assert manifest.findtext("version") == version
    assert re.search(r'version="([^"]+)"', setup)[1] == version
    assert re.search(r"^(\d+\.\d+\.\d+) \(", changelog, re.M)[1] == version


def test_every_requirement_is_in_the_manifest_under_its_rosdep_key():
    manifest = ElementTree.parse(ROOT / "package.xml").getroot()
    declared = {element.text for element in manifest if element.tag in ("depend", "exec_depend")}
    setup = (ROOT / "setup.py").read_text()
    block = setup[setup.index("install_requires") : setup.index("extras_require")]
    required = set(re.findall(r'"([A-Za-z0-9-]+)', block))
    assert required == set(ROSDEP)
    assert {key for key in ROSDEP.values() if key} <= declared


def test_what_rosdep_does_not_bring_is_asked_of_pip():
    setup = (ROOT / "setup.py").read_text()
    lines = (ROOT / "requirements-ros.txt").read_text().splitlines()
    asked = {line for line in lines if not line.startswith("#")}
    for name in [name for name, key in ROSDEP.items() if key is None]:
        assert re.search(rf'"({name}[<>=][^"]*)"', setup)[1] in asked


def test_optional_libraries_are_test_dependencies_of_the_manifest():
    """rosdep knows no extras: who serves gets none of them, who tests gets those that it has."""
    manifest = ElementTree.parse(ROOT / "package.xml").getroot()
    optional = {"python3-matplotlib", "python3-scipy", "python3-sklearn"}
    assert optional <= {element.text for element in manifest.findall("test_depend")}
    assert not optional & {element.text for element in manifest if element.tag in ("depend", "exec_depend")}


def test_every_ros_import_is_in_the_manifest():
    manifest = ElementTree.parse(ROOT / "package.xml").getroot()
    declared = {element.text for element in manifest if element.tag in ("depend", "exec_depend")}
    sources = [*(ROOT / "multi_dnn_ros").glob("ros/**/*.py"), *(ROOT / "launch").glob("*.py")]
    imported = {
        name
        for source in sources
        for name in re.findall(
            r"^\s*(?:from|import) (rclpy|cv_bridge|\w+_msgs|builtin_interfaces|launch\w*|ament\w*)",
            source.read_text(),
            re.M,
        )
    }
    assert imported <= declared


def test_the_constraints_stay_inside_the_ranges_of_setup_py():
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    requirements = [Requirement(text) for text in metadata.requires("multi_dnn_ros") or []]
    assert len(requirements) > len(ROSDEP)
    for requirement in requirements:
        for pin in (pin for pin in pins if canonicalize_name(pin.name) == canonicalize_name(requirement.name)):
            assert requirement.specifier.contains(str(pin.specifier).removeprefix("==")), (requirement, pin)


def test_the_node_side_of_serving_does_not_import_pytorch():
    """The node's process may import every module but these, which run in the engine's process."""
    engine_side = {"configure", "pinned"}
    folder = ROOT / "multi_dnn_ros" / "serving"
    modules = {".".join(source.relative_to(folder).with_suffix("").parts) for source in folder.rglob("*.py")}
    names = {name for name in modules if not name.endswith("__init__")}
    assert engine_side <= names
    imports = "; ".join(f"import multi_dnn_ros.serving.{name}" for name in sorted(names - engine_side))
    code = f"import sys; {imports}; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).strip() == "False"


def test_syntax_is_3_10_clean():
    """Parsing raises SyntaxError for anything later."""
    assert len(source_trees()) > 300


def test_every_folder_with_code_is_a_package():
    """find_packages leaves out folders without __init__.py: they work in a checkout and are missing once installed."""
    for folder in {source.parent for source in (ROOT / "multi_dnn_ros").rglob("*.py")}:
        assert (folder / "__init__.py").is_file(), folder
