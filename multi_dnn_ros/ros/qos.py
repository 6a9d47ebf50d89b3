"""QoS by name."""

from __future__ import annotations

from rclpy.qos import (
    DurabilityPolicy,
    HistoryPolicy,
    QoSProfile,
    ReliabilityPolicy,
    qos_profile_sensor_data,
    qos_profile_system_default,
)

#: Results: reliable, which readers of either kind can take.
RESULTS = QoSProfile(depth=10)
#: Whole images: a reader that cannot keep up shall see the newest.
PICTURES = QoSProfile(depth=1)
#: Kept for readers that come later.
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def subscription_qos(name: str, depth: int) -> QoSProfile:
    """The profile of parameter ``camera.<camera>.qos`` with the given queue depth.

    sensor_data: best effort. default, reliable: reliable. system_default: what the middleware is configured for.
    """
    if name in ("default", "reliable"):
        return QoSProfile(depth=depth)
    preset = {"sensor_data": qos_profile_sensor_data, "system_default": qos_profile_system_default}[name]
    reliability: ReliabilityPolicy = preset.reliability
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST, depth=depth, reliability=reliability, durability=preset.durability
    )
