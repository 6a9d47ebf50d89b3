"""Parameter values and parameter files in YAML, parsed like rcl's parser (:mod:`multi_dnn_ros.common.rcl_values`).

One rule is stricter than in rcl: a parameter that occurs twice in a section is an error; rcl silently uses the last
one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from multi_dnn_ros.common.rcl_values import list_problem, plain_value
from multi_dnn_ros.standalone.errors import NameValidationException
from multi_dnn_ros.standalone.names import validate_namespace, validate_node_name

Value: TypeAlias = Any  # bool | int | float | str | list of one of them | None for an empty list

_MAX_FILE_BYTES: Final = 10_000_000
_MAX_DEPTH: Final = 100
_PARAMETERS: Final = "ros__parameters"
_STRING_TAG: Final = "tag:yaml.org,2002:str"


class ParameterFileError(ValueError):
    """An invalid parameter file or value; the message names it."""


class _Loader(yaml.SafeLoader):
    """Composes nodes only; rejects aliases, so that a small file stays small, and bounds nesting."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, f"line {self.line + 1}: aliases are not supported")
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"line {self.line + 1}: nested deeper than {_MAX_DEPTH}")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_scalar_node(self, anchor: Any) -> Any:
        tag = self.peek_event().tag  # type: ignore[no-untyped-call]
        node = super().compose_scalar_node(anchor)
        node.tag = tag  # None unless the file states a tag
        return node


def parse_value(text: str) -> Value:
    """Return the value of the text in `-p name:=text`; None for an empty list, which has no type.

    Raises:
        ParameterFileError: if the text is not YAML, or not a scalar or a list of scalars of one type.
    """
    node = _compose(text, "parameter value")
    if node is None:
        raise ParameterFileError("no value")
    return _value(node, repr(text))


def load_parameter_file(path: str) -> list[tuple[str, dict[str, Value]]]:
    """Return the sections of a parameter file, in order: (node name pattern, {parameter: value}).

    Nested mappings above `ros__parameters` form node names joined with slashes, those below it parameter names joined
    with dots. A node name may occur several times.

    Raises:
        ParameterFileError: names the file and, if possible, the node and parameter.
    """
    where = f"parameter file {path!r}"
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ParameterFileError(f"cannot read {where}: {error.strerror}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise ParameterFileError(f"{where} is larger than {_MAX_FILE_BYTES} bytes")
    document = _compose(data, where)
    if not isinstance(document, yaml.MappingNode) or not document.value:
        held = "nothing" if document is None else f"a {document.id}"
        raise ParameterFileError(f"{where} must map node names to {_PARAMETERS}, it holds {held}")
    return list(_sections(where, "", document))


def _compose(data: str | bytes, where: str) -> Any:
    loader = None
    try:
        loader = _Loader(data)
        return loader.get_single_node()
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError, TypeError) as error:
        raise ParameterFileError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from error
    finally:
        if loader is not None:
            loader.dispose()


def _key(where: str, node: Any) -> str:
    if not isinstance(node, yaml.ScalarNode) or not node.value:
        raise ParameterFileError(f"{where}: line {node.start_mark.line + 1} has a key that is not a name")
    return str(node.value)


def _sections(where: str, prefix: str, mapping: Any) -> Iterator[tuple[str, dict[str, Value]]]:
    for key_node, node in mapping.value:
        key = _key(where, key_node)
        name = f"{prefix}{'' if prefix.endswith('/') or not prefix else '/'}{key}"
        if not isinstance(node, yaml.MappingNode):
            held = repr(node.value)[:60] if isinstance(node, yaml.ScalarNode) else f"a {node.id}"
            raise ParameterFileError(
                f"{where}: {name!r} must hold {_PARAMETERS}, it holds {held}; parameters go below {_PARAMETERS}"
            )
        if key != _PARAMETERS:
            yield from _sections(where, name, node)
        elif not prefix:
            raise ParameterFileError(f"{where}: {_PARAMETERS} must be under a node name")
        else:
            _check_pattern(where, prefix)
            parameters: dict[str, Value] = {}
            _flatten(where, f"{where}, node {prefix!r}", "", node, parameters)
            yield prefix, parameters


def _check_pattern(where: str, pattern: str) -> None:
    """Check a node name with its namespaces, each of which may be `*` or `**`."""
    namespace, _, name = f"{'' if pattern.startswith('/') else '/'}{pattern}".rpartition("/")
    tokens = [token for token in namespace.split("/")[1:] if token not in ("*", "**")]
    try:
        if "" in tokens:
            raise ParameterFileError(f"{where}: {pattern!r} contains repeated forward slash")
        for token in tokens:
            validate_namespace(f"/{token}")
        if name not in ("*", "**"):
            validate_node_name(name)
    except NameValidationException as error:
        raise ParameterFileError(f"{where}: {pattern!r} is not a valid node name: {error}") from error


def _flatten(file: str, where: str, prefix: str, mapping: Any, parameters: dict[str, Value]) -> None:
    keys: set[str] = set()
    for key_node, node in mapping.value:
        key = _key(where, key_node)
        if key in keys:
            mark = " ".join(str(key_node.start_mark).split())
            raise ParameterFileError(f"{file} is not valid YAML: {key!r} is given twice {mark}")
        keys.add(key)
        if isinstance(node, yaml.MappingNode):
            _flatten(file, where, f"{prefix}{key}.", node, parameters)
        else:
            parameters[f"{prefix}{key}"] = _value(node, f"{where}, parameter {prefix + key!r}")


def _value(node: Any, where: str) -> Value:
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, where)
    if not isinstance(node, yaml.SequenceNode) or not all(isinstance(item, yaml.ScalarNode) for item in node.value):
        raise ParameterFileError(
            f"{where}: must be a bool, int, float, string or a list of them, not a nested {node.id}"
        )
    values = [_scalar(item, where) for item in node.value]
    if problem := list_problem(values):
        raise ParameterFileError(f"{where}: {problem}")
    return values or None


def _scalar(node: Any, where: str) -> bool | int | float | str:
    text: str = node.value
    if node.tag == _STRING_TAG or node.style in ("'", '"'):
        return text
    if not text:
        raise ParameterFileError(f"{where}: no value at line {node.start_mark.line + 1}")
    return plain_value(text)
