"""Command line, parameter files and names."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.standalone import errors, names
from multi_dnn_ros.standalone.arguments import parse, remove_ros_args
from multi_dnn_ros.standalone.log_sites import LoggingSeverity
from multi_dnn_ros.standalone.missing import UnsupportedError
from multi_dnn_ros.standalone.yaml_values import ParameterFileError, load_parameter_file, parse_value


def test_a_complete_command_line(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "/robot/cam:\n  ros__parameters:\n    rate: 5.0\n    lens: {f: 3}\n/**:\n  ros__parameters: {a: 1}\n"
    )
    argv = f"prog --own 1 --ros-args --params-file {file} -p rate:=7.5 -p other:rate:=1.0 -r in:=/out"
    argv += " -r __node:=cam -r __ns:=/robot --log-level debug --log-level rmw:=error --disable-rosout-logs -- --last"
    arguments = parse(argv.split())
    assert arguments.rest == ["prog", "--own", "1", "--last"] == remove_ros_args(argv.split())
    assert arguments.overrides_for("/robot/cam") == {"rate": 7.5, "lens.f": 3, "a": 1}
    assert arguments.overrides_for("/other") == {"rate": 1.0, "a": 1}
    assert names.remap_node(arguments.remaps, "node", "/") == ("cam", "/robot")
    assert names.remap(arguments.remaps, "in", "cam", "/robot") == "/out"
    assert arguments.default_level is LoggingSeverity.DEBUG
    assert arguments.levels == {"rmw": LoggingSeverity.ERROR}
    assert not arguments.rosout


@pytest.mark.parametrize(
    ("argv", "error", "text"),
    [
        (["--bogus", "x"], errors.UnknownROSArgsError, "--bogus x; known: -p"),
        (["-p", "rate"], ValueError, "name:=value, not 'rate'"),
        (["-p", "rate:=[1, a]"], ParameterFileError, "-p rate: .*found: int, string"),
        (["-p", "rate:={"], ParameterFileError, "not valid YAML"),
        (["-p"], ValueError, "-p needs a value"),
        (["-p", "rate:="], ParameterFileError, "-p rate: no value"),
        (["-r", "a"], ValueError, "from:=to, not 'a'"),
        (["-r", "__ns:=robot"], errors.InvalidNamespaceException, "absolute"),
        (["-r", "a:=b c"], errors.InvalidTopicNameException, "b c"),
        (["--log-level", "loud"], ValueError, "DEBUG, INFO, WARN, ERROR, FATAL, not 'loud'"),
        (["--log-config-file", "x"], UnsupportedError, "no logging configuration files"),
        (["--params-file", "/nowhere.yaml"], ParameterFileError, "/nowhere.yaml.*No such file"),
    ],
)
def test_invalid_arguments_are_named(argv: list[str], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        parse(["--ros-args", *argv])


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a: [", "not valid YAML"),
        ("- a", "must map node names"),
        ("", "must map node names"),
        ("node: 3", "'node' must hold ros__parameters"),
        ("ros__parameters: {a: 1}", "under a node name"),
        ("node: {ros__parameters: {a: [1, b]}}", "node 'node', parameter 'a'"),
        ("node: {ros__parameters: {a: [[1]]}}", "parameter 'a'"),
        ("node: {ros__parameters: {a: &x {b: 1}, c: *x}}", "aliases"),
        ("node: {ros__parameters: {a: }}", "no value at line 1"),
        ("node: {ros__parameters: {a: [[1], [2]]}}", "parameter 'a'.*nested sequence"),
        ("node: {ros__parameters: {a: [1, 2.0]}}", "found: float, int"),
        ("node: {ros__parameters: {[a]: 1}}", "a key that is not a name"),
        ("node: {ros__parameters: {a: 1, a: 2}}", "'a' is given twice"),
        ("no-de: {ros__parameters: {a: 1}}", "'no-de' is not a valid node name.*alphanumerics"),
        ("a//b: {ros__parameters: {a: 1}}", "repeated forward slash"),
        (f"node: {{ros__parameters: {'{a: ' * 200}1{'}' * 200}}}", "nested deeper than 100"),
    ],
)
def test_a_bad_parameter_file_is_named(tmp_path: Path, content: str, text: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(content)
    with pytest.raises(ParameterFileError, match=text) as caught:
        load_parameter_file(str(file))
    assert "bad.yaml" in str(caught.value)


@given(st.binary(max_size=60))
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(content)
    with contextlib.suppress(ParameterFileError):
        load_parameter_file(str(file))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("true", True), ("off", False), ("y", True), ("No", False), ("on", True)),
        *(("5", 5), ("-0x1F", -31), ("010", 8), ("+3", 3)),
        *(("1e5", 1e5), ("1.", 1.0), (".5", 0.5), ("-.inf", -math.inf), ("1e-3", 0.001)),
        *(("1:30", "1:30"), ("2026-11-21", "2026-11-21"), ("'5'", "5"), ("hello", "hello"), ("!!str 5", "5")),
        *(("null", "null"), ("~", "~"), ("08", 8.0), ("0x1p3", 8.0), ("inf", math.inf), ("1e999", "1e999")),
        *(("1e-320", "1e-320"), ("1e-400", "1e-400"), ("0e-400", 0.0), ("0x0p1", 0.0), ("-0.0", -0.0)),
        *(("99999999999999999999", 1e20), ("1_000", "1_000"), ("_", "_"), ("+", "+")),
        (5000 * "9", 5000 * "9"),
        *(("[1, 2]", [1, 2]), ("[a, null]", ["a", "null"]), ("[]", None)),
    ],
)
def test_values_are_read_as_rcl_reads_them(text: str, value: object) -> None:
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_sections_of_a_file_are_those_of_rcl(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "/:\n  cam: {ros__parameters: {root: 1}}\n"
        "/**: {ros__parameters: {everywhere: 1, who: all}}\n"
        "robot:\n  cam: {ros__parameters: {own: 1, who: cam}}\n"
        "robot:\n  '*': {ros__parameters: {any_of_robot: 1}}\n"
        "/**/arm/*/cam: {ros__parameters: {deep: 1}}\n"
        "/**: {ros__parameters: {again: 1}}\n"
    )
    arguments = parse(["--ros-args", "--params-file", str(file), "-p", "who:=line", "-p", "line:=1"])
    everywhere = {"everywhere": 1, "again": 1, "line": 1}
    assert arguments.overrides_for("/cam") == {"root": 1, **everywhere, "who": "line"}
    # A pattern keeps its first position: `-p` without a node means /**, which comes before robot/cam here.
    assert arguments.overrides_for("/robot/cam") == {**everywhere, "own": 1, "any_of_robot": 1, "who": "cam"}
    assert arguments.overrides_for("/x/arm/left/cam") == {**everywhere, "deep": 1, "who": "line"}
    assert arguments.overrides_for("/arm/cam") == {**everywhere, "who": "line"}


@given(
    st.one_of(
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_subnormal=False),
        st.text(max_size=8),
    )
)
def test_what_yaml_writes_is_read_back(value: bool | int | float | str) -> None:
    # Text is quoted, because YAML 1.1 and rcl disagree on which unquoted texts are numbers.
    parsed = parse_value(yaml.safe_dump(value, default_style='"' if isinstance(value, str) else None))
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "absolute"),
    [
        ("chatter", "/ns/chatter"),
        ("~/out", "/ns/me/out"),
        ("~", "/ns/me"),
        ("/abs/x", "/abs/x"),
        ("{node}_x", "/ns/me_x"),
        ("{ns}/x", "/ns/x"),
        ("~/{node}", "/ns/me/me"),
    ],
)
def test_names_expand(name: str, absolute: str) -> None:
    assert names.expand(name, "me", "/ns") == absolute


@pytest.mark.parametrize(
    ("name", "text", "position"),
    [
        ("", "must not be empty", 0),
        ("a b", "must not contain characters other than", 1),
        ("a//b", "must not contain repeated '/'", 3),
        ("a/", "must not end with a forward slash", 1),
        ("1a", "must not start with a number", 0),
        ("a/2b", "must not start with a number", 2),
        ("~xy", "tilde '~' that is not followed by a forward slash", 1),
        ("a/~", "must not have tilde '~' unless it is the first", 2),
        ("{a/b}", "substitution name must not contain characters", 2),
        ("{1a}", "substitution name must not start with a number", 1),
        ("{{ns}}", "substitution name must not contain characters", 1),
        ("a{ns", "unmatched", 1),
        ("a}", "unmatched", 1),
        ("ä", "must not contain characters other than", 0),
        ("a" * 300, "length should not exceed", 246),
    ],
)
def test_bad_names_are_refused_with_the_position(name: str, text: str, position: int) -> None:
    for service, error in ((False, errors.InvalidTopicNameException), (True, errors.InvalidServiceNameException)):
        with pytest.raises(error, match=text) as caught:
            names.expand(name, "me", "/", service=service)
        assert str(caught.value).splitlines()[-1] == f"   {' ' * position}^"


@pytest.mark.parametrize("name", ["{what}", "~/{robot}/x"])
def test_unknown_substitutions_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=r"unknown substitution: \{(what|robot)\}"):
        names.expand(name, "me", "/")


@given(st.text(max_size=12))
def test_any_name_expands_to_a_valid_one_or_is_refused(name: str) -> None:
    try:
        absolute = names.expand(name, "me", "/ns")
    except (errors.InvalidTopicNameException, ValueError):
        return
    assert names.expand(absolute, "me", "/ns") == absolute


def test_remap_rules_by_node_and_kind() -> None:
    rules = parse(["--ros-args", "-r", "cam:image:=left", "-r", "rosservice://go:=stop", "-r", "~/a:=b"]).remaps
    assert names.remap(rules, "image", "cam", "/") == "/left"
    assert names.remap(rules, "image", "other", "/") == "/image"
    assert names.remap(rules, "go", "cam", "/") == "/go"
    assert names.remap(rules, "go", "cam", "/", service=True) == "/stop"
    assert names.remap(rules, "/cam/a", "cam", "/") == "/b"
