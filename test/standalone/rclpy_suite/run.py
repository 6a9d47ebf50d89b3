"""Runs rclpy's own test suite on the standalone runtime, each file in a clean process, and prints the outcomes.

    python test/standalone/rclpy_suite/run.py <checkout of ros2/rclpy, branch jazzy> --output results/rclpy_suite.json

A test that differs is repeated at the end, alone in a process and at most five times; if it then passes, it counts as
timing. The exit code is 1 when a test differs.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import classify

from multi_dnn_ros.common.processes import reserved_domain
from multi_dnn_ros.common.reporting import provenance, table, write_json

_HERE: Final = Path(__file__).resolve().parent
_ROOT: Final = _HERE.parents[2]
_TEST_TIMEOUT_S: Final = 60
_FILE_TIMEOUT_S: Final = 600
_HEADINGS: Final = {
    classify.PASSED: "passed",
    classify.UNCLAIMED: "needs names not claimed",
    classify.HANDLES: "needs C handles",
    classify.DIFFERS: "differ",
    classify.TIMING: "timing",
    classify.SKIPPED: "skipped",
}

Outcomes = dict[str, tuple[str, str]]  # test function -> outcome, evidence


def functions_of(source: str) -> list[str]:
    """Return the test functions of a file as `Class::function` or `function`, without importing it."""
    names: list[str] = []
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.ClassDef):
            names += [f"{statement.name}::{name}" for name in _functions(statement.body)]
        else:
            names += _functions([statement])
    return names


def _functions(body: Sequence[ast.stmt]) -> list[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [entry.name for entry in body if isinstance(entry, kinds) and entry.name.startswith("test")]


def outcomes_of(source: str, entries: Sequence[dict[str, Any]], ending: str) -> Outcomes:
    """Return the outcome of every test function of a file.

    Args:
        source: the file's text.
        entries: the entries that the process wrote, in order.
        ending: how the process ended, for tests without an entry.
    """
    found: Outcomes = {}
    expected: list[str] = []
    for entry in entries:
        if "import_failed" in entry:
            return dict.fromkeys(functions_of(source), tuple(entry["import_failed"]))
        expected += entry.get("collected", [])
        if "test" in entry:
            worst = max(entry["outcome"], found.get(entry["test"], (classify.PASSED,))[0], key=classify.OUTCOMES.index)
            if entry["test"] not in found or worst != found[entry["test"]][0]:
                found[entry["test"]] = (entry["outcome"], entry["evidence"])
    for name in expected or functions_of(source):
        found.setdefault(name, (classify.DIFFERS, f"no outcome: the process {ending}"))
    return found


def _run(folder: Path, file: str, tests: Sequence[str] = ()) -> tuple[list[dict[str, Any]], str]:
    results = folder / f"{file}.jsonl"
    results.write_text("")
    targets = [f"test/{file}::{test}" for test in tests] or [f"test/{file}"]
    command = [sys.executable, "-m", "pytest", "-p", "session_plugin", "-p", "no:cacheprovider", "--color=no"]
    command += ["--rootdir", str(folder), "-q", "--timeout", str(_TEST_TIMEOUT_S), *targets]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ROS_", "RCUTILS_"))}
    with reserved_domain() as domain:
        environment |= {
            "PYTHONPATH": os.pathsep.join([str(_HERE), str(_ROOT)]),
            "RCLPY_SUITE_RESULTS": str(results),
            "ROS_DOMAIN_ID": str(domain),
        }
        try:
            process = subprocess.run(
                command, cwd=folder, env=environment, timeout=_FILE_TIMEOUT_S, capture_output=True, text=True
            )
            ending = f"ended with exit code {process.returncode}"
            if not tests:
                (folder / f"{file}.log").write_text(process.stdout + process.stderr)
        except subprocess.TimeoutExpired:
            ending = f"took longer than {_FILE_TIMEOUT_S} s"
    return [json.loads(line) for line in results.read_text().splitlines()], ending


def run_file(folder: Path, file: str) -> Outcomes:
    """Run one file in a clean process."""
    return outcomes_of((folder / "test" / file).read_text(encoding="utf-8"), *_run(folder, file))


def repeat(folder: Path, file: str, test: str, first: tuple[str, str], times: int) -> tuple[str, str]:
    """Repeat a test that differs, alone in a process; return its outcome, which is timing if it passes now.

    Args:
        first: outcome and evidence of the first run.
        times: maximum number of repetitions.
    """
    source = (folder / "test" / file).read_text(encoding="utf-8")
    cases = [test]
    for _ in range(times):
        entries, ending = _run(folder, file, cases)
        again = outcomes_of(source, entries, ending).get(test, first)
        if again[0] != classify.DIFFERS:
            return (classify.TIMING, first[1]) if again[0] == classify.PASSED else again
        # A test with several cases has passed when each of them has.
        cases = [entry["case"] for entry in entries if entry.get("outcome") == classify.DIFFERS] or cases
    return first


def _copy(checkout: Path, folder: Path) -> list[str]:
    # Copy only the tests: the real rclpy next to them must not be importable.
    tests = next((path for path in (checkout / "rclpy" / "test", checkout / "test") if path.is_dir()), None)
    if tests is None:
        raise SystemExit(f"{checkout} is not a checkout of ros2/rclpy: it has no folder rclpy/test")
    shutil.copytree(tests, folder / "test")
    (folder / "test" / "__init__.py").write_text("")  # rclpy's own loads the C binding
    return sorted(path.name for path in (folder / "test").glob("test_*.py"))


def _origin(checkout: Path) -> dict[str, str]:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(checkout), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    version = re.search(r"<version>(.+?)</version>", (checkout / "rclpy" / "package.xml").read_text())
    return {
        "repository": "https://github.com/ros2/rclpy",
        "commit": git("rev-parse", "HEAD") or "unknown: the checkout is not a git repository",
        "version": version[1] if version else "unknown",
    }


def report(by_file: dict[str, Outcomes]) -> str:
    """Return a table with a row per file, and a row with the totals."""
    counts = {file: Counter(outcome for outcome, _ in found.values()) for file, found in by_file.items()}
    counts["all"] = sum(counts.values(), Counter())
    rows = [
        [file, *(str(count[key] or "") for key in _HEADINGS), str(sum(count.values()))]
        for file, count in counts.items()
    ]
    return table(["file", *_HEADINGS.values(), "tests"], rows)


def main() -> int:
    """Run the suite; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a checkout of github.com/ros2/rclpy, branch jazzy")
    parser.add_argument("--output", type=Path, help="write the outcome of every test as JSON")
    parser.add_argument("--only", nargs="*", help="run these files only, such as test_node.py")
    parser.add_argument(
        "--repeats", type=int, default=5, help="maximum number of repetitions of a test that differs (default: 5)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of files to run in parallel (default: 1)")
    parser.add_argument("--logs", type=Path, help="keep pytest's output of every file in this folder")
    arguments = parser.parse_args()
    by_file: dict[str, Outcomes] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files = [file for file in _copy(arguments.checkout, folder) if not arguments.only or file in arguments.only]
        pool = stack.enter_context(ThreadPoolExecutor(arguments.jobs))
        for file, outcomes in zip(files, pool.map(functools.partial(run_file, folder), files), strict=True):
            by_file[file] = outcomes
            done = Counter(outcome for outcome, _ in by_file[file].values())
            print(f"{file}: {', '.join(f'{number} {_HEADINGS[key]}' for key, number in done.items())}", flush=True)
            if arguments.logs and (folder / f"{file}.log").exists():
                arguments.logs.mkdir(parents=True, exist_ok=True)
                shutil.copy(folder / f"{file}.log", arguments.logs)
        pool.shutdown()
        for file, found in by_file.items():
            for test, outcome in list(found.items()):
                if outcome[0] == classify.DIFFERS:
                    found[test] = repeat(folder, file, test, outcome, arguments.repeats)
    print(f"\n{report(by_file)}\n")
    differing = [
        f"{file}::{test}: {evidence}"
        for file, found in by_file.items()
        for test, (outcome, evidence) in found.items()
        if outcome == classify.DIFFERS
    ]
    print("\n".join(["These differ:", *differing] if differing else ["No test differs."]))
    if arguments.output:
        write_json(arguments.output, _content(arguments.checkout, by_file))
    return 1 if differing else 0


def _content(checkout: Path, by_file: dict[str, Outcomes]) -> dict[str, Any]:
    content = provenance()
    content["command"] = "make test-rclpy RCLPY=<checkout>"
    total = Counter(outcome for found in by_file.values() for outcome, _ in found.values())
    return {
        **content,
        "rclpy": _origin(checkout),
        "tests": sum(total.values()),
        "counts": {key: total[key] for key in _HEADINGS},
        "files": {
            file: {
                test: outcome if outcome == classify.PASSED else {"outcome": outcome, "evidence": evidence}
                for test, (outcome, evidence) in found.items()
            }
            for file, found in by_file.items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
