"""Serving needs no optional library, and whatever needs one names the extra that brings it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from source_trees import source_trees

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.extras import EXTRA_OF, MissingExtra, optional

ROOT = Path(__file__).resolve().parents[2]
#: Top-level modules that neither setup.py nor an extra brings: those of ROS 2, and of Python 3.14's standard library.
BROUGHT_OTHERWISE = re.compile(
    r"rclpy|cv_bridge|\w+_msgs|\w+_srvs|\w+_interfaces|rosidl_\w+|rpyutils|ament_\w+|compression"
)
SERVE = """
import sys
import multi_dnn_ros.ros.process
from multi_dnn_ros.settings.params_file import read_params_file
from multi_dnn_ros.serving.build import build
from multi_dnn_ros.common.resources import config_file
config = read_params_file(config_file("multi_dnn_small.yaml"))
chosen = {name: config.dnns[name] for name in ("lane", "object")}  # lanes and boxes: all kinds of built-in DNNs
config = config.model_validate({**config.model_dump(), "device": "cpu", "dnns": chosen})
print(len(build(config).dnns), *sorted({name.partition(".")[0] for name in sys.modules}))
"""


def python(code: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A Python process on this tree."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=False,
        timeout=240, **options,
    )  # fmt: skip


def names(requirements: Iterable[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def extras() -> dict[str, set[str]]:
    """Names of the libraries of each extra of setup.py ("": of serving), without extras of this package."""
    text = re.sub(r"#.*", "", (ROOT / "setup.py").read_text(encoding="utf-8"))
    lists = {"": text[text.index("install_requires=[") : text.index("extras_require=")]}
    lists |= dict(re.findall(r'"(\w+)": \[(.*?)\],\n', text[text.index("extras_require=") :], re.S))
    return {extra: names(re.findall(r'"([A-Za-z][\w-]*)[<>=; "]', listed)) for extra, listed in lists.items()}


def imported(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Top-level modules that a file imports, and whether that is in `with optional(...)`, in a block that goes on
    without them, or for types.
    """
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, guarded = waiting.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], guarded) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0], guarded
        elif isinstance(node, ast.Try):
            guarded = True
        elif isinstance(node, ast.With):
            guarded = guarded or ast.unparse(node.items[0]).startswith(("optional(", "suppress("))
        elif isinstance(node, ast.If):
            guarded = guarded or (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING")
        if not isinstance(node, ast.expr):
            waiting += ((child, guarded) for child in ast.iter_child_nodes(node))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not know which package has most modules")
def test_what_is_imported_is_required_or_in_its_extra() -> None:
    packages = {library: names(found) for library, found in metadata.packages_distributions().items()}
    assert [library for library, extra in EXTRA_OF.items() if not packages[library] & extras()[extra]] == []
    serving = extras()[""]
    serving |= {name for each in serving for name in names(metadata.requires(each) or ())}
    for source, tree in source_trees().items():
        for name, guarded in imported(tree):
            if name in sys.stdlib_module_names or name == "multi_dnn_ros" or BROUGHT_OTHERWISE.fullmatch(name):
                continue
            if EXTRA_OF.get(name) == "torch":  # who imports such a module needs it; see registry and the tests below
                continue
            assert guarded or name not in EXTRA_OF, f"{source}: import {name} inside a function, within extras.optional"
            assert guarded or packages[name] & serving, f"{source} imports {name}, which setup.py does not require"


def test_serving_builtin_dnns_imports_no_optional_library() -> None:
    done = python(SERVE)
    assert done.returncode == 0, done.stderr
    served, *modules = done.stdout.splitlines()[-1].split()
    assert int(served) == 2
    assert set(modules) & set(EXTRA_OF) == set()


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"]], ids=" ".join)
def test_help_does_without_pytorch(arguments: list[str]) -> None:
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); from multi_dnn_ros.cli.main import main; "
    done = python(f"{code} main({arguments})")
    assert done.returncode == 0, done.stderr
    assert "usage: multi-dnn" in done.stdout
    assert {"torch", "cv2", "numpy", *EXTRA_OF} & set(done.stdout.splitlines()[-1].split()) == set()


DECOMPOSE = ["decompose", "builtin:lane", "--output", "out.safetensors"]
EVALUATE = ["evaluate", "builtin:lane", "--data", "road"]
RETRAIN = ["retrain", "builtin:lane", "--data", "road", "--output", "out.safetensors"]
LEARN = ["profile", "learn", "times.csv", "--output", "learnt"]


@pytest.mark.parametrize(
    ("arguments", "missing", "needs", "extra"),
    [
        (DECOMPOSE, "tensorly", "decompose needs tensorly", "offline"),
        (EVALUATE, "pycocotools", "evaluate needs pycocotools", "offline"),
        (RETRAIN, "pycocotools", "retrain needs pycocotools", "offline"),
        (LEARN, "sklearn", "profile needs sklearn", "offline"),
        (["profile", "layers", "builtin:lane", "--output", "o"], "matplotlib", "--output needs matplotlib", "plots"),
        (["demo"], "pycocotools", "demo needs pycocotools", "offline"),
        (["benchmark", "paper", "--output", "paper.json"], "matplotlib", "--output needs matplotlib", "plots"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_command_names_the_extra_that_it_lacks(
    arguments: list[str],
    missing: str,
    needs: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("people.onnx").touch()
    monkeypatch.setitem(sys.modules, missing, None)  # cannot be found
    assert main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"multi-dnn {arguments[0]}: error: ")
    assert line.endswith(f'{needs}, which is not installed: pip install "multi_dnn_ros[{extra}]"')
    assert [path.name for path in tmp_path.iterdir()] == ["people.onnx"]


WITHOUT_ROS = """
import sys
sys.modules["rclpy"] = None  # cannot be imported
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.executable import main as node
sys.exit(node([]) if sys.argv[1:] == ["node"] else main())
"""


@pytest.mark.parametrize(
    "arguments",
    [["run"], ["replay", "drive.mcap", "results"], ["benchmark", "soak"], ["node"]],
    ids=lambda arguments: arguments[0],
)
def test_a_command_that_needs_ros_2_says_how_to_get_it(arguments: list[str], tmp_path: Path) -> None:
    done = python(WITHOUT_ROS, *arguments, cwd=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "needs rclpy of ROS 2, which is not installed: source a ROS 2 installation" in line
    assert 'pip install "multi_dnn_ros[ros]" and run tools/ros_environment.py' in line
    assert not list(tmp_path.iterdir())


def test_other_commands_do_without_ros_2(tmp_path: Path) -> None:
    done = python(WITHOUT_ROS, "inspect", "builtin:lane", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "builtin:lane" in done.stdout


def test_a_library_that_is_broken_is_told_from_one_that_is_missing() -> None:
    broken = ImportError("no libfoo", name="matplotlib.ft2font")
    with (
        pytest.raises(MissingExtra, match=r"a picture needs matplotlib, which cannot be imported \(no libfoo\): pip"),
        optional("a picture"),
    ):
        raise broken
