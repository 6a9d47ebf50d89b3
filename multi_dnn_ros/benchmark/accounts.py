"""Whether every frame is accounted for: what the node counts, compared with what was received from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multi_dnn_ros.benchmark.rig import Rig


def stream_accounts(rig: Rig) -> dict[str, dict[str, Any]]:
    """The counts of each stream in the latest report, by the stream's name `<dnn> on <camera>`.

    offered, published, pending, dropped: see Rig.accounts. received: images that the camera's subscription received.
    observed: results that the rig received on a reliable subscription.
    """
    return {
        f"{dnn} on {camera}": {
            **counts,
            "received": int(rig.value(f"camera {camera}", "received") or 0),
            "observed": len(rig.receipts[dnn, camera]),
        }
        for (dnn, camera), counts in rig.accounts().items()
    }


def discrepancy(stream: Mapping[str, Any]) -> str:
    """The counts of a stream after its last frame, if they do not add up; otherwise empty.

    They add up if offered = received = published + dropped, nothing is pending, and published = observed. stream: the
    counts as from :func:`stream_accounts`.
    """
    dropped = sum(stream["dropped"].values())
    exact = (
        stream["offered"] == stream["received"] == stream["published"] + dropped
        and not stream["pending"]
        and stream["published"] == stream["observed"]
    )
    counts = {**stream, "dropped": dropped}
    names = ("offered", "received", "published", "dropped", "pending", "observed")
    return "" if exact else ", ".join(f"{name} {counts[name]}" for name in names)
