"""Parameter values and parameter files in YAML, read as rcl's parser reads them.

PyYAML alone follows YAML 1.1, where `1e5` is a string, `1:30` a number and a date a date; rcl follows the C library.
The loader here has rcl's rules for plain scalars and nothing else, so a value means the same under both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

Value: TypeAlias = Any  # bool | int | float | str | list of one of them | None

_MAX_FILE_BYTES: Final = 10_000_000
_INT64: Final = range(-(2**63), 2**63)


class ParameterFileError(ValueError):
    """A parameter file or value that cannot be used; the message names it."""


class _Loader(yaml.SafeLoader):
    """Plain scalars by rcl's rules; aliases (a small file stays small) and a key given twice are refused."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, f"line {self.line + 1}: aliases are not supported")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            # rcl takes the last one in silence; of two cameras of one name the first would be lost.
            if key.value in names:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands twice", key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                names.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def _construct_int(loader: Any, node: Any) -> int:
    text = loader.construct_scalar(node)
    sign, digits = (-1, text[1:]) if text[0] == "-" else (1, text.lstrip("+"))
    base = 16 if digits[:2] in ("0x", "0X") else 8 if len(digits) > 1 and digits[0] == "0" else 10
    value = sign * int(digits, base)
    if value not in _INT64:
        raise yaml.constructor.ConstructorError(None, None, f"{text} does not fit 64 bits", node.start_mark)
    return value


def _construct_float(loader: Any, node: Any) -> float:
    text = loader.construct_scalar(node).lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"(?:y|Y|yes|Yes|YES|on|On|ON|true|True|TRUE|n|N|no|No|NO|off|Off|OFF|false|False|FALSE)", "yYnNtTfFoO"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*|0[0-7]+|0[xX][0-9a-fA-F]+)", "-+0123456789"),
    (
        "float",
        r"(?:[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))",
        "-+.0123456789",
    ),
    ("null", r"(?:~|null|Null|NULL|)", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^{_pattern}$"), list(_first))
_Loader.yaml_constructors = {
    **yaml.SafeLoader.yaml_constructors,
    "tag:yaml.org,2002:int": _construct_int,
    "tag:yaml.org,2002:float": _construct_float,
    "tag:yaml.org,2002:bool": lambda loader, node: (
        loader.construct_scalar(node)[0] in "yYtT" or loader.construct_scalar(node).lower() == "on"
    ),
}


def parse_value(text: str) -> Value:
    """Return the value that the text of `-p name:=text` stands for.

    Raises:
        ParameterFileError: when the text is not YAML, or not a scalar or a list of scalars of one type.
    """
    return _checked(_load(text, "parameter value"), repr(text))


def load_parameter_file(path: str) -> list[tuple[str, dict[str, Value]]]:
    """Return the sections of a parameter file, in order: (node name pattern, {parameter: value}).

    Nested mappings under `ros__parameters` become names joined with dots.

    Raises:
        ParameterFileError: names the file, and the node and parameter where it can.
    """
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ParameterFileError(f"cannot read parameter file {path!r}: {error.strerror}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise ParameterFileError(f"parameter file {path!r} is larger than {_MAX_FILE_BYTES} bytes")
    document = _load(data, f"parameter file {path!r}")
    if not isinstance(document, dict) or not document:
        raise ParameterFileError(
            f"parameter file {path!r} must map node names to ros__parameters, it holds {type(document).__name__}"
        )
    return list(_sections(path, "", document))


def _load(data: str | bytes, where: str) -> Any:
    loader = None
    try:
        loader = _Loader(data)
        return loader.get_single_data()
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError, TypeError) as error:
        raise ParameterFileError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from error
    finally:
        if loader is not None:
            loader.dispose()


def _sections(path: str, prefix: str, mapping: dict[Any, Any]) -> Iterator[tuple[str, dict[str, Value]]]:
    for key, value in mapping.items():
        if not isinstance(value, dict):
            raise ParameterFileError(
                f"parameter file {path!r}: {prefix + str(key)!r} must hold ros__parameters, it holds {value!r:.60}"
            )
        if key == "ros__parameters":
            if not prefix:
                raise ParameterFileError(f"parameter file {path!r}: ros__parameters must stand under a node name")
            yield prefix.removesuffix("/"), dict(_flatten(path, prefix, "", value))
        else:
            yield from _sections(path, f"{prefix}{str(key).strip('/') if prefix else key}/", value)


def _flatten(path: str, node: str, prefix: str, mapping: dict[Any, Any]) -> Iterator[tuple[str, Value]]:
    for key, value in mapping.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flatten(path, node, f"{name}.", value)
        else:
            yield name, _checked(value, f"parameter file {path!r}, node {node.removesuffix('/')!r}, parameter {name!r}")


def _checked(value: Value, where: str) -> Value:
    if isinstance(value, list):
        kinds = {type(item) for item in value}
        if len(kinds) > 1 or not kinds <= {bool, int, float, str}:
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise ParameterFileError(
                f"{where}: a list must hold bools, ints, floats or strings of one type, not {names}"
            )
    elif value is not None and not isinstance(value, (bool, int, float, str)):
        raise ParameterFileError(f"{where}: must be a bool, int, float, string or a list of them, not {value!r:.60}")
    return value
