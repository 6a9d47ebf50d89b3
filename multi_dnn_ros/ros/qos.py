"""QoS profiles by name, and the compatibility of a publisher with a subscription."""

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

#: Results: reliable, so that reliable and best-effort subscriptions receive them.
RESULTS = QoSProfile(depth=10)
#: Images: a slow subscriber receives the newest one.
IMAGES = QoSProfile(depth=1)
#: Kept for late subscribers.
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def subscription_qos(name: str, depth: int, offers: Iterable[QoSProfile] = ()) -> QoSProfile:
    """The profile for the parameters ``camera.<camera>.qos`` (name) and ``.depth`` (0: depends on the reliability).

    auto: reliable if all publishers offer it, otherwise best effort, which is compatible with every publisher. offers:
    QoS of the publishers. sensor_data: best effort. default, reliable: reliable. system_default: the default of the
    middleware, which is reliable in all but Fast DDS.
    """
    durability: DurabilityPolicy = DurabilityPolicy.VOLATILE
    reliability: ReliabilityPolicy = ReliabilityPolicy.RELIABLE
    if name == "auto":
        if not all(offer.reliability == ReliabilityPolicy.RELIABLE for offer in offers):
            reliability = ReliabilityPolicy.BEST_EFFORT
    elif name not in ("default", "reliable"):
        preset = {"sensor_data": qos_profile_sensor_data, "system_default": qos_profile_system_default}[name]
        reliability, durability = preset.reliability, preset.durability
    default_depth = BEST_EFFORT_DEPTH if reliability == ReliabilityPolicy.BEST_EFFORT else RELIABLE_DEPTH
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST, depth=depth or default_depth, reliability=reliability, durability=durability
    )


def incompatibility(offered: QoSProfile, requested: QoSProfile) -> str:
    """The policies that a subscription requests and a publisher does not offer; empty if they are compatible."""
    differences = []
    if requested.reliability == ReliabilityPolicy.RELIABLE and offered.reliability == ReliabilityPolicy.BEST_EFFORT:
        differences.append("reliability BEST_EFFORT, the subscription requests RELIABLE")
    if requested.durability == DurabilityPolicy.TRANSIENT_LOCAL and offered.durability == DurabilityPolicy.VOLATILE:
        differences.append("durability VOLATILE, the subscription requests TRANSIENT_LOCAL")
    return " and ".join(differences)


def described(qos: QoSProfile) -> str:
    """Reliability and depth in words, for diagnostics."""
    return f"{qos.reliability.name.lower().replace('_', ' ')}, depth {qos.depth}"
