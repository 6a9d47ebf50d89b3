"""Who publishes a camera's images, whether they can reach the node, and if not, what the user probably meant."""

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
_MOST_TOPICS = 8


class Source(Enum):
    """What there is on a camera's topic."""

    FITS = "a publisher that fits"
    NONE = "no publisher"
    OTHER_TYPE = "publishers of another type only"
    OTHER_QOS = "a publisher with incompatible QoS"


@dataclass(frozen=True)
class Publisher:
    """One publisher of a topic. gid: its identity on the network."""

    node: str
    type: str
    qos: QoSProfile
    gid: bytes


def publishers_of(node: Node, topic: str) -> list[Publisher]:
    """The publishers of a topic that discovery has found so far. topic: as for a subscription, before remaps."""
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
    # rmw_dds_common's words for an endpoint whose node has not said its name yet, or is no ROS node.
    return "an unknown node" if "NODE_NAME_UNKNOWN" in name else f"{namespace.rstrip('/')}/{name}"


def judge(publishers: Sequence[Publisher], type_name: str, requested: QoSProfile) -> Source:
    """What the publishers of a topic are for a subscription of this type and QoS."""
    if not publishers:
        return Source.NONE
    of_type = [publisher for publisher in publishers if publisher.type == type_name]
    if not of_type:
        return Source.OTHER_TYPE
    if all(incompatibility(publisher.qos, requested) for publisher in of_type):
        return Source.OTHER_QOS
    return Source.FITS


def explain(
    source: Source, camera: str, topic: str, transport: str, publishers: Iterable[Publisher], requested: QoSProfile
) -> str:
    """A sentence for the log: what is on the topic instead of images that can arrive. Not for FITS and NONE."""
    type_name = TYPES[transport]
    if source is Source.OTHER_TYPE:
        other = ", ".join(sorted({f"{publisher.node} publishes {publisher.type}" for publisher in publishers}))
        text = f"camera {camera}: topic {topic} has no publisher of {type_name}: {other}"
        for name, type_of_it in TYPES.items():
            if all(publisher.type == type_of_it for publisher in publishers):
                text += f"; set the parameter camera.{camera}.transport to {name}"
        return text
    offers = "; ".join(
        sorted(
            f"{publisher.node} offers {difference}"
            for publisher in publishers
            if publisher.type == type_name and (difference := incompatibility(publisher.qos, requested))
        )
    )
    return (
        f"camera {camera}: incompatible QoS on topic {topic}, no image can arrive: {offers}; set the parameter "
        f"camera.{camera}.qos to auto, which asks for what the publishers offer"
    )


def explain_silence(camera: str, topic: str, transport: str, seconds: float, topics: Mapping[str, str]) -> str:
    """A sentence for the log about a topic without a publisher. topics: name -> type, of those that are published."""
    wanted = TYPES[transport]
    same = [name for name, type_name in topics.items() if type_name == wanted and name != topic]
    text = f"camera {camera}: no publisher on {topic} after {seconds:g} s"
    if not same:
        text += f"; there is no topic of type {wanted}"
        other, kind = next(item for item in TYPES.items() if item[0] != transport)
        others = [name for name, type_name in topics.items() if type_name == kind]
        if others:
            text += f", but of type {kind} (parameter camera.{camera}.transport: {other}): {_listed(topic, others)}"
        return text
    nearest = nearest_name(topic, same)
    text += f"; topics of type {wanted}: {_listed(topic, same)}"
    if nearest:
        text += f"; did you mean {nearest}?"
    return text + f" (parameter camera.{camera}.topic, or a remap)"


def nearest_name(topic: str, names: Sequence[str]) -> str:
    """The most similar name; empty when none is similar."""
    return next(iter(difflib.get_close_matches(topic, names, 1, 0.6)), "")


def published_topics(node: Node, types: Iterable[str]) -> dict[str, str]:
    """Topics of these types that somebody else than the node publishes: name -> type."""
    own = node.get_fully_qualified_name()
    return {
        name: kind
        for name, kinds in node.get_topic_names_and_types()
        for kind in kinds
        if kind in types and not name.startswith(f"{own}/") and node.count_publishers(name)
    }


def _listed(topic: str, names: Sequence[str]) -> str:
    """The most similar names first."""
    ordered = sorted(names, key=lambda name: (-difflib.SequenceMatcher(None, topic, name).ratio(), name))
    more = f" and {len(ordered) - _MOST_TOPICS} more" if len(ordered) > _MOST_TOPICS else ""
    return ", ".join(ordered[:_MOST_TOPICS]) + more
