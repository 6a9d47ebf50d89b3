"""The layout of the packages: what each one may import, and that imports run in one direction."""

from __future__ import annotations

import ast
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
    "models": {"common", "settings", "vision", "decoders"},
    "backends": {"common", "vision", "models"},
    "engine": {"common", "vision", "backends"},
    "planning": {"common", "models", "backends", "engine"},
    "serving": {"common", "settings", "vision", "decoders", "models", "backends", "engine", "planning"},
    "compression": {"common", "models", "planning"},
    "training": {"common", "settings", "vision", "decoders", "models", "planning"},
    "profiling": {"common", "models", "backends", "planning"},
    "partition": {"common", "models", "backends", "planning", "serving"},
    "fleet": {"common", "settings", "models", "training"},
    "ros": {"common", "settings", "vision", "engine", "serving"},
    "replay": {"common", "settings", "vision", "engine", "serving", "ros"},
    "camera": {"common", "vision", "training", "ros"},
    "demo": {"common", "settings", "vision", "models", "engine", "training", "ros", "camera", "replay"},
    "benchmark": {"*"},
    "cli": {"*"},
}  # fmt: skip
#: Folders of test/ without a package of that name: the black-box suite, tests on a GPU, of launch/, of the documents,
#: of the repository as a whole, of malicious inputs, of extensions; and `support`, which several folders import.
OTHER_TESTS = {"acceptance", "docs", "extensions", "gpu", "launch", "package", "security", "support"}
#: Packages that may import rclpy and message packages.
ROS_PACKAGES = ("ros", "camera", "replay", "demo", "benchmark", "cli")


@cache
def modules() -> dict[str, ast.Module]:
    """Syntax trees of all modules and packages by qualified name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): tree
        for path, tree in source_trees().items()
    }


def imports(name: str) -> Iterator[str]:
    """Modules that a module imports, also inside functions and for type checking; of a package's names, the modules."""
    for node in ast.walk(modules()[name]):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} has a relative import"
            within = {f"{node.module}.{alias.name}" for alias in node.names} & modules().keys()
            yield from within
            if len(within) < len(node.names):
                yield str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@cache
def own_imports(name: str) -> set[str]:
    return set(imports(name)) & modules().keys() - {name}


def package_of(name: str) -> str:
    """`engine` for multi_dnn_ros.engine.queue; "" for the top level."""
    return (*name.split("."), "")[1]


def test_packages_and_test_folders_are_those_listed_here() -> None:
    assert {path.parent.name for path in (ROOT / PACKAGE).glob("*/__init__.py")} == set(ALLOWED)
    folders = {path.name for path in (ROOT / "test").iterdir() if any(path.glob("*.py"))}
    assert folders - OTHER_TESTS <= set(ALLOWED)


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_allowed_packages(package: str) -> None:
    below = set(list(ALLOWED)[: list(ALLOWED).index(package)])
    allowed = below if "*" in ALLOWED[package] else ALLOWED[package]
    assert allowed <= below, "what a package may import is listed above it"
    wrong = [
        f"{name} imports {other}"
        for name in modules()
        if package_of(name) == package
        for other in own_imports(name)
        if package_of(other) not in {"", package, *allowed}
    ]
    assert not wrong


def test_there_are_no_import_cycles() -> None:
    waiting = {name: own_imports(name) for name in modules()}
    while leaves := {name for name, others in waiting.items() if not others & waiting.keys()}:
        waiting = {name: others for name, others in waiting.items() if name not in leaves}
    # The rest is in cycles or imports modules in cycles.
    assert not waiting, "\n".join(f"{name} -> {', '.join(sorted(o & waiting.keys()))}" for name, o in waiting.items())


def test_only_ros_packages_import_rclpy_and_messages() -> None:
    for name in modules():
        for module in imports(name):
            top = module.partition(".")[0]
            is_ros = top == "rclpy" or top.endswith("_msgs")
            assert not is_ros or package_of(name) in ROS_PACKAGES, f"{name} imports {module}"
