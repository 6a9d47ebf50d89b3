"""QoS by name, and what a publisher's and a subscription's QoS mean for each other."""

from __future__ import annotations

from collections.abc import Iterable

from rclpy.qos import (
    DurabilityPolicy,
    HistoryPolicy,
    QoSProfile,
    ReliabilityPolicy,
    qos_profile_sensor_data,
    qos_profile_system_default,
)

from multi_dnn_ros.schema import AUTOMATIC_DEPTH

#: Results: reliable, which readers of either kind can take.
RESULTS = QoSProfile(depth=10)
#: Whole images: a reader that cannot keep up shall see the newest.
PICTURES = QoSProfile(depth=1)
#: Kept for readers that come later.
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def subscription_qos(name: str, depth: int, offers: Iterable[QoSProfile] = ()) -> QoSProfile:
    """The profile of the parameters ``camera.<camera>.qos`` and ``.depth`` (0: AUTOMATIC_DEPTH).

    auto: reliable if all publishers offer it, else best effort, which every publisher fits. offers: the publishers'
    QoS. sensor_data: best effort. default, reliable: reliable. system_default: what the middleware is configured for.
    """
    depth = depth or AUTOMATIC_DEPTH
    if name == "auto":
        reliable = [offer.reliability == ReliabilityPolicy.RELIABLE for offer in offers]
        best = ReliabilityPolicy.RELIABLE if reliable and all(reliable) else ReliabilityPolicy.BEST_EFFORT
        return QoSProfile(depth=depth, reliability=best)
    if name in ("default", "reliable"):
        return QoSProfile(depth=depth)
    preset = {"sensor_data": qos_profile_sensor_data, "system_default": qos_profile_system_default}[name]
    reliability: ReliabilityPolicy = preset.reliability
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST, depth=depth, reliability=reliability, durability=preset.durability
    )


def incompatibility(offered: QoSProfile, requested: QoSProfile) -> str:
    """What of a subscription's QoS a publisher does not offer, with both policies' names; empty when they fit."""
    differences = []
    if requested.reliability == ReliabilityPolicy.RELIABLE and offered.reliability == ReliabilityPolicy.BEST_EFFORT:
        differences.append("reliability BEST_EFFORT, the subscription asks for RELIABLE")
    if requested.durability == DurabilityPolicy.TRANSIENT_LOCAL and offered.durability == DurabilityPolicy.VOLATILE:
        differences.append("durability VOLATILE, the subscription asks for TRANSIENT_LOCAL")
    return " and ".join(differences)


def described(qos: QoSProfile) -> str:
    """For diagnostics: reliability and depth."""
    return f"{qos.reliability.name.lower().replace('_', ' ')}, depth {qos.depth}"
