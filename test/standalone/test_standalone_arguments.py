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
from multi_dnn_ros.standalone.logs import LoggingSeverity
from multi_dnn_ros.standalone.missing import UnsupportedError
from multi_dnn_ros.standalone.yaml_values import ParameterFileError, load_parameter_file, parse_value


def test_a_whole_command_line(tmp_path: Path) -> None:
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
        (["--bogus", "x"], errors.UnknownROSArgsError, "--bogus x; known are -p"),
        (["-p", "rate"], ValueError, "name:=value, not 'rate'"),
        (["-p", "rate:=[1, a]"], ParameterFileError, "-p rate: .*one type, not int, str"),
        (["-p", "rate:={"], ParameterFileError, "not valid YAML"),
        (["-p"], ValueError, "-p needs a value"),
        (["-r", "a"], ValueError, "from:=to, not 'a'"),
        (["-r", "__ns:=robot"], errors.InvalidNamespaceException, "absolute"),
        (["-r", "a:=b c"], errors.InvalidTopicNameException, "b c"),
        (["--log-level", "loud"], ValueError, "DEBUG, INFO, WARN, ERROR, FATAL, not 'loud'"),
        (["--log-config-file", "x"], UnsupportedError, "no logging configuration files"),
        (["--params-file", "/nowhere.yaml"], ParameterFileError, "/nowhere.yaml.*No such file"),
    ],
)
def test_what_cannot_be_used_is_named(argv: list[str], error: type[Exception], text: str) -> None:
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
        ("node: {ros__parameters: {a: !!python/object:os.system {}}}", "not valid YAML"),
        ("node: {ros__parameters: {a: 99999999999999999999}}", "64 bits"),
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
        *(("1:30", "1:30"), ("2026-11-21", "2026-11-21"), ("'5'", "5"), ("hello", "hello"), ("", None)),
        *(("[1, 2]", [1, 2]), ("[a, b]", ["a", "b"]), ("[]", [])),
    ],
)
def test_values_are_read_as_rcl_reads_them(text: str, value: object) -> None:
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


@given(st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=8)))
def test_what_yaml_writes_is_read_back(value: bool | int | float | str) -> None:
    # Text is quoted: unquoted, YAML 1.1 and rcl do not agree on what a number is.
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
    ],
)
def test_names_expand(name: str, absolute: str) -> None:
    assert names.expand(name, "me", "/ns") == absolute


@pytest.mark.parametrize("name", ["", "a b", "a//b", "a/", "1a", "a/2b", "~x", "{what}", "ä"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(errors.InvalidTopicNameException):
        names.expand(name, "me", "/")


@given(st.text(max_size=12))
def test_any_name_expands_to_a_valid_one_or_is_refused(name: str) -> None:
    try:
        absolute = names.expand(name, "me", "/ns")
    except errors.InvalidTopicNameException:
        return
    assert names.expand(absolute, "me", "/ns") == absolute


def test_remap_rules_by_node_and_kind() -> None:
    rules = parse(["--ros-args", "-r", "cam:image:=left", "-r", "rosservice://go:=stop", "-r", "~/a:=b"]).remaps
    assert names.remap(rules, "image", "cam", "/") == "/left"
    assert names.remap(rules, "image", "other", "/") == "/image"
    assert names.remap(rules, "go", "cam", "/") == "/go"
    assert names.remap(rules, "go", "cam", "/", service=True) == "/stop"
    assert names.remap(rules, "/cam/a", "cam", "/") == "/b"
