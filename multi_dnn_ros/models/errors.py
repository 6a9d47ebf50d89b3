"""Errors of models and their files."""

from __future__ import annotations

#: Maximum length of a message. Attributes of a file, such as the mode of a Resize, can be megabytes of text.
_MAX_LENGTH = 1000
#: Characters that are kept at the end of a longer message.
_END_LENGTH = 300


class ModelError(ValueError):
    """A DNN cannot be loaded or used; the message names the file or parameter, its value and what is allowed."""


class ExportError(ValueError):
    """A network cannot be exported to ONNX; the message names the operation or the exporter's reason."""


class Refusal(ValueError):
    """An ONNX model is refused. The message is one line: operator, input, output or tensor, what is expected, what to
    do. The caller puts the file's name before it. Unprintable characters are replaced by "?", and the middle of a
    message of more than 1000 characters by "...".
    """

    def __init__(self, message: str) -> None:
        if len(message) > _MAX_LENGTH:
            message = f"{message[: _MAX_LENGTH - _END_LENGTH - 3]}...{message[-_END_LENGTH:]}"
        super().__init__("".join(each if each.isprintable() else "?" for each in message))


def node_name(node: object) -> str:
    """Text for an onnx.NodeProto in messages: operator and, if it has one, name, both cut to a readable length."""
    operator, name = str(getattr(node, "op_type", ""))[:60], str(getattr(node, "name", ""))[:80]
    domain = str(getattr(node, "domain", ""))[:60]
    full = f"{domain}.{operator}" if domain not in ("", "ai.onnx") else operator
    return f"{full} (node {name!r})" if name else full
