"""ROS names: validation, expansion of `~` and relative names, and remapping.

Source: the ROS 2 design article "Topic and Service name mapping to DDS" and the rules of rcl's name expansion.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from multi_dnn_ros.standalone.errors import (
    InvalidNamespaceException,
    InvalidNodeNameException,
    InvalidServiceNameException,
    InvalidTopicNameException,
)

_MAX_LENGTH: Final = 255
_TOKEN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SUBSTITUTION: Final = re.compile(r"\{([^{}]*)\}")


def validate_node_name(name: str) -> None:
    """Check a node's own name.

    Raises:
        InvalidNodeNameException: names the name and the first character that is not allowed.
    """
    if not name:
        raise InvalidNodeNameException(name, "node name must not be empty")
    if len(name) > _MAX_LENGTH:
        raise InvalidNodeNameException(name, f"node name must not be longer than {_MAX_LENGTH} characters", _MAX_LENGTH)
    _check_token(name, 0, lambda message, index: InvalidNodeNameException(name, f"node name {message}", index))


def validate_namespace(namespace: str) -> None:
    """Check an absolute namespace such as "/" or "/robot/front".

    Raises:
        InvalidNamespaceException: names the namespace and the first character that is not allowed.
    """

    def error(message: str, index: int) -> Exception:
        return InvalidNamespaceException(namespace, f"namespace {message}", index)

    if not namespace.startswith("/"):
        raise error("must be absolute, it must lead with a '/'", 0)
    if namespace != "/":
        _check_tokens(namespace, error)


def expand(name: str, node_name: str, namespace: str, *, service: bool = False) -> str:
    """Return the absolute name that a relative, private (`~`) or absolute name stands for.

    Raises:
        InvalidTopicNameException, InvalidServiceNameException: names the name and the first character not allowed.
    """
    kind = InvalidServiceNameException if service else InvalidTopicNameException
    what = "service name" if service else "topic name"

    def error(message: str, index: int) -> Exception:
        return kind(name, f"{what} {message}", index)

    if not name:
        raise error("must not be empty string", 0)
    base = namespace.rstrip("/")

    def substitute(match: re.Match[str]) -> str:
        known = {"node": node_name, "ns": namespace, "namespace": namespace}
        if match.group(1) not in known:
            raise error(f"has an unknown substitution {match.group(0)}", match.start())
        return known[match.group(1)]

    expanded = _SUBSTITUTION.sub(substitute, name)
    if expanded.startswith("~"):
        if len(expanded) > 1 and expanded[1] != "/":
            raise error("must not have a '~' that is not followed by a '/'", 1)
        expanded = f"{base}/{node_name}{expanded[1:]}"
    elif not expanded.startswith("/"):
        expanded = f"{base}/{expanded}"
    _check_tokens(expanded, error)
    return expanded


def qualified(namespace: str, node_name: str) -> str:
    """Return a node's fully qualified name."""
    return f"{namespace.rstrip('/')}/{node_name}"


def _check_tokens(name: str, error: Callable[[str, int], Exception]) -> None:
    index = 1
    for token in name[1:].split("/"):
        if not token:
            message = "must not end with '/'" if index >= len(name) else "must not contain repeated '/'"
            raise error(message, index - 1)
        _check_token(token, index, error)
        index += len(token) + 1


def _check_token(token: str, offset: int, error: Callable[[str, int], Exception]) -> None:
    match = _TOKEN.match(token)
    if match is None and token[0].isascii() and token[0].isdigit():
        raise error("must not have a token that starts with a number", offset)
    end = match.end() if match else 0
    if end != len(token):
        raise error("must not contain characters other than alphanumerics and '_'", offset + end)


@dataclass(frozen=True)
class RemapRule:
    """One rule `[node:]from:=to`; `kind` is "topic", "service", "name" (both), "node" or "namespace"."""

    kind: str
    source: str
    target: str
    node: str | None = None

    @classmethod
    def parse(cls, text: str) -> RemapRule:
        """Return the rule that a command line argument states.

        Raises:
            ValueError: names the argument and the form that is expected.
        """
        source, separator, target = text.partition(":=")
        node = None
        match = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*):(?!//)(.*)", source)
        if match:
            node, source = match.groups()
        if not separator or not source or not target:
            raise ValueError(f"a remap rule must have the form [node:]from:=to, not {text!r}")
        if source in ("__node", "__name"):
            validate_node_name(target)
            return cls("node", source, target, node)
        if source == "__ns":
            validate_namespace(target)
            return cls("namespace", source, target, node)
        kind = "name"
        for prefix, meaning in (("rostopic://", "topic"), ("rosservice://", "service")):
            if source.startswith(prefix):
                kind, source = meaning, source[len(prefix) :]
                target = target.removeprefix(prefix)
        for part in (source, target):
            expand(part, "node", "/")
        return cls(kind, source, target, node)


def remap_node(rules: Iterable[RemapRule], node_name: str, namespace: str) -> tuple[str, str]:
    """Return name and namespace of a node after the rules; the first rule of each kind that fits counts."""
    new: dict[str, str] = {}
    for rule in rules:
        if rule.kind in ("node", "namespace") and rule.node in (None, node_name):
            new.setdefault(rule.kind, rule.target)
    return new.get("node", node_name), new.get("namespace", namespace)


def remap(rules: Iterable[RemapRule], name: str, node_name: str, namespace: str, *, service: bool = False) -> str:
    """Return the absolute name after expansion and the first rule that fits."""
    absolute = expand(name, node_name, namespace, service=service)
    for rule in rules:
        if rule.kind not in ("name", "service" if service else "topic") or rule.node not in (None, node_name):
            continue
        if expand(rule.source, node_name, namespace, service=service) == absolute:
            return expand(rule.target, node_name, namespace, service=service)
    return absolute
