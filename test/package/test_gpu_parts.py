"""The tests that need a GPU: each belongs to one part that is run by itself; without a GPU they are skipped as one."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
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


def run(*arguments: str, cwd: Path = ROOT, hidden: str = "-1") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["env", f"CUDA_VISIBLE_DEVICES={hidden}", sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip


def test_each_test_that_needs_a_gpu_belongs_to_one_part() -> None:
    """And the parts together are all of them."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"PART={', '.join(PARTS[:-1])} or {PARTS[-1]}" in makefile
    done = run("--collect-only", "-q", "test/gpu")
    assert done.returncode == 0, done.stdout + done.stderr
    names = re.findall(r"^test/gpu/.+::.+$", done.stdout, re.M)
    counts = Counter(name.split("/")[2] for name in names)
    assert set(counts) == set(PARTS)
    assert f"{counts.total()} tests collected" in done.stdout
    assert len(set(names)) == len(names)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of test/gpu with two tests in one part."""
    own = tmp_path / "gpu"
    (own / PARTS[0]).mkdir(parents=True)
    shutil.copy(FOLDER / "conftest.py", own)
    (own / PARTS[0] / "test_two.py").write_text("def test_a():\n    assert 0\n\n\ndef test_b():\n    assert 0\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu\n")
    return own


def test_without_a_gpu_all_are_skipped_as_one(folder: Path) -> None:
    done = run("-rs", str(folder), cwd=folder.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^SKIPPED \[1\] .*: 2 tests need a CUDA GPU; PyTorch \S+ sees none$", done.stdout, re.M)
    assert re.search(r"^=+ 1 skipped in ", done.stdout, re.M)


def test_a_test_of_no_part_is_an_error(folder: Path) -> None:
    (folder / "test_elsewhere.py").write_text("def test_c():\n    pass\n")
    done = run(str(folder), cwd=folder.parent)
    assert done.returncode == 4
    allowed = ", ".join(PARTS)
    assert f"test_elsewhere.py: belongs to no part of the tests on a GPU; allowed: {allowed}" in done.stderr


def test_each_part_says_how_many_tests_took_how_long(folder: Path) -> None:
    """With a GPU, which the copy is made to believe in."""
    (folder / PARTS[1]).mkdir()
    (folder / PARTS[1] / "test_one.py").write_text("def test_c():\n    pass\n")
    conftest = folder / "conftest.py"
    text = conftest.read_text(encoding="utf-8")
    assert "not torch.cuda.is_available()" in text
    conftest.write_text(text.replace("not torch.cuda.is_available()", "False"), encoding="utf-8")
    done = run(str(folder), cwd=folder.parent)
    lines = re.findall(r"^GPU part (\w+): (\d) tests? in \d+\.\d s; the longest took", done.stdout, re.M)
    assert dict(lines) == {PARTS[0]: "2", PARTS[1]: "1"}
    assert " 2 failed, 1 passed in " in done.stdout
