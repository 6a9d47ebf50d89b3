"""Calls into the code of extensions: whatever one of another package raises becomes an error that names it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.extensions import ExtensionError, display_name, distribution

log = logging.getLogger(__name__)


@contextmanager
def extension_errors(
    group: str,
    name: str,
    function: str,
    *,
    where: str = "",
    error: type[ValueError] = ExtensionError,
    documented: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """Raise `error`, which names the extension, in place of what the block raises, sys.exit() included.

    group, name: the extension; errors of this package's own ones are not changed. function: what is called, for the
    message. where: beginning of the message, such as "dnn.object: ". documented: errors that the function may raise
    according to its documentation; they are not changed, nor are errors of type `error`. The traceback of the original
    is logged at level DEBUG.
    """
    try:
        yield
    except (Exception, SystemExit) as raised:
        if not distribution(group, name) or isinstance(raised, (error, *documented)):
            raise
        text = raised_text(group, name, function, raised)
        log.debug("%s%s", where, text, exc_info=raised)
        raise error(f"{where}{text}") from raised


def raised_text(group: str, name: str, function: str, raised: BaseException) -> str:
    """The message for an error that `function` of an extension has raised."""
    return f"{display_name(group, name)}: {function} raised {type(raised).__name__}: {summarize_error(raised)}"


def returned_text(group: str, name: str, function: str, value: object, expected: str) -> str:
    """The message for a wrong value that `function` of an extension has returned. expected: what is allowed."""
    if value is None:
        found = "None"
    elif isinstance(value, (tuple, list)):
        found = f"a {type(value).__name__} of {', '.join(sorted({type(each).__name__ for each in value})) or 'nothing'}"
    else:
        found = f"an object of type {type(value).__name__}"
    return f"{display_name(group, name)}: {function} returned {found}; expected {expected}"
