"""The run of rclpy's own tests: classification of errors, the committed result, and the list in the docs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUITE = Path(__file__).resolve().parent / "rclpy_suite"
sys.path.insert(0, str(SUITE))

import unclaimed  # noqa: E402

SAMPLES = """
from pathlib import Path

import pytest
import rclpy
from rclpy.action import ActionClient
from rclpy.clock import Clock
from rclpy.impl.implementation_singleton import rclpy_implementation as _rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile, qos_check_compatible
from std_msgs.msg import String


@pytest.fixture
def node():
    with rclpy.init(args=[]):
        yield rclpy.create_node('sample')


def test_passes(node):
    assert node.get_name() == 'sample'
    assert node.handle is not None  # many tests check this in passing


def test_calls_a_missing_function():
    qos_check_compatible(QoSProfile(depth=1), QoSProfile(depth=1))


def test_uses_a_missing_module(node):
    ActionClient(node, None, 'x')


def test_asks_for_an_instance_of_a_missing_class():
    assert isinstance(3, ActionClient)


def test_calls_a_missing_method(node):
    node.create_rate(1.0)


def test_gives_a_refused_argument():
    Node('n', enable_logger_service=True)


def test_looks_into_a_class(node):
    assert node._nothing_of_the_kind


def test_uses_the_binding():
    _rclpy.rclpy_get_rmw_implementation_identifier()


def test_uses_a_handle(node):
    with node.handle:
        pass


def test_follows_from_a_missing_name(node):
    try:
        node.create_rate(1.0)
    except AttributeError as error:
        raise ValueError('the test went wrong') from error


def test_differs(node):
    assert node.get_name() == 'other'


def test_misses_an_attribute_of_its_own():
    class Own:
        pass

    Own()._name


def test_is_skipped():
    pytest.skip('not here')


@pytest.mark.parametrize('value', [1, 2])
def test_has_cases(value):
    assert value == 1


@pytest.mark.parametrize('value', [1, 2])
def test_passes_the_second_time(value):
    seen = Path(f'seen_{value}')
    before, _ = seen.exists(), seen.touch()
    assert value == 1 or before


class TestInAClass:

    def test_inside(self):
        assert Clock().now().nanoseconds > 0
"""
BROKEN = """
from rclpy.waitable import Waitable


class Own(Waitable):
    pass


def test_one():
    pass


class TestTwo:
    def test_two(self):
        pass
"""
DIES = "import os\n\n\ndef test_lives():\n    pass\n\n\ndef test_dies():\n    os._exit(3)\n"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, int]:
    """What `run.py` writes and prints for three small files, and its exit code."""
    checkout = tmp_path_factory.mktemp("checkout")
    tests = checkout / "rclpy" / "test"
    tests.mkdir(parents=True)
    (checkout / "rclpy" / "package.xml").write_text("<package><version>7.1.3</version></package>")
    for name, source in (("samples", SAMPLES), ("broken", BROKEN), ("dies", DIES)):
        (tests / f"test_{name}.py").write_text(source)
    output = checkout / "result.json"
    command = [sys.executable, str(SUITE / "run.py"), str(checkout), "--output", str(output), "--repeats", "1"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(checkout)}
    # The suite needs only one of pytest's plugins; importing the others takes longer than the tests.
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_timeout"}
    process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert output.exists(), process.stdout + process.stderr
    return json.loads(output.read_text()), process.stdout, process.returncode


@pytest.mark.long  # a tool for developers, which starts pytest eight times; its committed result is checked below
def test_every_failure_is_classified_by_its_error(result: tuple[dict[str, Any], str, int]) -> None:
    content, _, _ = result

    def outcome(file: str, test: str) -> tuple[str, str]:
        found = content["files"][f"test_{file}.py"][test]
        return ("passed", "") if found == "passed" else (found["outcome"], found["evidence"])

    expected = {
        "test_passes": ("passed", ""),
        "test_calls_a_missing_function": ("unclaimed", "rclpy.qos.qos_check_compatible"),
        "test_uses_a_missing_module": ("unclaimed", "rclpy.action"),
        "test_asks_for_an_instance_of_a_missing_class": ("unclaimed", "rclpy.action"),
        "test_calls_a_missing_method": ("unclaimed", "Node.create_rate"),
        "test_gives_a_refused_argument": ("unclaimed", "Node(enable_logger_service=True)"),
        "test_looks_into_a_class": ("unclaimed", "Node._nothing_of_the_kind"),
        "test_uses_the_binding": ("handles", "rclpy.impl.implementation_singleton"),
        "test_uses_a_handle": ("handles", "Node.handle"),
        "test_follows_from_a_missing_name": ("unclaimed", "Node.create_rate"),
        "test_is_skipped": ("skipped", "not here"),
        "TestInAClass::test_inside": ("passed", ""),
    }
    assert {test: outcome("samples", test) for test in expected} == expected
    for test, text in (
        ("test_differs", "AssertionError"),
        ("test_misses_an_attribute_of_its_own", "AttributeError: 'Own' object has no attribute '_name'"),
        ("test_has_cases", "AssertionError"),
        ("test_passes_the_second_time", "AssertionError"),
    ):
        kind, evidence = outcome("samples", test)
        assert kind == ("timing" if test == "test_passes_the_second_time" else "differs")
        assert text in evidence


@pytest.mark.long  # as above
def test_files_that_cannot_be_imported_and_processes_that_die_are_counted(
    result: tuple[dict[str, Any], str, int],
) -> None:
    content, printed, code = result
    broken = content["files"]["test_broken.py"]
    assert broken.keys() == {"test_one", "TestTwo::test_two"}
    assert all(found == {"outcome": "unclaimed", "evidence": "rclpy.waitable"} for found in broken.values())
    dies = content["files"]["test_dies.py"]
    assert dies["test_lives"] == "passed"
    assert dies["test_dies"]["evidence"] == "no outcome: the process ended with exit code 3"
    assert content["tests"] == sum(len(tests) for tests in content["files"].values()) == 20
    assert content["counts"]["differs"] == 4
    assert content["rclpy"]["version"] == "7.1.3"
    assert code == 1
    assert "test_samples.py::test_differs: AssertionError" in printed


def test_no_test_of_rclpy_differs() -> None:
    content = json.loads((ROOT / "results" / "rclpy_suite.json").read_text())
    assert content["rclpy"]["commit"]
    assert content["versions"]["cyclonedds"]
    outcomes = [
        entry if isinstance(entry, str) else entry["outcome"]
        for tests in content["files"].values()
        for entry in tests.values()
    ]
    counted = {name: number for name, number in content["counts"].items() if number}
    assert counted == dict(Counter(outcomes))
    assert content["tests"] == len(outcomes) >= 447
    assert "differs" not in counted
    assert counted["passed"] >= 260


def _listed() -> list[tuple[str, str]]:
    page = unclaimed.PAGE.read_text(encoding="utf-8")
    found = [(owner, name) for owner, names in unclaimed.entries(page) for name in names or ("",)]
    assert len(found) > 50
    return found


@pytest.mark.parametrize(("owner", "name"), _listed(), ids=lambda value: value or "whole")
def test_names_that_the_docs_list_as_missing_raise_an_explicit_error(owner: str, name: str) -> None:
    with pytest.raises((ImportError, AttributeError), match="the standalone runtime of multi_dnn_ros has no "):
        unclaimed.touch(owner, name)


def test_the_docs_list_every_refused_argument() -> None:
    page = unclaimed.PAGE.read_text(encoding="utf-8")
    for where, names in unclaimed.refused_arguments().items():
        assert f"- `{where}`: {', '.join(f'`{name}`' for name in names)}" in page
