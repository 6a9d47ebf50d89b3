"""JSON files with measured times: read as data, checked against their type. Imports no PyTorch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

_MOST_BYTES = 64 << 20

Content = TypeVar("Content", bound=BaseModel)


class ProfileError(ValueError):
    """A profile, table or predictor cannot be used; the message names it, the error and what is expected."""


def read_checked(path: Path, kind: type[Content], what: str, maker: str) -> Content:
    """Read a JSON file as `kind`. Only data is read; nothing in the file is executed.

    what, maker: the expected content and the command that writes it, for the ProfileError about any other file.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ProfileError(f"{path}: larger than {_MOST_BYTES >> 20} MiB; expected a {what}")
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
