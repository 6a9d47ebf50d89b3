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

from multi_dnn_ros.settings.schema import BEST_EFFORT_DEPTH, RELIABLE_DEPTH

#: Results: reliable, which readers of either kind can take.
RESULTS = QoSProfile(depth=10)
#: Whole images: a reader that cannot keep up shall see the newest.
PICTURES = QoSProfile(depth=1)
#: Kept for readers that come later.
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def subscription_qos(name: str, depth: int, offers: Iterable[QoSProfile] = ()) -> QoSProfile:
    """The profile of the parameters ``camera.<camera>.qos`` and ``.depth`` (0: by the reliability).

    auto: reliable if all publishers offer it, else best effort, which every publisher fits. offers: the publishers'
    QoS. sensor_data: best effort. default, reliable: reliable. system_default: what the middleware is configured for.
    """
    durability: DurabilityPolicy = DurabilityPolicy.VOLATILE
    reliability: ReliabilityPolicy = ReliabilityPolicy.RELIABLE
    if name == "auto":
        reliable = [offer.reliability == ReliabilityPolicy.RELIABLE for offer in offers]
        if not (reliable and all(reliable)):
            reliability = ReliabilityPolicy.BEST_EFFORT
    elif name not in ("default", "reliable"):
        preset = {"sensor_data": qos_profile_sensor_data, "system_default": qos_profile_system_default}[name]
        reliability, durability = preset.reliability, preset.durability
    automatic = BEST_EFFORT_DEPTH if reliability == ReliabilityPolicy.BEST_EFFORT else RELIABLE_DEPTH
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST, depth=depth or automatic, reliability=reliability, durability=durability
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
