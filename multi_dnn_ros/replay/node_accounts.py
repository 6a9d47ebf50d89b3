"""The node's frame counts, read from its diagnostics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_DROPPED = "dropped: "


@dataclass(frozen=True)
class StreamAccount:
    """Frames of one DNN on one camera since activation: offered == published + pending + sum(dropped)."""

    offered: int = 0
    published: int = 0
    pending: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


def stream_accounts(message: Any, node: str) -> Iterator[tuple[tuple[str, str], StreamAccount]]:
    """((dnn, camera), account) of each stream of `node` in a diagnostic_msgs/DiagnosticArray.

    node: fully qualified name. Statuses that are not streams, or lack a count, are skipped.
    """
    prefix = f"{node.lstrip('/')}: "
    for status in message.status:
        dnn, separator, camera = status.name.removeprefix(prefix).partition(" on ")
        if not (separator and status.name.startswith(prefix)):
            continue
        values = {entry.key: entry.value for entry in status.values}
        try:
            offered, published, pending = (int(values[name]) for name in ("offered", "published", "pending"))
            dropped = Counter(
                {key.removeprefix(_DROPPED): int(text) for key, text in values.items() if key.startswith(_DROPPED)}
            )
        except (KeyError, ValueError):
            continue
        yield (dnn, camera), StreamAccount(offered, published, pending, +dropped)
