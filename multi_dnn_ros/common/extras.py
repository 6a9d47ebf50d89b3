"""Optional libraries: the extra of setup.py that provides each, and the error for a missing one, which names the extra.

Serving needs none of them. They are imported inside the functions that use them, within :func:`optional`; a command
that runs for minutes before it needs one calls :func:`require` first.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

#: Import name of each optional library -> extra.
EXTRA_OF: Mapping[str, str] = {
    "matplotlib": "plots",
    "onnx2torch": "onnx",
    "pycocotools": "offline",
    "pynvml": "nvml",
    "ray": "ray",
    "scipy": "offline",
    "sklearn": "offline",
    "tensorly": "offline",
}


class MissingExtra(ImportError):
    """An optional library is missing or broken; the message says what needs it and which extra to install.

    `name` is the import name of the library.
    """


@contextmanager
def optional(purpose: str) -> Iterator[None]:
    """Raise MissingExtra if an import inside the block fails because of an optional library.

    purpose: what needs the library; the message begins with it. Any other ImportError passes through.
    """
    try:
        yield
    except MissingExtra:
        raise
    except ImportError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRA_OF:
            raise
        missing = isinstance(error, ModuleNotFoundError)
        what = "which is not installed" if missing else f"which cannot be imported ({error})"
        command = f'pip install "multi_dnn_ros[{EXTRA_OF[library]}]"'
        raise MissingExtra(f"{purpose} needs {library}, {what}: {command}", name=library) from error


def require(purpose: str, *libraries: str) -> None:
    """Import optional libraries now, so that a missing one is reported before the work begins.

    purpose: as for :func:`optional`. libraries: import names, keys of EXTRA_OF. Raises MissingExtra for the first
    missing one.
    """
    with optional(purpose):
        for library in libraries:
            importlib.import_module(library)
