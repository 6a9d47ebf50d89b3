"""Reads files of `multi-dnn benchmark board`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from multi_dnn_ros.benchmark.board.record import SCENARIO, SCHEMA_VERSION, BoardRecord
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.common.json_files import read_json_object

_EXPECTED = "figures of `multi-dnn benchmark board`"


def read_board(path: Path) -> BoardRecord:
    """The record in a file. Raises UsageError, one line, for a file of another origin, schema version or content."""
    return parse_board(read_json_object(path, _EXPECTED, UsageError), path)


def parse_board(content: dict[str, Any], path: Path) -> BoardRecord:
    """As :func:`read_board`, for the content of a file."""
    if content.get("scenario") != SCENARIO:
        raise UsageError(f"{path} was not written by `multi-dnn benchmark board`")
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{path} has schema version {version!r}; this version of the package reads {SCHEMA_VERSION}: "
            "measure again, or use the version that wrote it"
        )
    try:
        return BoardRecord.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{path} is damaged: {first_problem(error)}") from None


def first_problem(error: ValidationError) -> str:
    """Location and message of the first problem, one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{'.'.join(map(str, first['loc'])) or 'file'}: {first['msg']}{more}"
