"""Finds the publishers of a camera's topic, and explains why no image can arrive and what to change.

The explanations begin with what to change, because `ros2 topic echo` shows the first 128 characters of a text.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from rclpy.node import Node
from rclpy.qos import QoSProfile

from multi_dnn_ros.ros.qos import incompatibility

#: Transport -> type of the topic (parameter ``camera.<camera>.transport``).
TYPES = {"raw": "sensor_msgs/msg/Image", "compressed": "sensor_msgs/msg/CompressedImage"}
_MAX_TOPICS = 8
#: Ends of the names of images that nodes of this package publish; no camera.
_RESULTS = ("/overlay", "/overlay/compressed", "/mask")


class PublisherState(Enum):
    """What publishes on a camera's topic."""

    FITS = "a compatible publisher"
    NONE = "no publisher"
    OTHER_TYPE = "only publishers of another type"
    OTHER_QOS = "only publishers with incompatible QoS"


@dataclass(frozen=True)
class Publisher:
    """One publisher of a topic. gid: its identity on the network."""

    node: str
    type: str
    qos: QoSProfile
    gid: bytes


def publishers_of(node: Node, topic: str) -> list[Publisher]:
    """The publishers of a topic discovered so far. topic: as for a subscription, before remapping."""
    return [
        Publisher(
            _node_name(info.node_namespace, info.node_name),
            info.topic_type,
            info.qos_profile,
            bytes(info.endpoint_gid),
        )
        for info in node.get_publishers_info_by_topic(topic)
    ]


def _node_name(namespace: str, name: str) -> str:
    # rmw_dds_common's name for an endpoint whose node is not known yet, or is not a ROS node.
    return "an unknown node" if "NODE_NAME_UNKNOWN" in name else f"{namespace.rstrip('/')}/{name}"


def classify_publishers(publishers: Sequence[Publisher], type_name: str, requested: QoSProfile) -> PublisherState:
    """Whether the publishers of a topic are compatible with a subscription of this type and QoS."""
    if not publishers:
        return PublisherState.NONE
    of_type = [publisher for publisher in publishers if publisher.type == type_name]
    if not of_type:
        return PublisherState.OTHER_TYPE
    if all(incompatibility(publisher.qos, requested) for publisher in of_type):
        return PublisherState.OTHER_QOS
    return PublisherState.FITS


def explain_mismatch(
    state: PublisherState,
    camera: str,
    topic: str,
    transport: str,
    publishers: Iterable[Publisher],
    requested: QoSProfile,
) -> str:
    """A message about publishers of another type or with incompatible QoS. state: neither FITS nor NONE."""
    type_name = TYPES[transport]
    if state is PublisherState.OTHER_TYPE:
        other = ", ".join(sorted({f"{publisher.node} publishes {publisher.type}" for publisher in publishers}))
        remedy = "".join(
            f"set camera.{camera}.transport to {other_transport}: "
            for other_transport, other_type in TYPES.items()
            if all(publisher.type == other_type for publisher in publishers)
        )
        return f"camera {camera}: {remedy}topic {topic} has no publisher of {type_name}: {other}"
    offers = "; ".join(
        sorted(
            f"{publisher.node} offers {difference}"
            for publisher in publishers
            if publisher.type == type_name and (difference := incompatibility(publisher.qos, requested))
        )
    )
    return (
        f"camera {camera}: incompatible QoS, no image can arrive; set camera.{camera}.qos to auto, which requests what "
        f"the publishers of {topic} offer: {offers}"
    )


def explain_no_publisher(camera: str, topic: str, transport: str, seconds: float, topics: Mapping[str, str]) -> str:
    """A message about a topic without a publisher. topics: name -> type of those that have one."""
    wanted = TYPES[transport]
    same = [name for name, type_name in topics.items() if type_name == wanted and name != topic]
    text = f"camera {camera}: no publisher on {topic} for {seconds:g} s"
    if not same:
        other_transport, other = next(item for item in TYPES.items() if item[0] != transport)
        others = [name for name, type_name in topics.items() if type_name == other]
        if others:
            text += f"; with camera.{camera}.transport {other_transport}: {_listed(topic, others)}"
        text += f"; there is no other topic of type {wanted}"
        return text
    if nearest := nearest_name(topic, same):
        text += f"; did you mean {nearest}?"
    return f"{text} (camera.{camera}.topic, or a remap); topics of type {wanted}: {_listed(topic, same)}"


def nearest_name(topic: str, names: Sequence[str]) -> str:
    """The most similar name; empty if none is similar."""
    return next(iter(difflib.get_close_matches(topic, names, 1, 0.6)), "")


def published_topics(node: Node, types: Iterable[str]) -> dict[str, str]:
    """Topics of these types that other nodes publish: name -> type.

    Without those that the node subscribes to already, and results of other nodes of this package.
    """
    own = node.get_fully_qualified_name()
    subscribed = {subscription.topic_name for subscription in node.subscriptions}
    return {
        name: kind
        for name, kinds in node.get_topic_names_and_types()
        if name not in subscribed and not name.startswith(f"{own}/") and not name.endswith(_RESULTS)
        for kind in kinds
        if kind in types and node.count_publishers(name)
    }


def _listed(topic: str, names: Sequence[str]) -> str:
    """Names in order of similarity to the topic."""
    ordered = sorted(names, key=lambda name: (-difflib.SequenceMatcher(None, topic, name).ratio(), name))
    more = f" and {len(ordered) - _MAX_TOPICS} more" if len(ordered) > _MAX_TOPICS else ""
    return ", ".join(ordered[:_MAX_TOPICS]) + more
