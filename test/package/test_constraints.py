"""The constraints can be met on each Python that setup.py allows: every pin has a wheel, and the pins agree.

pip says what each wheel needs. Its own resolver is not asked for another Python than the running one: it takes the
markers of requirements for the running one's.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
#: JetPack 6 has Python 3.10, JetPack 7 3.12; no ROS 2 comes from PyPI there.
TARGETS = [*((python, "x86_64") for python in PYTHONS), ("3.10", "aarch64"), ("3.12", "aarch64")]
#: Pure Python, of which PyPI has only the source.
WITHOUT_WHEEL = "empy"
#: glibc of Ubuntu 22.04, and the oldest that PyTorch's wheels ask for.
GLIBC = range(35, 16, -1)


def environment(python: str, machine: str) -> dict[str, str]:
    """What markers of requirements ask for."""
    return {"implementation_name": "cpython", "os_name": "posix", "platform_machine": machine,
            "platform_python_implementation": "CPython", "platform_system": "Linux",
            "python_full_version": f"{python}.0", "python_version": python, "sys_platform": "linux"}  # fmt: skip


def requirements_of_setup_py() -> list[Requirement]:
    """Those of serving and of all extras, without extras that name extras of this package."""
    text = (ROOT / "setup.py").read_text(encoding="utf-8")
    lists = text[text.index("install_requires=") : text.index("zip_safe=")]
    return [Requirement(each) for each in re.findall(r'"([A-Za-z][\w-]*(?:[<>=][^"]*)?)"(?=[,\]])', lists)]


def wheels(pins: dict[str, str], python: str, machine: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Metadata of the wheel that pip takes for each pin; fails with pip's error where there is none."""
    requirements, report = folder / "pins.txt", folder / "report.json"
    requirements.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()), encoding="utf-8")
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC] + [f"manylinux2014_{machine}"]
    platforms += ["manylinux2010_x86_64", "manylinux1_x86_64"] if machine == "x86_64" else []
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps",
            "--use-feature=fast-deps", "--only-binary=:all:", f"--no-binary={WITHOUT_WHEEL}",
            "--python-version", python, "--implementation", "cp",
            *(f"--platform={platform}" for platform in platforms), "--retries=2", "--target", str(folder / "none"),
            "--report", str(report), "--quiet", "--requirement", str(requirements),
        ],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    if done.returncode and "after connection broken" in done.stderr:
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stderr
    found = [item["metadata"] for item in json.loads(report.read_text(encoding="utf-8"))["install"]]
    return {canonicalize_name(each["name"]): each for each in found}


@pytest.mark.long  # for the Python that runs, `make install` proves it: it installs with these constraints
@pytest.mark.skipif(
    Version(metadata.version("pip")) < Version("26"),
    reason=f"pip {metadata.version('pip')} downloads whole wheels to read what they need; needs pip 26",
)
@pytest.mark.parametrize(("python", "machine"), [TARGETS[0], TARGETS[len(PYTHONS) - 1], TARGETS[-1]])
def test_the_pins_can_be_installed_together(python: str, machine: str, tmp_path: Path) -> None:
    there = environment(python, machine)
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [Requirement(line) for line in lines if not line.startswith("#")]
    held = [pin for pin in pinned if pin.marker is None or pin.marker.evaluate(there)]
    pins = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in held}
    assert len(pins) == len(held), "a name is pinned twice"
    known = wheels(pins, python, machine, tmp_path)
    wrong, reached = [], set()
    waiting = [("setup.py", requirement, "") for requirement in requirements_of_setup_py()]
    while waiting:
        needs, requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({**there, "extra": extra}):
            continue
        if name not in pins:
            # PyTorch and CUDA's toolkit name the exact versions of NVIDIA's libraries themselves.
            if not (name.startswith("nvidia-") and str(requirement.specifier).startswith("==")):
                wrong.append(f"{needs} needs {requirement}, which is not pinned")
            continue
        if not requirement.specifier.contains(pins[name], prereleases=True):
            wrong.append(f"{needs} needs {requirement}; pinned is {pins[name]}")
        for wanted in {"", *requirement.extras} - {each for named, each in reached if named == name}:
            reached.add((name, wanted))
            texts = known[name].get("requires_dist", ())
            waiting += [(f"{name} {pins[name]}", Requirement(text), wanted) for text in texts]
    assert not wrong, "\n".join(wrong)


def test_the_pythons_are_those_of_setup_py_and_the_makefile() -> None:
    assert f'python_requires=">={PYTHONS[0]}"' in (ROOT / "setup.py").read_text(encoding="utf-8")
    check = (ROOT / "tools/check_machine.sh").read_text(encoding="utf-8")
    assert re.search(rf"^ +{' . '.join(map(re.escape, PYTHONS)).replace(' . ', ' [|] ')}\) ;;$", check, re.M)
