"""The error for an ONNX model that cannot be used."""

from __future__ import annotations

#: Longest message. Attributes of a file, such as the mode of a Resize, can be megabytes of text.
_LONGEST = 1000
_END = 300


class Refusal(ValueError):
    """An ONNX model is refused. The message is one line: operator, input, output or tensor, what is expected, what to
    do. The caller puts the file's name before it. Characters that cannot be printed become "?", and the middle of a
    message of more than 1000 characters "...".
    """

    def __init__(self, message: str) -> None:
        if len(message) > _LONGEST:
            message = f"{message[: _LONGEST - _END - 3]}...{message[-_END:]}"
        super().__init__("".join(each if each.isprintable() else "?" for each in message))


def node_name(node: object) -> str:
    """Text for an onnx.NodeProto in messages: operator and, if it has one, name, both cut to a readable length."""
    operator, name = str(getattr(node, "op_type", ""))[:60], str(getattr(node, "name", ""))[:80]
    domain = str(getattr(node, "domain", ""))[:60]
    full = f"{domain}.{operator}" if domain not in ("", "ai.onnx") else operator
    return f"{full} (node {name!r})" if name else full
