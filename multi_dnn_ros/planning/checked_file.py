"""Reads JSON files with measured times, checked against their type. Imports no PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

_MAX_BYTES = 64 << 20

Content = TypeVar("Content", bound=BaseModel)


class ProfileError(ValueError):
    """A profile, table or predictor cannot be used; the message names the file, the error and what is expected."""


def read_checked(path: Path, kind: type[Content], what: str, maker: str) -> Content:
    """Read a JSON file as `kind`. Only data is read; nothing in the file is executed.

    what, maker: the expected content and the command that writes it, for messages. Raises ProfileError if the file
    cannot be read or has other content.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ProfileError(f"{path}: larger than {_MAX_BYTES >> 20} MiB; expected a {what}")
        return kind.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ProfileError(f"{path}: not a {what} of {maker}: {where}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, ProfileError):
            raise
        raise ProfileError(f"{path}: not a {what} of {maker}: {error}") from None
