"""Whether a path that a user gave names a file or a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def path_problem(path: str, kind: Literal["file", "folder"]) -> str:
    """Why `path`, which may begin with ~ or ~user, is not an existing file or folder; empty if it is."""
    try:
        found = Path(path).expanduser()
        if found.is_file() if kind == "file" else found.is_dir():
            return ""
    except RuntimeError:
        return "the home folder of this user is not known"
    except OSError as error:  # such as a name that is too long, or a folder that may not be searched
        return f"the {kind} cannot be found: {error.strerror}"
    return f"there is no such {kind}"
