"""The folders show the architecture: what each package may import, and that imports go one way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "multi_dnn_ros"

#: What a package may import of ours, besides itself. From the bottom to the top: none imports one further down.
ALLOWED: dict[str, set[str]] = {
    "common": set(),
    "settings": {"common"},
    "standalone": set(),
    "vision": {"common"},
    "graph": {"common"},
    "models": {"common", "settings", "vision"},
    "backends": {"common"},
    "engine": {"backends"},
    "planning": {"common", "graph", "models", "backends", "engine"},
    "pipeline": {"common", "settings", "vision", "graph", "models", "backends", "engine", "planning"},
    "serving": {"common", "settings", "backends", "engine", "planning", "pipeline"},
    "compression": {"common", "models", "planning"},
    "training": {"common", "settings", "vision", "models", "compression", "planning"},
    "profiling": {"common", "graph", "models", "backends", "planning"},
    "partition": {"common", "backends", "planning", "pipeline", "serving", "profiling"},
    "ros": {"common", "settings", "vision", "standalone", "engine", "serving"},
    "bags": {"common", "ros"},
    "camera": {"common", "vision", "training", "ros", "bags"},
    "replay": {"common", "settings", "vision", "engine", "ros", "bags", "camera"},
    "demo": {"common", "settings", "vision", "models", "compression", "training", "ros", "bags", "camera"},
    "benchmark": {"*"},
    "cli": {"*"},
}  # fmt: skip
#: Folders of test/ that are no package: on a GPU, on a real ROS 2, of launch/, of the repository as a whole, of inputs
#: that mean harm; and what several folders import.
OTHER_TESTS = {"docs", "extensions", "gpu", "real_ros", "launch", "package", "security", "support"}
#: Entry points of setup.py.
ENTRY_POINTS = {"__init__", "executable"}
#: Whole packages, and single modules of others, that speak ROS; nothing else imports rclpy or messages.
SPEAK_ROS = ("ros", "standalone", "bags", "camera", "replay", "demo", "benchmark", "cli")


@cache
def modules() -> dict[str, ast.Module]:
    """Every module by its full name; a package by its own."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text(), str(path))
    return found


def imported_names(tree: ast.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(module, names taken from it) of every import, also of those in functions and for type checking."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, tuple(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ()


def imports_of(name: str) -> set[str]:
    """Our modules that a module imports; of `from package import module` the module."""
    found = set()
    for module, names in imported_names(modules()[name]):
        if module.split(".")[0] == PACKAGE:
            within = {f"{module}.{each}" for each in names} & modules().keys()
            found |= within
            if module in modules() and (not names or len(within) < len(names)):
                found.add(module)
    return found - {name}


def package_of(name: str) -> str:
    """`engine` of multi_dnn_ros.engine.queue; empty for the top."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def test_every_package_is_in_the_table_and_nothing_lies_loose():
    folders = {path.parent.name for path in (ROOT / PACKAGE).glob("*/__init__.py")}
    assert folders == set(ALLOWED)
    assert {path.stem for path in (ROOT / PACKAGE).glob("*.py")} == ENTRY_POINTS


def test_the_folders_of_the_tests_are_the_packages():
    folders = {path.name for path in (ROOT / "test").iterdir() if any(path.glob("*.py"))}
    assert folders - OTHER_TESTS == set(ALLOWED)


def test_the_table_goes_one_way():
    order = list(ALLOWED)
    for package, others in ALLOWED.items():
        for other in others - {"*"}:
            assert order.index(other) < order.index(package), f"{package} may not import {other}: it is above it"


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_the_table_allows(package: str):
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


def test_the_table_allows_nothing_that_nobody_imports():
    for package, allowed in ALLOWED.items():
        used = {package_of(other) for name in modules() if package_of(name) == package for other in imports_of(name)}
        assert allowed - {"*"} <= used, f"{package} does not import {', '.join(sorted(allowed - used))}"


def test_no_modules_import_each_other_in_a_circle():
    waiting = {name: imports_of(name) for name in modules()}
    while leaves := {name for name, others in waiting.items() if not others & waiting.keys()}:
        waiting = {name: others for name, others in waiting.items() if name not in leaves}
    # What is left is in circles, or imports one that is: without the latter the circles show.
    while above := waiting.keys() - {other for others in waiting.values() for other in others}:
        waiting = {name: others for name, others in waiting.items() if name not in above}
    assert not waiting, "\n".join(f"{name} -> {', '.join(sorted(o & waiting.keys()))}" for name, o in waiting.items())


def test_rclpy_and_messages_are_imported_where_ros_is_spoken():
    for name, tree in modules().items():
        for module, _ in imported_names(tree):
            speaks = module.split(".")[0] == "rclpy" or module.split(".")[0].endswith("_msgs")
            assert not speaks or package_of(name) in SPEAK_ROS, f"{name} imports {module}"
