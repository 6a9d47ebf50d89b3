"""The constraints can be met on each Python that setup.py allows: every pin has a wheel, and all agree with each other.

pip says what each wheel needs. Its own resolver is not asked for another Python than the running one: it takes the
markers of requirements for the running one's.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]


def pins_in(name: str) -> list[Requirement]:
    """The pins of a file of constraints."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if not line.startswith("#")]


JAZZY, KILTED = "constraints.txt", "constraints-kilted.txt"
PINS = {name: pins_in(name) for name in (JAZZY, KILTED)}
#: Beside what setup.py requires: of .pre-commit-config.yaml.
DEVELOPMENT = ("pre-commit", "codespell")
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
#: JetPack 6 has Python 3.10, JetPack 7 3.12; no ROS 2 comes from PyPI there.
TARGETS = [
    *((JAZZY, python, "x86_64") for python in PYTHONS),
    (JAZZY, "3.10", "aarch64"),
    (JAZZY, "3.12", "aarch64"),
    *((KILTED, python, "x86_64") for python in PYTHONS),
]
#: Pure Python, of which PyPI has only the source.
WITHOUT_WHEEL = ("empy",)
#: glibc of Ubuntu 22.04, and the oldest that PyTorch's wheels ask for.
GLIBC = range(35, 16, -1)
#: Requirements of wheels that are the same for every target, by name and version.
_anywhere: dict[tuple[str, str], dict[str, Any]] = {}


def environment(python: str, machine: str) -> dict[str, str]:
    return {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


def pins_for(file: str, python: str, machine: str) -> dict[str, str]:
    """Version by name, of the pins whose markers hold there."""
    there = environment(python, machine)
    held = [pin for pin in PINS[file] if pin.marker is None or pin.marker.evaluate(there)]
    names = [canonicalize_name(pin.name) for pin in held]
    assert len(set(names)) == len(names), f"pinned twice for Python {python}: {sorted(names)}"
    return {name: str(pin.specifier).removeprefix("==") for name, pin in zip(names, held, strict=True)}


def kilted_roots() -> list[Requirement]:
    """What the Makefile installs for Kilted."""
    (command,) = re.findall(
        r"--constraint constraints-kilted.txt \\\n((?:.*\\\n)*.*)\n", (ROOT / "Makefile").read_text()
    )
    return [Requirement(word) for word in shlex.split(command.replace("\\\n", " "))]


def roots() -> list[Requirement]:
    """What setup.py requires, with all extras."""
    (call,) = (
        node
        for node in ast.walk(ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "setup"
    )
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    extras = ast.literal_eval(given["extras_require"]).values()
    lists = [ast.literal_eval(given["install_requires"]), *extras, DEVELOPMENT]
    found = [Requirement(text) for texts in lists for text in texts]
    return [requirement for requirement in found if requirement.name != "multi_dnn_ros"]  # extras within extras


def wheels(pins: dict[str, str], python: str, machine: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Metadata of the wheel that pip takes for each pin; pip's error where there is none."""
    asked = [pin for pin in pins.items() if pin not in _anywhere]
    requirements, report = folder / "pins.txt", folder / "report.json"
    requirements.write_text("".join(f"{name}=={version}\n" for name, version in asked), encoding="utf-8")
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC] + [f"manylinux2014_{machine}"]
    platforms += ["manylinux2010_x86_64", "manylinux1_x86_64"] if machine == "x86_64" else []
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps",
            "--use-feature=fast-deps", "--only-binary=:all:", f"--no-binary={','.join(WITHOUT_WHEEL)}",
            "--python-version", python, "--implementation", "cp",
            *(f"--platform={platform}" for platform in platforms), "--retries=2", "--target", str(folder / "none"),
            "--report", str(report), "--quiet", "--requirement", str(requirements),
        ],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    if done.returncode and "after connection broken" in done.stderr:
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stderr
    found = {}
    for item in json.loads(report.read_text(encoding="utf-8"))["install"]:
        name, version = canonicalize_name(item["metadata"]["name"]), item["metadata"]["version"]
        found[name] = item["metadata"]
        if item["download_info"]["url"].endswith(("-none-any.whl", ".tar.gz")):
            _anywhere[name, pins[name]] = item["metadata"]
        assert Version(version) == Version(pins[name])
    return {**found, **{name: _anywhere[name, version] for name, version in pins.items() if name not in found}}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], Future]:
    """What `wheels` returns or raises for each target. pip mostly waits for the index, so several run at once."""
    asked: dict[tuple[str, str, str], Future] = {}
    with ThreadPoolExecutor() as pool:
        for target in TARGETS:
            asked[target] = pool.submit(wheels, pins_for(*target), *target[1:], tmp_path_factory.mktemp("pins"))
            wait([asked[TARGETS[0]]])  # what it learns of wheels for any target, the others need not ask
    return asked


@pytest.mark.long  # for the Python that runs, `make install` proves it: it installs with these constraints
@pytest.mark.skipif(
    Version(metadata.version("pip")) < Version("26"),
    reason=f"pip {metadata.version('pip')} downloads whole wheels to read what they need; needs pip 26",
)
@pytest.mark.parametrize(("file", "python", "machine"), TARGETS)
def test_the_pins_can_be_installed_together(
    file: str, python: str, machine: str, answers: dict[tuple[str, str, str], Future]
) -> None:
    pins, there = pins_for(file, python, machine), environment(python, machine)
    known = answers[file, python, machine].result()
    wrong, reached = [], set()
    first = roots() if file == JAZZY else kilted_roots()
    open_requirements = [("the root", requirement, "") for requirement in first]
    while open_requirements:
        needs, requirement, extra = open_requirements.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({**there, "extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name not in pins:
            # PyTorch and CUDA's toolkit name the exact versions of NVIDIA's libraries themselves.
            if not (name.startswith("nvidia-") and str(requirement.specifier).startswith("==")):
                wrong.append(f"{needs} needs {requirement}, which is not pinned")
            continue
        if not requirement.specifier.contains(pins[name], prereleases=True):
            wrong.append(f"{needs} needs {requirement}; pinned is {pins[name]}")
        for wanted in ("", *requirement.extras):
            if (name, wanted) not in reached:
                reached.add((name, wanted))
                texts = known[name].get("requires_dist", ())
                open_requirements += [(f"{name} {pins[name]}", Requirement(text), wanted) for text in texts]
    wrong += [
        f"{name} {pins[name]} is for Python {each['requires_python']}"
        for name, each in known.items()
        if not SpecifierSet(each.get("requires_python", "")).contains(f"{python}.0")
    ]
    assert not wrong, "\n".join(wrong)
    if machine == "x86_64":  # elsewhere no ROS 2 comes from PyPI, nor what it needs
        assert set(pins) - {name for name, _ in reached} == set(), "pinned, and needed by nothing"


def test_the_pythons_are_those_of_setup_py_and_the_makefile() -> None:
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    assert f'python_requires=">={PYTHONS[0]}"' in setup
    check = (ROOT / "tools/check_machine.sh").read_text(encoding="utf-8")
    assert re.search(rf"^ +{' . '.join(map(re.escape, PYTHONS)).replace(' . ', ' [|] ')}\) ;;$", check, re.M)
