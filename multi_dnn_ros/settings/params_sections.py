"""Checks whether a ROS 2 parameter file has a section for a node. Needs only PyYAML, because launch files use it.

rcl applies the sections that match the name of a node. If none does, the node runs with its defaults, without any
message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import yaml

PARAMETERS = "ros__parameters"
MAX_BYTES = 1 << 20
_ROS_ARGS, _END = "--ros-args", "--"


class ParamsFileError(ValueError):
    """A parameter file without parameters for a node; the message is one line and names the file and the node."""


def require_parameters(path: str | Path, node: str) -> None:
    """Raise ParamsFileError unless the file has a parameter for the node. node: fully qualified name."""
    found = read_sections(path, node)
    mine = [name for name in found if applies_to(name, node)]
    where = f"parameter file {path}: no parameters for node {node}"
    if not found:
        raise ParamsFileError(f"{where}; expected a section such as `{node}:` or `/**:` with {PARAMETERS}")
    if not mine:
        raise ParamsFileError(f"{where}; its sections are for {', '.join(found)}{_hint(found, node)}")
    if not any(found[name] for name in mine):
        raise ParamsFileError(f"{where}; its section {mine[0]} is empty")


def require_parameters_in_any(paths: Sequence[str | Path], node: str) -> list[str]:
    """Raise ParamsFileError unless one of the files has a parameter for the node, or there are no files.

    node: fully qualified name. Also raises ParamsFileError for a file that is missing, empty or not YAML. Returns a
    warning for each file without parameters for the node if another one has some, because nodes may share files.
    """
    errors = []
    for path in paths:
        read_sections(path, node)  # its errors are fatal for every file
        try:
            require_parameters(path, node)
        except ParamsFileError as error:
            errors.append(error)
    if errors and len(errors) == len(paths):
        raise errors[0] if len(errors) == 1 else ParamsFileError("; ".join(map(str, errors)))
    return [str(error) for error in errors]


def applies_to(section: str, node: str) -> bool:
    """Whether ROS applies a section to a node. section, node: names that start with /.

    As in rclpy, `/*` matches one part of a name, `/**` any number of parts.
    """
    pattern = "".join(
        re.escape(part) if not part.startswith("/*") else r"(/\w+)" + ("*" if part == "/**" else "")
        for part in re.split(r"(/\*\*?)", section)
    )
    return re.fullmatch(pattern, node) is not None


def full_name(*keys: str) -> str:
    """The name of a section from its keys, outermost first; namespaces may be nested mappings."""
    name = keys[0]
    for key in keys[1:]:
        name += key if name.endswith("/") else f"/{key}"
    return name if name.startswith("/") else f"/{name}"


def files_in(arguments: Sequence[str]) -> list[str]:
    """The files after `--params-file` in the ROS part of a command line."""
    files, inside, previous = [], False, ""
    for word in arguments:
        if inside and previous == "--params-file":
            files.append(word)
        inside = word == _ROS_ARGS or (inside and word != _END)
        previous = word
    return files


def read_text(path: Path) -> str:
    """The text of a file. Raises OSError, and ValueError if it is too large or not UTF-8."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"{size} bytes; allowed for a parameter file: at most {MAX_BYTES}")
    return path.read_text(encoding="utf-8")


def read_sections(path: str | Path, node: str) -> dict[str, int]:
    """The sections of a file: name -> number of entries.

    Raises ParamsFileError, which names the node, if the file is missing, empty or not YAML.
    """
    where = f"parameter file {path} of node {node}"
    try:
        root = yaml.compose(read_text(Path(path)), yaml.SafeLoader)
    except OSError as error:
        raise ParamsFileError(f"{where}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ParamsFileError(f"{where}: not a parameter file: {' '.join(str(error).split())}") from None
    if root is None:
        raise ParamsFileError(f"{where}: the file is empty")
    found: dict[str, int] = {}
    for name, entries in _walk(root, ()):
        found[name] = found.get(name, 0) + entries
    return found


def _walk(node: yaml.Node, keys: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if key.value == PARAMETERS and keys:
            yield full_name(*keys), len(value.value) if isinstance(value, yaml.MappingNode) else 0
        elif key.value != PARAMETERS:
            yield from _walk(value, (*keys, str(key.value)))


def _hint(found: Iterable[str], node: str) -> str:
    """A hint for a common mistake: a section without the namespace of the node."""
    name = node.rpartition("/")[2]
    if any(section.rpartition("/")[2] == name for section in found):
        return f"; section names are absolute: `{node}:`, or `/**/{name}:` for any namespace"
    return ""
