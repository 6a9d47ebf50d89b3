"""Reads a ROS 2 parameter file without ROS, for the offline commands; stricter than ROS about mistakes."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from multi_dnn_ros.flat_parameters import ParameterError, names_in, to_config, unknown_parameters
from multi_dnn_ros.schema import NodeConfig

log = logging.getLogger(__name__)

_MAX_BYTES = 1 << 20
_PARAMETERS = "ros__parameters"


def read_params_file(path: str | Path, node_name: str = "multi_dnn") -> NodeConfig:
    """The configuration of node `node_name` in a parameter file (``<node>: ros__parameters: ...``).

    Sections of the node in any namespace and the wildcards ``/*`` and ``/**`` apply, later ones over earlier ones.
    Raises ParameterError, which names the file and each parameter, its value and what is allowed; OSError.
    """
    path = Path(path)
    size = path.stat().st_size
    if size > _MAX_BYTES:
        raise ParameterError([f"{path}: {size} bytes; a parameter file has at most {_MAX_BYTES}"])
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _Loader)
        flat = _flat_parameters(document, node_name)
        config = to_config(flat)
    except ParameterError as error:
        raise ParameterError([f"{path}: {problem}" for problem in error.problems]) from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        # PyYAML lets through what Python's own int(), float() and datetime() say of impossible numbers and dates.
        raise ParameterError([f"{path}: not a YAML file: {' '.join(str(error).split())}"]) from None
    for warning in unknown_parameters(flat, *names_in(flat))[1]:
        log.warning("%s: %s", path, warning)
    return config


class _Loader(yaml.SafeLoader):
    """Refuses what ROS's own parser refuses (aliases) and what it lets pass in silence (a key given twice)."""

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
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not a text", key_node.start_mark)
            if key in mapping:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            mapping[key] = self.construct_object(value_node, deep=True)
        return mapping


def _flat_parameters(document: object, node_name: str) -> dict[str, Any]:
    sections = dict(_sections(document, ""))
    mine = {name: section for name, section in sections.items() if name.split("/")[-1] in (node_name, "*", "**")}
    if not mine:
        found = ", ".join(sections) or f"none with {_PARAMETERS}"
        raise ParameterError([f"no parameters for node '{node_name}'; sections found: {found}"])
    flat: dict[str, Any] = {}
    for name, section in mine.items():
        if not isinstance(section, Mapping):
            raise ParameterError([f"{name}: {_PARAMETERS} is {section!r}; allowed: a mapping of names to values"])
        flat.update(_flattened(section, ""))
    return flat


def _sections(document: object, name: str) -> Iterator[tuple[str, object]]:
    """Every node section; namespaces may be nested mappings or part of the key."""
    if not isinstance(document, Mapping):
        return
    for key, value in document.items():
        if key == _PARAMETERS:
            yield name, value
        else:
            yield from _sections(value, f"{name}/{key.strip('/')}")


def _flattened(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
