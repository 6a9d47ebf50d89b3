"""Writes the list of rclpy's names that the standalone runtime lacks into docs/standalone.md.

    python test/standalone/rclpy_suite/unclaimed.py <checkout of ros2/rclpy, branch jazzy>

rclpy's part is read from its sources, the runtime's from its modules and classes; neither is listed by hand.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final

from multi_dnn_ros import standalone
from multi_dnn_ros.common.reporting import write_text
from multi_dnn_ros.standalone.surface import SURFACE

ROOT: Final = Path(__file__).resolve().parents[3]
PAGE: Final = ROOT / "docs" / "standalone.md"
BEGIN: Final = "<!-- begin of the generated list -->"
END: Final = "<!-- end of the generated list -->"
# Not for programs: the C binding and what wraps it, types for type checkers, and the tests' own helpers.
_INTERNAL: Final = ("rclpy.impl", "rclpy.experimental", "rclpy.destroyable", "rclpy._")

Names = dict[str, list[str]]


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, (ast.If, ast.Try)):
            if "TYPE_CHECKING" not in ast.dump(getattr(statement, "test", ast.Pass())):
                yield from _statements(statement.body)
        else:
            yield statement


def _defined(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    for statement in _statements(body):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement.name, statement
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, statement


def _attributes(cls: type) -> set[str]:
    names = set(dir(cls))
    for base in cls.__mro__:
        if base.__module__.startswith("multi_dnn_ros"):
            names |= set(re.findall(r"self\.(\w+)(?:: [^=\n]+)? = ", inspect.getsource(base)))
    return names


def _is_public(name: str) -> bool:
    return not name.startswith("_") and not re.fullmatch(r"[A-Z]\w*(T|Type|Typed|Dictionary)|T", name)


def missing_names(sources: Path) -> Names:
    """Return rclpy's public names that the runtime lacks: module or class -> names, none for a whole module."""
    found: Names = {}
    for path in sorted(sources.rglob("*.py")):
        module = ".".join(("rclpy", *path.relative_to(sources).with_suffix("").parts)).removesuffix(".__init__")
        if module.startswith(_INTERNAL):
            continue
        if module not in SURFACE:
            parent = module.rpartition(".")[0]
            if parent in SURFACE and parent != "rclpy":
                continue  # a submodule whose names its package exports
            if parent not in found:
                found[module] = []
            continue
        for name, statement in _defined(ast.parse(path.read_text(encoding="utf-8")).body):
            if not _is_public(name):
                continue
            if name not in SURFACE[module]:
                found.setdefault(module, []).append(name)
            elif isinstance(statement, ast.ClassDef):
                _add_members(found, module, statement)
    return {owner: sorted(set(names)) for owner, names in found.items()}


def _add_members(found: Names, module: str, definition: ast.ClassDef) -> None:
    runtime_class = getattr(importlib.import_module(module), definition.name)
    known = _attributes(runtime_class) if isinstance(runtime_class, type) else set()
    for name, _ in _defined(definition.body):
        if _is_public(name) and (name == "handle" or (name not in known and not hasattr(runtime_class, name))):
            found.setdefault(f"{module}.{definition.name}", []).append(name)


def refused_arguments() -> Names:
    """Return the arguments that the runtime knows and refuses: function -> arguments, read from calls of `refuse`."""
    found: Names = {}
    for path in sorted((ROOT / "multi_dnn_ros" / "standalone").glob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "refuse" and call.args:
                where = call.args[0]
                name = where.value if isinstance(where, ast.Constant) else "message classes"
                found.setdefault(str(name), []).extend(str(entry.arg) for entry in call.keywords)
    return found


def listing(sources: Path) -> str:
    """Return the list as Markdown."""
    lines = ["Modules:", ""]
    names = missing_names(sources)
    lines += [f"- `{owner}`" for owner, members in names.items() if not members]
    lines += ["", "Names of modules and members of classes:", ""]
    lines += [f"- `{owner}`: {', '.join(f'`{name}`' for name in kept)}" for owner, kept in names.items() if kept]
    lines += ["", "Arguments:", ""]
    lines += [f"- `{where}`: {', '.join(f'`{name}`' for name in kept)}" for where, kept in refused_arguments().items()]
    return "\n".join(lines)


def main() -> int:
    """Write the list into the page."""
    standalone.install()
    folder = Path(sys.argv[1])
    sources = folder / "rclpy" / "rclpy"
    if not sources.is_dir():
        raise SystemExit(f"{folder} is not a checkout of ros2/rclpy: it has no folder rclpy/rclpy")
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    text = f"{before}{BEGIN}\n\n{listing(sources)}\n\n{END}{rest.split(END)[1]}"
    write_text(PAGE, text)
    return 0


def entries(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yield what the page lists: owner and names, none for a whole module; the arguments are left out."""
    generated = page.split(BEGIN)[1].split(END)[0].split("Arguments:")[0]
    for owner, rest in re.findall(r"^- `([\w.]+)`(.*)$", generated, re.MULTILINE):
        yield owner, re.findall(r"`(\w+)`", rest)


def touch(owner: str, name: str) -> Any:
    """Use a name of the list as a program would: `owner` is a module, or a module and its class; "" imports a module.

    Raises:
        ImportError, AttributeError: says that the runtime does not have the name.
    """
    if not name:
        return importlib.import_module(owner)
    if owner in SURFACE:
        return getattr(importlib.import_module(owner), name)
    module, _, cls = owner.rpartition(".")
    kind = getattr(importlib.import_module(module), cls)
    return getattr(kind if issubclass(kind, Enum) else object.__new__(kind), name)


if __name__ == "__main__":
    sys.exit(main())
