"""Lines of progress that say more than their text."""

from __future__ import annotations


class DnnReady(str):
    """A line which says that one more DNN is ready. Who only shows lines need not know."""

    __slots__ = ()
