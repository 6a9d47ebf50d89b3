"""ROS names: validation, expansion of `~` and relative names, and remapping.

Source: the ROS 2 design article "Topic and Service name mapping to DDS" and the rules of rcl's name expansion.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from multi_dnn_ros.standalone.errors import (
    InvalidNamespaceException,
    InvalidNodeNameException,
    InvalidServiceNameException,
    InvalidTopicNameException,
)

_MAX_NODE_NAME: Final = 255
_MAX_NAMESPACE: Final = 245
_MAX_TOPIC_NAME: Final = 247
_SUBSTITUTION: Final = re.compile(r"\{([^{}]*)\}")
_DIGIT_AFTER_SLASH: Final = re.compile(r"/(?=[0-9])")

_Error: TypeAlias = Callable[[str, int], Exception]  # (message, index of the invalid character) -> exception


def validate_node_name(name: str) -> None:
    """Check a node name.

    Raises:
        InvalidNodeNameException: shows the name and the first invalid character.
    """

    def error(message: str, index: int) -> Exception:
        return InvalidNodeNameException(name, f"node name {message}", index)

    if not name:
        raise error("must not be empty", 0)
    wrong = re.search(r"[^A-Za-z0-9_]", name)
    if wrong:
        raise error("must not contain characters other than alphanumerics or '_'", wrong.start())
    if name[0].isdigit():
        raise error("must not start with a number", 0)
    if len(name) > _MAX_NODE_NAME:
        raise error(f"length should not exceed '{_MAX_NODE_NAME}'", _MAX_NODE_NAME - 1)


def validate_namespace(namespace: str) -> None:
    """Check an absolute namespace such as "/" or "/robot/front".

    Raises:
        InvalidNamespaceException: shows the namespace and the first invalid character.
    """

    def error(message: str, index: int) -> Exception:
        return InvalidNamespaceException(namespace, f"namespace {message}", index)

    if namespace == "/":
        return
    _check_absolute(namespace, error, ", unless only a '/'")
    if len(namespace) > _MAX_NAMESPACE:
        raise error(f"should not exceed '{_MAX_NAMESPACE}'", _MAX_NAMESPACE - 1)


def validate_full_topic_name(name: str, *, is_service: bool = False) -> None:
    """Check an absolute topic or service name, after expansion.

    Raises:
        InvalidTopicNameException, InvalidServiceNameException: shows the name and the first invalid character.
    """
    error = _topic_error(name, is_service)
    _check_absolute(name, lambda message, index: error(f"topic name {message}", index))
    if len(name) > _MAX_TOPIC_NAME:
        raise error(f"topic length should not exceed '{_MAX_TOPIC_NAME}'", _MAX_TOPIC_NAME - 1)


def validate_topic_name(name: str, *, is_service: bool = False) -> None:
    """Check a topic or service name before expansion: relative, private (`~`) or with substitutions.

    Raises:
        InvalidTopicNameException, InvalidServiceNameException: shows the name and the first invalid character.
    """
    error = _topic_error(name, is_service)
    if not name:
        raise error("topic name must not be empty string", 0)
    if name[0].isascii() and name[0].isdigit():
        raise error("topic name token must not start with a number", 0)
    if name.endswith("/"):
        raise error("topic name must not end with a forward slash", len(name) - 1)
    _check_characters(name, error)
    number = _DIGIT_AFTER_SLASH.search(name)
    if name.startswith("~") and len(name) > 2 and name[1] != "/":
        raise error("topic name must not have a tilde '~' that is not followed by a forward slash '/'", 1)
    if number:
        raise error("topic name token must not start with a number", number.end())


def _check_characters(name: str, error: _Error) -> None:
    """Check characters and braces from left to right."""
    opened: int | None = None
    for index, character in enumerate(name):
        if character == "{" and opened is None:
            opened = index
        elif character == "}":
            if opened is None:
                raise error("topic name must not have unmatched (unbalanced) curly braces '{}'", index)
            opened = None
        elif character == "~" and index:
            raise error("topic name must not have tilde '~' unless it is the first character", index)
        elif opened is not None:
            if not re.fullmatch(r"[A-Za-z0-9_]", character):
                raise error("substitution name must not contain characters other than alphanumerics or '_'", index)
            if character.isdigit() and index == opened + 1:
                raise error("substitution name must not start with a number", index)
        elif not re.fullmatch(r"[A-Za-z0-9_/~]", character):
            raise error("topic name must not contain characters other than alphanumerics, '_', '~', '{', or '}'", index)
    if opened is not None:
        raise error("topic name must not have unmatched (unbalanced) curly braces '{}'", opened)


def _topic_error(name: str, is_service: bool) -> _Error:
    kind = InvalidServiceNameException if is_service else InvalidTopicNameException
    return lambda message, index: kind(name, message, index)


def expand(name: str, node_name: str, namespace: str, *, service: bool = False) -> str:
    """Expand a relative, private (`~`) or absolute name to an absolute one.

    Raises:
        InvalidTopicNameException, InvalidServiceNameException: shows the name and the first invalid character.
        ValueError: for a substitution other than {node}, {ns} and {namespace}; names it.
    """
    validate_topic_name(name, is_service=service)
    base = namespace.rstrip("/")

    def substitute(match: re.Match[str]) -> str:
        known = {"node": node_name, "ns": namespace, "namespace": namespace}
        if match.group(1) not in known:
            raise ValueError(f"topic name {name!r} is invalid: unknown substitution: {match.group(0)}")
        return known[match.group(1)]

    expanded = f"{base}/{node_name}{name[1:]}" if name.startswith("~") else name
    expanded = _SUBSTITUTION.sub(substitute, expanded)
    if not expanded.startswith("/"):
        expanded = f"{base}/{expanded}"
    validate_full_topic_name(expanded, is_service=service)
    return expanded


def qualified(namespace: str, node_name: str) -> str:
    """Return a node's fully qualified name."""
    return f"{namespace.rstrip('/')}/{node_name}"


def _check_absolute(name: str, error: _Error, root: str = "") -> None:
    if not name:
        raise error("must not be empty", 0)
    if not name.startswith("/"):
        raise error("must be absolute, it must lead with a '/'", 0)
    if name.endswith("/"):
        raise error(f"must not end with a '/'{root}", len(name) - 1)
    wrong = re.search(r"[^A-Za-z0-9_/]", name)
    if wrong:
        raise error("must not contain characters other than alphanumerics, '_', or '/'", wrong.start())
    for match in re.finditer(r"/(?=[/0-9])", name):
        if name[match.end()] == "/":
            raise error("must not contain repeated '/'", match.end())
        raise error("must not have a token that starts with a number", match.end())


@dataclass(frozen=True)
class RemapRule:
    """One rule `[node:]from:=to`; `kind` is "topic", "service", "name" (both), "node" or "namespace"."""

    kind: str
    source: str
    target: str
    node: str | None = None

    @classmethod
    def parse(cls, text: str) -> RemapRule:
        """Parse the rule in a command line argument.

        Raises:
            ValueError: names the argument and the expected form.
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
    """Apply the rules to a node's name and namespace; the first matching rule of each kind applies."""
    new: dict[str, str] = {}
    for rule in rules:
        if rule.kind in ("node", "namespace") and rule.node in (None, node_name):
            new.setdefault(rule.kind, rule.target)
    return new.get("node", node_name), new.get("namespace", namespace)


def remap(rules: Iterable[RemapRule], name: str, node_name: str, namespace: str, *, service: bool = False) -> str:
    """Expand the name, apply the first matching rule, and return the absolute name."""
    absolute = expand(name, node_name, namespace, service=service)
    for rule in rules:
        if rule.kind not in ("name", "service" if service else "topic") or rule.node not in (None, node_name):
            continue
        if expand(rule.source, node_name, namespace, service=service) == absolute:
            return expand(rule.target, node_name, namespace, service=service)
    return absolute
