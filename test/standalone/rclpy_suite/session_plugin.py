"""The pytest plugin of one clean process: rclpy is the standalone runtime, and each test's outcome goes to a file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import classify
import definitions
import placeholders
import pytest

from multi_dnn_ros import standalone

definitions.register()
standalone.install()
placeholders.install()
_fixtures = ModuleType("test_msgs.message_fixtures")
_fixtures.get_test_msg = definitions.fixture  # type: ignore[attr-defined]
sys.modules[_fixtures.__name__] = _fixtures
_results = Path(os.environ["RCLPY_SUITE_RESULTS"])


def _write(**entry: Any) -> None:
    # Line by line, so that the entries of a process that dies are kept.
    with _results.open("a", encoding="utf-8") as stream:
        print(json.dumps(entry), file=stream)


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[2].partition("[")[0]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note which tests will run."""
    _write(collected=[_function(item) for item in session.items])


def pytest_exception_interact(node: Any, call: pytest.CallInfo[Any]) -> None:
    """Note why a file could not be imported."""
    if isinstance(node, pytest.Collector) and call.excinfo is not None:
        _write(import_failed=classify.classify(call.excinfo.value))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """Note a test's outcome with its evidence."""
    report = yield
    outcome, evidence = classify.PASSED, ""
    if report.skipped:
        outcome, evidence = classify.SKIPPED, str(call.excinfo.value) if call.excinfo else ""
    elif report.failed and call.excinfo is not None:
        outcome, evidence = classify.classify(call.excinfo.value)
    if call.when == "call" or outcome != classify.PASSED:
        case = item.nodeid.partition("::")[2]
        _write(test=_function(item), case=case, outcome=outcome, evidence=evidence)
    return report
