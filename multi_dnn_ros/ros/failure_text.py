"""The messages for a transition that failed."""

from __future__ import annotations

import traceback

from multi_dnn_ros.serving.descriptions import ConfigureError


def failure_text(what: str, error: Exception) -> tuple[str, list[str]]:
    """A summary for the status of the node, and the lines for the log. what: the transition as a verb.

    Mistakes in parameters and files are explained by their message, other errors by a traceback.
    """
    if isinstance(error, ConfigureError):
        expected, text = error.expected, error.text
    else:
        expected = isinstance(error, (ValueError, OSError))
        text = str(error) if expected else "".join(traceback.format_exception(error))
    lines = text.splitlines() or [type(error).__name__]
    summary = f"cannot {what}: {text if expected else lines[-1]}"
    return summary, [f"cannot {what}: {line}" for line in lines]
