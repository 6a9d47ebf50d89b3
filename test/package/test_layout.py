"""The layout of the packages: what each one may import, and that imports run in one direction."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from source_trees import source_trees

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "multi_dnn_ros"

#: Our packages that a package may import, besides itself, from bottom to top: each imports only those listed above it.
ALLOWED: dict[str, set[str]] = {
    "common": set(),
    "settings": {"common"},
    "vision": {"common"},
    "decoders": {"common", "vision"},
    "graph": {"common"},
    "models": {"common", "settings", "vision", "decoders"},
    "backends": {"common", "graph"},
    "engine": {"common", "backends"},
    "planning": {"common", "graph", "models", "backends", "engine"},
    "pipeline": {"common", "settings", "vision", "decoders", "graph", "models", "backends", "engine", "planning"},
    "serving": {"common", "settings", "backends", "engine", "planning", "pipeline"},
    "compression": {"common", "models", "planning"},
    "training": {"common", "settings", "vision", "decoders", "models", "planning"},
    "profiling": {"common", "graph", "models", "backends", "planning"},
    "partition": {"common", "graph", "models", "backends", "planning", "pipeline"},
    "fleet": {"common", "settings", "models", "training"},
    "ros": {"common", "settings", "vision", "engine", "serving"},
    "replay": {"common", "settings", "vision", "decoders", "engine", "pipeline", "ros"},
    "camera": {"common", "vision", "training", "ros"},
    "demo": {"common", "settings", "vision", "models", "engine", "compression", "training", "ros", "camera", "replay"},
    "benchmark": {"*"},
    "cli": {"*"},
}  # fmt: skip
#: Folders of test/ without a package of that name: the black-box suite, tests on a GPU, of launch/, of the documents,
#: of the repository as a whole, of malicious inputs, of extensions; and `support`, which several folders import.
OTHER_TESTS = {"acceptance", "docs", "extensions", "gpu", "launch", "package", "security", "support"}
#: Entry points of setup.py.
ENTRY_POINTS = {"__init__", "executable"}
#: Packages that may import rclpy and message packages.
ROS_PACKAGES = ("ros", "camera", "replay", "demo", "benchmark", "cli")


@cache
def modules() -> dict[str, ast.Module]:
    """Syntax trees of all modules and packages by qualified name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): tree
        for path, tree in source_trees().items()
    }


def imported_names(tree: ast.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(module, imported names) of every import, including those inside functions and for type checking."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, tuple(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ()


@cache
def imports_of(name: str) -> set[str]:
    """Our modules that a module imports; for `from package import module` the module."""
    found = set()
    for module, names in imported_names(modules()[name]):
        if module.split(".")[0] == PACKAGE:
            within = {f"{module}.{each}" for each in names} & modules().keys()
            found |= within
            if module in modules() and (not names or len(within) < len(names)):
                found.add(module)
    return found - {name}


def package_of(name: str) -> str:
    """`engine` for multi_dnn_ros.engine.queue; "" for the top level."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def references() -> Iterator[tuple[str, str]]:
    """(module, reference) of every string "multi_dnn_ros.module:name": imported by name, see common/extensions.py."""
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and re.fullmatch(rf"{PACKAGE}(\.\w+)+:\w+", str(node.value)):
                yield name, str(node.value)


def defined_names(tree: ast.Module) -> set[str]:
    """Names defined at the top level of a module."""
    found = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def test_every_package_is_listed_and_no_other_module_is_at_the_top_level():
    folders = {path.parent.name for path in (ROOT / PACKAGE).glob("*/__init__.py")}
    assert folders == set(ALLOWED)
    assert {path.stem for path in (ROOT / PACKAGE).glob("*.py")} == ENTRY_POINTS


def test_test_folders_mirror_the_packages():
    folders = {path.name for path in (ROOT / "test").iterdir() if any(path.glob("*.py"))}
    assert folders - OTHER_TESTS == set(ALLOWED)


def test_no_two_test_files_have_the_same_name():
    """pytest imports test files by name and refuses a second one of the same name, but only if it collects both."""
    folders: dict[str, list[str]] = {}
    for path in sorted((ROOT / "test").rglob("*.py")):
        if path.name not in ("__init__.py", "conftest.py"):
            folders.setdefault(path.name, []).append(path.parent.name)
    assert not {name: found for name, found in folders.items() if len(found) > 1}


def test_allowed_imports_run_in_one_direction():
    order = list(ALLOWED)
    for package, others in ALLOWED.items():
        for other in others - {"*"}:
            assert order.index(other) < order.index(package), f"{package} may not import {other}, which is above it"


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_allowed_packages(package: str):
    allowed = ALLOWED[package]
    below = set(list(ALLOWED)[: list(ALLOWED).index(package)])
    wrong = [
        f"{name} imports {other}"
        for name in modules()
        if package_of(name) == package
        for other in sorted(imports_of(name))
        if package_of(other) not in ({"", package} | (below if "*" in allowed else allowed))
    ]
    assert not wrong


def test_every_allowed_import_is_used():
    for package, allowed in ALLOWED.items():
        used = {package_of(other) for name in modules() if package_of(name) == package for other in imports_of(name)}
        assert allowed - {"*"} <= used, f"{package} does not import {', '.join(sorted(allowed - used))}"


def test_imports_are_absolute():
    """The other tests do not resolve relative imports."""
    relative = [
        name
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not relative


def test_references_by_name_exist():
    found = list(references())
    assert len(found) > 10
    for name, reference in found:
        module, _, attribute = reference.partition(":")
        assert module in modules(), f"{name} refers to {reference}"
        assert attribute in defined_names(modules()[module]), f"{name} refers to {reference}"


def test_there_are_no_import_cycles():
    waiting = {name: imports_of(name) for name in modules()}
    while leaves := {name for name, others in waiting.items() if not others & waiting.keys()}:
        waiting = {name: others for name, others in waiting.items() if name not in leaves}
    # The rest is in cycles or imports modules in cycles: remove the latter.
    while above := waiting.keys() - {other for others in waiting.values() for other in others}:
        waiting = {name: others for name, others in waiting.items() if name not in above}
    assert not waiting, "\n".join(f"{name} -> {', '.join(sorted(o & waiting.keys()))}" for name, o in waiting.items())


def test_only_ros_packages_import_rclpy_and_messages():
    for name, tree in modules().items():
        for module, _ in imported_names(tree):
            is_ros = module.split(".")[0] == "rclpy" or module.split(".")[0].endswith("_msgs")
            assert not is_ros or package_of(name) in ROS_PACKAGES, f"{name} imports {module}"
