"""Progress lines that carry a meaning besides their text."""

from __future__ import annotations


class DnnReady(str):
    """A line reporting that one more DNN is ready. Consumers that only display lines can ignore the type."""

    __slots__ = ()
