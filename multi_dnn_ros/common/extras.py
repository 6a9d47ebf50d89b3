"""Optional libraries: imported inside the functions that use them, within :func:`optional`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

#: Import name of each optional library -> extra.
EXTRA_OF: Mapping[str, str] = {
    **dict.fromkeys(("pycocotools", "scipy", "sklearn", "tensorly"), "offline"),
    **dict.fromkeys(("torch", "torchvision"), "torch"),
    "matplotlib": "plots", "onnx2torch": "onnx", "pynvml": "nvml", "ray": "ray",
}  # fmt: skip


class MissingExtra(ImportError):
    """An optional library, `name`, cannot be imported; the message says what needs it and which extra to install."""


@contextmanager
def optional(purpose: str) -> Iterator[None]:
    """Raise MissingExtra if an import inside the block fails because of an optional library; other errors pass.

    purpose: what needs the library; the message begins with it.
    """
    try:
        yield
    except ImportError as error:
        library = (error.name or "").partition(".")[0]
        if isinstance(error, MissingExtra) or library not in EXTRA_OF:
            raise
        missing = isinstance(error, ModuleNotFoundError)
        what = "which is not installed" if missing else f"which cannot be imported ({error})"
        command = f'pip install "multi_dnn_ros[{EXTRA_OF[library]}]"'
        raise MissingExtra(f"{purpose} needs {library}, {what}: {command}", name=library) from error


def require(purpose: str, *libraries: str) -> None:
    """Import optional libraries, keys of EXTRA_OF, now. Raises MissingExtra for the first missing one."""
    with optional(purpose):
        for library in libraries:
            importlib.import_module(library)
