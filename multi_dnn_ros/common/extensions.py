"""The registries: what can be chosen by name, from this package and from other installed packages.

A registry maps a name to a specification object. Ours are listed in ``extensions.ini``; another package adds one by an
entry point in the registry's group, whose name is the name to choose it by (docs/extending.md). Listing names imports
nothing: the node's process, which must stay free of PyTorch, knows the names of backends without importing one.
"""

from __future__ import annotations

import configparser
import importlib
import logging
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

BACKENDS = "multi_dnn_ros.backends"
DECODERS = "multi_dnn_ros.decoders"
MODEL_SOURCES = "multi_dnn_ros.model_sources"
RESULT_KINDS = "multi_dnn_ros.result_kinds"
_NOUNS = {BACKENDS: "backend", DECODERS: "decoder", MODEL_SOURCES: "model source", RESULT_KINDS: "result kind"}


class ExtensionError(ValueError):
    """A name in a registry is not known or cannot be used; the message says why."""


def names(group: str) -> tuple[str, ...]:
    """Every name in a registry: this package's in the order of extensions.ini, then those of other packages, sorted."""
    return tuple(_points(group))


def distribution(group: str, name: str) -> str:
    """Name and version of the distribution that provides this name; empty: this package, or the name is not known."""
    point = _points(group).get(name)
    return _provider(point) if point is not None else ""


def display_name(group: str, name: str) -> str:
    """The extension for messages, such as "decoder 'centers' of my-package 0.1"."""
    provided_by = distribution(group, name)
    return f"{_NOUNS[group]} '{name}'" + (f" of {provided_by}" if provided_by else "")


def loaded(value: Any) -> Any:
    """A field of a specification: the object, which may be given as ``module:attribute``. Raises what imports raise."""
    if not isinstance(value, str):
        return value
    module, _, attribute = value.partition(":")
    return getattr(importlib.import_module(module), attribute)


class Registry(Generic[T]):
    """The specifications of one group. spec: their class, which has an attribute `name`."""

    def __init__(self, spec: type[T], group: str) -> None:
        self._spec = spec
        self._group = group
        self._reported: set[str] = set()

    def names(self) -> tuple[str, ...]:
        """See :func:`names`."""
        return names(self._group)

    def get(self, name: str) -> T:
        """The specification with this name, imported on first use.

        Raises ExtensionError if the name is unknown (the message lists the allowed names), if the specification cannot
        be imported, or if the imported object is not a specification with this name.
        """
        if name not in self.names():
            raise ExtensionError(f"{_NOUNS[self._group]} '{name}' is not known; allowed: {', '.join(self.names())}")
        point = _points(self._group)[name]
        unusable = f"{display_name(self._group, name)} cannot be used: {point.value}"
        try:
            spec = point.load()
        except Exception as error:  # whatever a module of another package raises
            raise ExtensionError(f"{unusable}: {type(error).__name__}: {error}") from None
        if not isinstance(spec, self._spec) or getattr(spec, "name", "") != name:
            raise ExtensionError(f"{unusable} is not a {self._spec.__name__} with the name '{name}'")
        return spec

    def usable(self, *, own: bool = True) -> list[T]:
        """Every specification that can be used, imported now; a warning for each other. own: with this package's."""
        found = []
        for name in self.names():
            if not own and not distribution(self._group, name):
                continue
            try:
                found.append(self.get(name))
            except ExtensionError as error:
                if name not in self._reported:
                    log.warning("%s", error)
                self._reported.add(name)
        return found


@cache
def _points(group: str) -> Mapping[str, EntryPoint]:
    """Entry points by name. Of several with one name the first is used."""
    own = configparser.ConfigParser(delimiters="=", interpolation=None)
    own.read(Path(__file__).parents[1] / "extensions.ini", encoding="utf-8")
    found = {name: EntryPoint(name, value, group) for name, value in own[group].items()}
    for point in sorted(entry_points(group=group), key=lambda point: (point.name, _provider(point))):
        if (taken := found.setdefault(point.name, point)) is not point:
            what, by = f"{_NOUNS[group]} '{point.name}' of {_provider(point)}", _provider(taken) or "multi_dnn_ros"
            log.warning("%s is not used: %s has one of this name", what, by)
    return found


def _provider(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else ""
