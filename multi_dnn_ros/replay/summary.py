"""Counts the results and drops of a replay."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class StreamCount:
    """One DNN on one camera: offered == published + sum(dropped). messages: message of the first drop, by reason."""

    offered: int = 0
    published: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    messages: dict[str, str] = field(default_factory=dict)


@dataclass
class Summary:
    """Counts by (dnn, camera), and damage of the input."""

    streams: dict[tuple[str, str], StreamCount] = field(default_factory=dict)
    input_damage: list[str] = field(default_factory=list)

    def add(self, dnn: str, camera: str, drop: tuple[str, str] | None) -> None:
        """Count one frame. drop: reason, as in the node's diagnostics, and message; None for a result."""
        stream = self.streams.setdefault((dnn, camera), StreamCount())
        stream.offered += 1
        if drop is None:
            stream.published += 1
        else:
            stream.dropped[drop[0]] += 1
            stream.messages.setdefault(*drop)

    def as_json(self) -> dict[str, Any]:
        """JSON content; equal for equal replays."""
        return {
            "streams": [
                {
                    "dnn": dnn,
                    "camera": camera,
                    "offered": stream.offered,
                    "published": stream.published,
                    "dropped": dict(sorted(stream.dropped.items())),
                    "first_drops": dict(sorted(stream.messages.items())),
                }
                for (dnn, camera), stream in self.streams.items()
            ],
            "input_damage": self.input_damage,
        }

    def __str__(self) -> str:
        lines = [f"{'dnn':<14}{'camera':<12}{'offered':>8}{'published':>10}  dropped"]
        for (dnn, camera), stream in self.streams.items():
            drops = ", ".join(f"{reason} {count}" for reason, count in sorted(stream.dropped.items())) or "none"
            lines.append(f"{dnn:<14}{camera:<12}{stream.offered:>8}{stream.published:>10}  {drops}")
            lines += [f"  {reason}: {message}" for reason, message in sorted(stream.messages.items())]
        return "\n".join(lines)
