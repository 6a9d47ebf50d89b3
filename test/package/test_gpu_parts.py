"""The tests that need a GPU: each belongs to one part that is run by itself; without a GPU they are skipped as one."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "test/gpu"
CONFTEST = ast.parse((FOLDER / "conftest.py").read_text(encoding="utf-8"))
#: As test/gpu/conftest.py has them.
(PARTS,) = (
    ast.literal_eval(node.value)
    for node in CONFTEST.body
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PARTS"
)


def test_the_parts_are_the_folders_and_the_makefile_names_them() -> None:
    """That each test belongs to one of them is an error of the collection otherwise, which `make test` runs."""
    assert {path.parent.name for path in FOLDER.glob("*/test_*.py")} == set(PARTS)
    assert list(FOLDER.glob("test_*.py")) == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"PART={', '.join(PARTS[:-1])} or {PARTS[-1]}" in makefile


class Folder:
    """A copy of test/gpu with two tests in one part, and a PyTorch that says whether there is a GPU."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu\n")
        self.add(f"{PARTS[0]}/test_two.py", "def test_a():\n    assert 0\n\n\ndef test_b():\n    assert 0\n")
        shutil.copy(FOLDER / "conftest.py", root / "gpu")

    def add(self, name: str, text: str = "def test_c():\n    pass\n") -> None:
        path = self.root / "gpu" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, *, gpu: bool) -> subprocess.CompletedProcess[str]:
        stub = f"__version__ = 'of the test'\n\n\nclass cuda:\n    is_available = staticmethod(lambda: {gpu})\n"
        (self.root / "torch.py").write_text(stub)
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "gpu"],
            cwd=self.root, env={**os.environ, "PYTHONPATH": str(self.root)}, capture_output=True, text=True,
            timeout=200, check=False,
        )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_without_a_gpu_all_are_skipped_as_one(folder: Folder) -> None:
    folder.add(f"{PARTS[1]}/test_one.py")
    done = folder.run(gpu=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = rf"3 tests need a CUDA GPU \({PARTS[0]} 2, {PARTS[1]} 1\); PyTorch of the test sees none"
    assert re.search(rf"^SKIPPED \[1\] .*: {said}$", done.stdout, re.M)
    assert re.search(r"^=+ 1 skipped in ", done.stdout, re.M)


def test_a_test_of_no_part_is_an_error(folder: Folder) -> None:
    folder.add("test_elsewhere.py")
    done = folder.run(gpu=True)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    allowed = ", ".join(PARTS)
    assert f"test_elsewhere.py: belongs to no part of the tests on a GPU; allowed: {allowed}" in done.stderr


def test_each_part_says_how_many_tests_took_how_long(folder: Folder) -> None:
    folder.add(f"{PARTS[1]}/test_one.py")
    done = folder.run(gpu=True)
    lines = re.findall(r"^GPU part (\w+): (\d) tests? in \d+\.\d s; the longest took", done.stdout, re.M)
    assert dict(lines) == {PARTS[0]: "2", PARTS[1]: "1"}
    assert " 2 failed, 1 passed in " in done.stdout
