"""Reads a ROS 2 parameter file without ROS, for the offline commands: as rcl does, but mistakes are errors."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from multi_dnn_ros.settings.flat_parameters import names_in, to_config
from multi_dnn_ros.settings.parameter_fields import ParameterError
from multi_dnn_ros.settings.params_sections import PARAMETERS, applies_to, full_name, read_text
from multi_dnn_ros.settings.rcl_values import list_problem, plain_value
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.settings.unknown_parameters import unknown_parameters

log = logging.getLogger(__name__)


def read_params_file(path: str | Path, node: str = "/multi_dnn") -> NodeConfig:
    """The configuration of a node from a parameter file. node: fully qualified name.

    Sections (``<node>: ros__parameters: ...``) apply as in ROS; later ones override earlier ones. If none applies, the
    sections of the same node in another namespace are used, provided that there is only one such node, because the
    offline commands have no namespace.
    Raises ParameterError, which names the file, each parameter, its value and what is allowed; OSError.
    """
    path = Path(path)
    try:
        text = read_text(path)
    except ValueError as error:
        raise ParameterError([f"{path}: {error}"]) from None
    try:
        document = yaml.load(text, _RosLoader)
        flat = _flat_parameters(document, node)
        config = to_config(flat)
    except ParameterError as error:
        raise ParameterError([f"{path}: {problem}" for problem in error.problems]) from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        # PyYAML does not convert the errors of int(), float() and datetime() for invalid numbers and dates.
        raise ParameterError([f"{path}: not a YAML file: {' '.join(str(error).split())}"]) from None
    for warning in unknown_parameters(flat, *names_in(flat))[1]:
        log.warning("%s: %s", path, warning)
    return config


class StrictLoader(yaml.SafeLoader):
    """Rejects aliases, as the parser of ROS does, and repeated keys, which that parser accepts without a message."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not supported", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        if not isinstance(node, yaml.MappingNode):  # `!!set` or `!!map` in front of something else
            raise yaml.constructor.ConstructorError(None, None, "not a mapping", node.start_mark)
        mapping: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_key(key_node)
            if key in mapping:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
            mapping[key] = self.construct_object(value_node, deep=True)
        return mapping

    def construct_key(self, node: yaml.Node) -> str:
        """A key of a mapping. Raises ConstructorError unless it is a string."""
        key = self.construct_object(node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not a string", node.start_mark)
        return key


class _RosLoader(StrictLoader):
    """Reads keys, plain scalars and lists as rcl does. Raises ParameterError for what rcl refuses."""

    #: Tag of a scalar that has neither quotes nor a tag in the file.
    PLAIN = "plain scalar"

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        node = super().compose_scalar_node(anchor)
        if event.tag is None and event.style not in ("'", '"'):
            node.tag = self.PLAIN
        return node

    def construct_key(self, node: yaml.Node) -> str:
        """The text of a key: a camera may be called `on`."""
        return str(node.value) if isinstance(node, yaml.ScalarNode) else super().construct_key(node)

    def construct_plain(self, node: yaml.ScalarNode) -> bool | int | float | str:
        """The value of a plain scalar."""
        if not node.value:
            raise _error_at(node, "no value")
        return plain_value(node.value)

    def construct_sequence(self, node: yaml.SequenceNode, deep: bool = False) -> list[Any]:
        nested = next((item.id for item in node.value if not isinstance(item, yaml.ScalarNode)), None)
        if nested is not None:
            raise _error_at(node, f"a list must hold bools, ints, floats or strings, not a nested {nested}")
        values = super().construct_sequence(node, deep)
        if problem := list_problem(values):
            raise _error_at(node, f"{problem} in [{', '.join(item.value for item in node.value)}]")
        return values


_RosLoader.add_constructor(_RosLoader.PLAIN, _RosLoader.construct_plain)


def _error_at(node: yaml.Node, problem: str) -> ParameterError:
    return ParameterError([f"line {node.start_mark.line + 1}: {problem}"])


def _flat_parameters(document: object, node: str) -> dict[str, Any]:
    sections = list(_sections(document, ()))
    mine = [(name, section) for name, section in sections if applies_to(name, node)]
    if not mine:
        last = node.rpartition("/")[2]
        mine = [(name, section) for name, section in sections if name.rpartition("/")[2] in (last, "*", "**")]
    others = dict.fromkeys(name for name, _ in mine if "*" not in name and not applies_to(name, node))
    found = ", ".join(dict.fromkeys(name for name, _ in sections)) or f"none with {PARAMETERS}"
    if not mine:
        raise ParameterError([f"no parameters for node '{node}'; sections found: {found}"])
    if len(others) > 1:
        raise ParameterError([f"no parameters for node '{node}', but for several others; sections found: {found}"])
    flat: dict[str, Any] = {}
    for name, section in mine:
        if not isinstance(section, Mapping):
            raise ParameterError([f"{name}: {PARAMETERS} is {section!r}; allowed: a mapping of names to values"])
        flat.update(_flattened(section, ""))
    if not flat:
        raise ParameterError([f"no parameters for node '{node}': its section {mine[0][0]} is empty"])
    return flat


def _sections(document: object, keys: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """The (name, parameters) of every node section. Namespaces may be nested mappings or part of the key."""
    if not isinstance(document, Mapping):
        return
    for key, value in document.items():
        if key != PARAMETERS:
            yield from _sections(value, (*keys, key))
        elif keys:
            yield full_name(*keys), value


def _flattened(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
