"""Description of a publisher, for `Node.get_publishers_info_by_topic`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from cyclonedds.builtin import DcpsEndpoint
from cyclonedds.core import Policy, Qos

from multi_dnn_ros.standalone.missing import Surface
from multi_dnn_ros.standalone.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

_UNKNOWN_NODE = ("_NODE_NAME_UNKNOWN_", "_NODE_NAMESPACE_UNKNOWN_")


class TopicEndpointTypeEnum(IntEnum):
    """Kind of the described endpoint."""

    INVALID = 0
    PUBLISHER = 1
    SUBSCRIPTION = 2


class TopicEndpointInfo(Surface):
    """One publisher: its node, type, GID (16 bytes) and offered QoS."""

    def __init__(
        self, node: tuple[str, str], topic_type: str, kind: TopicEndpointTypeEnum, gid: bytes, qos: QoSProfile
    ) -> None:
        self.node_name, self.node_namespace = node
        self.topic_type = topic_type
        self.endpoint_type = kind
        self.endpoint_gid = list(gid)
        self.qos_profile = qos


def publisher_info(endpoint: DcpsEndpoint, topic_type: str, owners: Mapping[bytes, tuple[str, str]]) -> Any:
    """Describe a discovered publisher. owners: name and namespace of the owning node, by the endpoint's GID."""
    gid = bytes(endpoint.key.bytes)
    return TopicEndpointInfo(
        owners.get(gid, _UNKNOWN_NODE), topic_type, TopicEndpointTypeEnum.PUBLISHER, gid, _offered_qos(endpoint.qos)
    )


def _offered_qos(qos: Qos) -> QoSProfile:
    """Return the discovered QoS of an endpoint, without history and depth, which are not discovered (as in
    rmw_cyclonedds).
    """
    best_effort = Policy.Reliability.BestEffort in qos
    latched = Policy.Durability.TransientLocal in qos
    return QoSProfile(
        history=HistoryPolicy.UNKNOWN,
        depth=0,
        reliability=ReliabilityPolicy.BEST_EFFORT if best_effort else ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )
