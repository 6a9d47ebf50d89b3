"""Messages about parameters that a node does not have: probable typing errors, and parameters of other nodes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from multi_dnn_ros.settings.parameter_fields import LISTS, OUTPUTS, SECTIONS, fields_of, parameter_fields, shown
from multi_dnn_ros.settings.schema import OutputConfig

#: Parameters that rclpy reads itself, and the prefix of others.
_RCLPY = ("use_sim_time", "start_type_description_service")
_RCLPY_PREFIX = "qos_overrides."


def unknown_parameters(
    flat: Mapping[str, Any],
    cameras: Sequence[str],
    dnns: Sequence[str],
    outputs: Mapping[str, Sequence[str]] | None = None,
) -> tuple[list[str], list[str]]:
    """Errors and warnings about names that are no parameters of a node with these cameras and DNNs. outputs: by DNN.

    A name that resembles a parameter is an error. A name that resembles none is a warning, because one file may hold
    parameters of several nodes. A parameter of a camera or DNN that is not in use is usually a warning, too.
    """
    members = {"camera": tuple(cameras), "dnn": tuple(dnns)}
    known = parameter_fields(cameras, dnns, outputs)
    errors: list[str] = []
    warnings: list[str] = []
    for name, value in flat.items():
        if name in known or name in _RCLPY or name.startswith(_RCLPY_PREFIX):
            continue
        kind, _, rest = name.partition(".")
        member, _, field = rest.partition(".")
        if kind not in members:
            meant = difflib.get_close_matches(name, (*known, *_RCLPY), 1)
            if meant or kind in LISTS.values():
                errors.append(f"parameter {name}: no such parameter{_did_you_mean(meant)}")
            else:
                text = f"parameter {name}: not a parameter of this node, ignored"
                warnings.append(f"{text}; the most similar name is {_most_similar(name, known)}")
        elif kind == "dnn" and member in dnns and field.startswith("output."):
            errors.extend(_unknown_output(name, member, field, (outputs or {}).get(member, ())))
        elif member in members[kind] or _section_field(kind, field) not in fields_of(SECTIONS[kind]):
            fields = fields_of(SECTIONS[kind])
            meant = [f"{kind}.{member}.{match}" for match in difflib.get_close_matches(field, fields, 1)]
            errors.append(
                f"parameter {name}: a {kind} has no parameter {shown(field)}{_did_you_mean(meant)}; "
                f"it has {', '.join(fields)}"
            )
        elif value != _default(name, kind, member):
            text = f"parameter {name}: {kind} {shown(member)} is not in {LISTS[kind]} ({', '.join(members[kind])})"
            untouched = [m for m in members[kind] if not any(given.startswith(f"{kind}.{m}.") for given in flat)]
            meant = [f"{kind}.{match}.{field}" for match in difflib.get_close_matches(member, untouched, 1, 0.8)]
            (errors if meant else warnings).append(text + (_did_you_mean(meant) or "; not used"))
    return errors, warnings


def _unknown_output(name: str, dnn: str, field: str, outputs: Sequence[str]) -> Iterator[str]:
    """An error about `dnn.<dnn>.output.<output>.<field>`, which is no parameter."""
    _, output, leaf = (*field.split(".", 2), "")[:3]
    fields = fields_of(OutputConfig)
    if leaf not in fields:
        meant = [f"dnn.{dnn}.output.{output}.{match}" for match in difflib.get_close_matches(leaf, fields, 1)]
        yield (
            f"parameter {name}: an output has no parameter {shown(leaf)}{_did_you_mean(meant)}; "
            f"it has {', '.join(fields)}"
        )
    elif output not in outputs:
        meant = [f"dnn.{dnn}.output.{match}.{leaf}" for match in difflib.get_close_matches(output, outputs, 1)]
        listed = ", ".join(outputs) or "none"
        yield f"parameter {name}: {shown(output)} is not in dnn.{dnn}.outputs ({listed}){_did_you_mean(meant)}"


def _section_field(kind: str, field: str) -> str:
    """The name in the section of a camera or DNN: `outputs` for a parameter of an output."""
    return OUTPUTS if kind == "dnn" and field.startswith("output.") else field


def _most_similar(name: str, known: Iterable[str]) -> str:
    """The parameter most similar to `name`, compared as a whole and by the part after the last dot."""
    last = name.rpartition(".")[2]

    def similarity(parameter: str) -> float:
        leaf = parameter.rpartition(".")[2]
        return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in ((name, parameter), (last, leaf)))

    return max(known, key=similarity)


def _default(name: str, kind: str, member: str) -> Any:
    names = {"camera": ((member,), ()), "dnn": ((), (member,))}[kind]
    field = parameter_fields(*names).get(name)
    return field.default if field is not None else None


def _did_you_mean(names: Iterable[str]) -> str:
    return "".join(f"; did you mean {name}?" for name in names)
