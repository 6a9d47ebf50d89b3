"""Measure the size of an installation: megabytes on disk of serving and of each extra, and import times.

Run it in an environment made by `make install`, whose packages it inspects:

    .venv/bin/python tools/install_size.py --before REVISION --output results/install_size.json

REVISION is a git revision for comparison; code that it cannot run, because modules have other names there, is left out
of its figures. Megabytes are 10^6 bytes of the files installed by pip. Import seconds are
the sum reported by `python -X importtime`: the minimum of several processes, which other load affects least.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "multi-dnn-ros"
#: Import names of libraries that the node must not import.
OPTIONAL = ("matplotlib", "onnx", "onnx2torch", "pycocotools", "scipy", "sklearn", "tensorly", "torchmetrics")
_CLI = "import sys; from multi_dnn_ros.cli.main import main; sys.exit(main({}))"
_NODE = """
import multi_dnn_ros.ros.process
from multi_dnn_ros.settings.params_file import read_params_file
from multi_dnn_ros.serving.build import build
from multi_dnn_ros.common.resources import config_file
from multi_dnn_ros.settings.schema import NodeConfig
settings = read_params_file(config_file("multi_dnn.yaml")).model_dump()
build(NodeConfig.model_validate({**settings, "device": "cpu", "dnns": {"lane": settings["dnns"]["lane"]}}))
"""
#: Code whose imports are measured; FOLDER is a temporary folder.
RUNS = {
    "multi-dnn --help": _CLI.format(["--help"]),
    "multi-dnn camera --help": _CLI.format(["camera", "--help"]),
    "node, builtin:lane configured": _NODE,
    "multi-dnn camera scenes": _CLI.format(["camera", "scenes", "--count", "2", "--rate", "50"]),
    "multi-dnn decompose": _CLI.format(["decompose", "builtin:lane", "--output", "FOLDER/lane.safetensors"]),
}
#: Removes the finder of an editable installation, which would find missing modules of a tree in this one.
_ALONE = (
    "import sys; sys.meta_path = [each for each in sys.meta_path if not each.__module__.startswith('__editable__')]\n"
)
_TORCH = "import torch, torchvision"
#: The imported modules of each extra.
IMPORTS = {
    "offline": "scipy.optimize, sklearn.ensemble, sklearn.tree, tensorly.decomposition, pycocotools.cocoeval",
    "onnx": "onnx, onnx2torch",
    "plots": "matplotlib.figure",
}


class MissingModule(RuntimeError):
    """A tree lacks a module of this package, or a name in one."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="HEAD", metavar="REVISION", help="git revision to compare with")
    parser.add_argument("--repeats", type=int, default=5, help="processes for each time (default: %(default)s)")
    parser.add_argument(
        "--cpu", metavar="PYTHON", help="Python of another environment, with serving installed and PyTorch for CPUs"
    )
    parser.add_argument("--output", type=Path, metavar="JSON", help="default: only print the size of serving")
    args = parser.parse_args()
    if args.output is None:
        print(json.dumps(serving_sizes(ROOT / "setup.py")))
        return 0
    sys.path.insert(0, str(ROOT))
    from multi_dnn_ros.common.reporting import provenance, write_json

    revision = _git("rev-parse", "--short", args.before).decode().strip()
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder)
        subprocess.run(["tar", "-x", "-C", folder], input=_git("archive", revision), check=True)
        trees = {"before": before, "after": ROOT}
        content = {
            **provenance(),
            "command": f"python tools/install_size.py {shlex.join(sys.argv[1:])}",
            "revision_before": revision,
            "installed_mb": {name: sizes(tree / "setup.py") for name, tree in trees.items()},
            "installed_mb_cpu": _in(args.cpu) if args.cpu else None,
            "imports": {run: imports(trees, code, args.repeats) for run, code in RUNS.items()},
            "import_s_of_extras": {extra: seconds(modules, args.repeats) for extra, modules in IMPORTS.items()},
        }  # fmt: skip
    content["versions"].update({name: metadata.version(name) for name in sorted(_all_installed(trees["after"]))})
    write_json(args.output, content)
    print(f"written to {args.output}")
    return 0


def serving_sizes(setup: Path) -> dict[str, Any]:
    """Megabytes that `pip install` of a setup.py without extras needs, measured in the running environment.

    "pytorch" is the part that torch and torchvision need, and "cuda" the part of it that only a GPU needs.
    """
    serving, _ = requirements(setup)
    base = closure(serving)
    torch = closure([each for each in serving if each.name in ("torch", "torchvision")])
    cuda = {name for name in torch if name.startswith(("nvidia-", "cuda-")) or name == "triton"}
    return {
        "serving": megabytes(base),
        "pytorch": megabytes(torch),
        "cuda": megabytes(cuda),
        "serving_without_pytorch": megabytes(base - torch),
        "torch": metadata.version("torch"),
        "packages": sorted(base),
    }


def sizes(setup: Path) -> dict[str, Any]:
    """What serving_sizes returns, and what each extra adds to serving."""
    serving, extras = requirements(setup)
    base = closure(serving)
    return {
        **serving_sizes(setup),
        "extras": {
            extra: {"adds": megabytes(added), "packages": sorted(added)}
            for extra, needed in extras.items()
            for added in [closure(needed) - base]
        },
    }


def requirements(setup: Path) -> tuple[list[Requirement], dict[str, list[Requirement]]]:
    """install_requires and extras_require of a setup.py whose lists are literals; references to extras are resolved."""
    (call,) = (
        node
        for node in ast.walk(ast.parse(setup.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "setup"
    )
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    extras: dict[str, list[str]] = ast.literal_eval(given["extras_require"])

    def resolved(texts: Iterable[str]) -> list[Requirement]:
        found = []
        for requirement in map(Requirement, texts):
            if canonicalize_name(requirement.name) == PACKAGE:
                found += [of for extra in sorted(requirement.extras) for of in resolved(extras[extra])]
            else:
                found.append(requirement)
        return found

    return resolved(ast.literal_eval(given["install_requires"])), {name: resolved(of) for name, of in extras.items()}


def closure(roots: Iterable[Requirement]) -> set[str]:
    """Canonical names of `roots` and of all that they need in this environment. Raises PackageNotFoundError."""
    found: set[tuple[str, str]] = set()
    waiting = [(requirement, "") for requirement in roots]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for wanted in ("", *requirement.extras):
            if (name, wanted) not in found:
                found.add((name, wanted))
                waiting += [(Requirement(text), wanted) for text in metadata.requires(name) or ()]
    return {name for name, _ in found}


def megabytes(names: Iterable[str]) -> float:
    """Size of all files that pip installed for these packages."""
    total = 0
    for name in names:
        for file in metadata.files(name) or ():
            path = Path(str(file.locate()))
            total += path.stat().st_size if path.is_file() else 0
    return round(total / 1e6, 1)


def imports(trees: Mapping[str, Path], code: str, repeats: int) -> dict[str, Any]:
    """For each tree, seconds that the imports of `code` take, and which of OPTIONAL and torch are imported.

    The trees take turns, so that other load affects them equally. A tree in which a module of `code` does not exist has
    an entry `error` instead. The last tree must have all.
    """
    times: dict[str, list[float]] = {name: [] for name in trees}
    modules: dict[str, set[str]] = {name: set() for name in trees}
    errors: dict[str, str] = {}
    *_, last = trees
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):
            for name in [name for name in trees if name not in errors]:
                try:
                    rows = _import_times(code.replace("FOLDER", folder), trees[name])
                except MissingModule as error:
                    if name == last:
                        raise
                    errors[name] = str(error)
                    continue
                times[name].append(sum(rows.values()))
                modules[name] |= {module.partition(".")[0] for module in rows}
    return {
        name: {"error": errors[name]}
        if name in errors
        else {
            "import_s": round(min(times[name]), 3),
            "torch": "torch" in modules[name],
            "optional": [library for library in OPTIONAL if library in modules[name]],
        }
        for name in trees
    }


def seconds(names: str, repeats: int) -> float:
    """Seconds that importing modules takes after torch and torchvision. names: separated by commas."""
    known = set(_import_times(_TORCH, ROOT))
    code = f"{_TORCH}; import {names}"
    rows = [_import_times(code, ROOT) for _ in range(repeats)]
    return round(min(sum(own_s for name, own_s in times.items() if name not in known) for times in rows), 3)


def _import_times(code: str, tree: Path) -> dict[str, float]:
    """Seconds by module, without the modules that it imports in turn. tree: folder to import from."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", _ALONE + code],
        cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    rows = re.findall(r"import time: +(\d+) \| +\d+ \| +(\S+)", done.stderr)  # a progress bar may share the line
    missing = re.search(r"^(?:ModuleNotFound|Import)Error: (.*multi_dnn_ros.*)$", done.stderr, re.MULTILINE)
    if done.returncode and missing:
        raise MissingModule(missing[1])
    if done.returncode or not rows:
        raise RuntimeError(f"{code}\nended with {done.returncode}: {done.stderr[-2000:]}")
    return {name: int(own_us) / 1e6 for own_us, name in rows}


def _all_installed(tree: Path) -> set[str]:
    serving, extras = requirements(tree / "setup.py")
    return closure([*serving, *(each for extra in extras.values() for each in extra)])


def _in(python: str) -> Any:
    """The sizes of serving in another environment."""
    return json.loads(subprocess.run([python, __file__], capture_output=True, check=True, text=True).stdout)


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
