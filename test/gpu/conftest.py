"""Tests that need a CUDA GPU, in parts that finish in under four minutes each: the folders in here.

``make test-gpu PART=engine`` runs one of them. Without a GPU all that were collected are skipped as one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
PARTS = ("engine", "backends", "training", "benchmark", "serving")


def part_of(path: Path) -> str | None:
    """The part that a test file below this folder belongs to; None for one anywhere else."""
    if HERE not in path.parents:
        return None
    part = path.relative_to(HERE).parts[0]
    if part not in PARTS:
        raise pytest.UsageError(f"{path}: belongs to no part of the tests on a GPU; allowed: {', '.join(PARTS)}")
    return part


class WithoutGpu(pytest.Item):
    """Stands for all tests that need a GPU, where there is none."""

    counts: Counter[str]

    def runtest(self) -> None:
        parts = ", ".join(f"{part} {self.counts[part]}" for part in PARTS if self.counts[part])
        pytest.skip(f"{self.counts.total()} tests need a CUDA GPU ({parts}); PyTorch {torch.__version__} sees none")

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return HERE, None, self.name


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    own = [item for item in items if part_of(item.path)]
    for item in own:
        item.add_marker("gpu")
    if own and not torch.cuda.is_available() and not config.option.collectonly:
        skipped = WithoutGpu.from_parent(session, name="tests that need a GPU")
        skipped.counts = Counter(part_of(item.path) for item in own)
        items[:] = [*(item for item in items if item not in own), skipped]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tests and seconds of each part, and of its longest test."""
    tests: dict[str, set[str]] = defaultdict(set)
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for reports in terminalreporter.stats.values():
        for report in reports:
            if not isinstance(report, pytest.TestReport):
                continue
            part = part_of(terminalreporter.config.rootpath / report.nodeid.partition("::")[0])
            if part is not None:
                tests[part].add(report.nodeid)
                seconds[part][report.nodeid] += report.duration
    for part, names in tests.items():
        longest = max(names, key=lambda name: seconds[part][name])
        terminalreporter.write_line(
            f"GPU part {part}: {len(names)} test{'s' * (len(names) != 1)} in {sum(seconds[part].values()):.1f} s; "
            f"the longest took {seconds[part][longest]:.1f} s: {longest}"
        )
