"""The ROS graph: which nodes own which endpoints (ros_discovery_info), and what is on the network.

DDS has participants and endpoints, but no nodes. Therefore every ROS 2 process publishes the list of its nodes with
their endpoints; a tool's node list is the union of these lists.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from typing import Any, Final

from cyclonedds.builtin import (
    BuiltinDataReader,
    BuiltinTopicDcpsParticipant,
    BuiltinTopicDcpsPublication,
    BuiltinTopicDcpsSubscription,
)
from cyclonedds.core import DDSStatus, InstanceState, ReadCondition, SampleState, ViewState

from multi_dnn_ros.standalone import cdr, logs
from multi_dnn_ros.standalone.dds import Participant, Payload, Reader, Writer, delete, hash_user_data
from multi_dnn_ros.standalone.endpoints import publisher_info
from multi_dnn_ros.standalone.messages import message_class
from multi_dnn_ros.standalone.qos import DurabilityPolicy, QoSProfile, to_dds

_INFO: Final = "rmw_dds_common/msg/ParticipantEntitiesInfo"
_TOPIC: Final = "ros_discovery_info"
_MAX_SAMPLES: Final = 100_000
_ALIVE: Final = 16  # DDS_ALIVE_INSTANCE_STATE
_GONE: Final = SampleState.Any | ViewState.Any | InstanceState.NotAliveDisposed | InstanceState.NotAliveNoWriters
_log = logs.get_logger("multi_dnn_ros.standalone")


class NodeEntry:
    """A node of this process and the GIDs of its endpoints."""

    def __init__(self, name: str, namespace: str) -> None:
        self.name = name
        self.namespace = namespace
        self.readers: list[bytes] = []
        self.writers: list[bytes] = []


class Graph:
    """The part of the graph that this process publishes, and the parts of other processes, read on demand."""

    def __init__(self, participant: Participant) -> None:
        self._participant = participant
        self._lock = threading.RLock()
        self._nodes: list[NodeEntry] = []
        self._infos: dict[bytes, Any] = {}  # the last node list of each other participant, by its GID
        # By built-in topic: its reader, and the condition that selects what no longer exists.
        self._builtin: dict[str, tuple[BuiltinDataReader, ReadCondition]] = {}
        self._samples: dict[str, list[Any]] = {}  # the last result of each of these readers
        user_data = hash_user_data(_INFO)
        writer_qos = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        reader_qos = QoSProfile(depth=1000, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self._writer = Writer(participant, _TOPIC, _INFO, to_dds(writer_qos, user_data))
        self._reader = Reader(participant, _TOPIC, _INFO, to_dds(reader_qos, user_data))

    def close(self) -> None:
        """Free the endpoints."""
        with self._lock:
            for reader, gone in self._builtin.values():
                delete(gone)
                delete(reader)
            self._builtin.clear()
            self._samples.clear()
            self._writer.close()
            self._reader.close()

    def add_node(self, entry: NodeEntry) -> None:
        """Announce a new node."""
        with self._lock:
            self._nodes.append(entry)
            self._announce()

    def remove_node(self, entry: NodeEntry) -> None:
        """Announce the end of a node."""
        with self._lock:
            if entry in self._nodes:
                self._nodes.remove(entry)
                self._announce()

    def add_endpoints(self, entry: NodeEntry, *endpoints: Reader | Writer) -> None:
        """Announce a node's new endpoints and, when one of them closes, its removal."""
        with self._lock:
            for endpoint in endpoints:
                (entry.readers if isinstance(endpoint, Reader) else entry.writers).append(endpoint.gid)
                endpoint.before_close = functools.partial(self._remove_endpoint, entry, endpoint)
            self._announce()

    def _remove_endpoint(self, entry: NodeEntry, endpoint: Reader | Writer) -> None:
        with self._lock:
            (entry.readers if isinstance(endpoint, Reader) else entry.writers).remove(endpoint.gid)
            self._announce()

    def _announce(self) -> None:
        if self._writer.closed:
            return
        gid = message_class("rmw_dds_common/msg/Gid")
        node_info = message_class("rmw_dds_common/msg/NodeEntitiesInfo")
        info = message_class(_INFO)(
            gid=gid(data=bytearray(self._participant.entity.guid.bytes)),
            node_entities_info_seq=[
                node_info(
                    node_namespace=entry.namespace,
                    node_name=entry.name,
                    reader_gid_seq=[gid(data=bytearray(value)) for value in entry.readers],
                    writer_gid_seq=[gid(data=bytearray(value)) for value in entry.writers],
                )
                for entry in self._nodes
            ],
        )
        self._writer.write(cdr.serialize(info, into=Payload))

    # ------------------------------------------------------------------------------------------------------ queries

    def _read(self, topic: Any) -> list[Any]:
        """Return the samples of a topic that DDS itself fills; callers must not change the list.

        They are read again only if the topic has changed since the last call: a hundred endpoints take 10 ms, and a
        node that checks the publishers of its cameras calls this twice a second.
        """
        with self._lock:
            key = topic.data_type.__name__ + str(topic._ref)
            if key not in self._builtin:
                reader = BuiltinDataReader(self._participant.entity, topic)
                gone = ReadCondition(reader, _GONE)
                self._builtin[key] = reader, gone
            else:
                reader, gone = self._builtin[key]
                if not reader.get_status_changes() & DDSStatus.DataAvailable:
                    return self._samples[key]
            # Without this, endpoints that were deleted long ago would be read each time.
            reader.take(_MAX_SAMPLES, gone)
            # Reading first clears the status, so a sample that arrives meanwhile sets it again.
            samples = [sample for sample in reader.read(_MAX_SAMPLES) if sample.sample_info.instance_state == _ALIVE]
            self._samples[key] = samples
            return samples

    def node_names_and_namespaces(self) -> list[tuple[str, str]]:
        """Return name and namespace of every node on the network, including this process's."""
        with self._lock:
            found = [(entry.name, entry.namespace) for entry in self._nodes]
            return found + [(node.node_name, node.node_namespace) for node in self._remote_nodes()]

    def topic_names_and_types_of_dds(self) -> list[tuple[str, list[str]]]:
        """Return every DDS topic with its types, sorted; topics and types have their DDS names."""
        return _collect(
            (endpoint.topic_name, endpoint.type_name)
            for topic in (BuiltinTopicDcpsPublication, BuiltinTopicDcpsSubscription)
            for endpoint in self._read(topic)
        )

    def _remote_nodes(self) -> list[Any]:
        """Return a NodeEntitiesInfo for each node of the other participants; invalid node lists are dropped."""
        while (taken := self._reader.take()) is not None:
            try:
                info: Any = cdr.deserialize(taken[0], message_class(_INFO))
            except cdr.CdrError as error:
                _log.error(f"message on {_TOPIC} dropped: {error}", throttle_duration_sec=1.0)
            else:
                self._infos[info.gid.data.tobytes()] = info
        alive = {participant.key.bytes for participant in self._read(BuiltinTopicDcpsParticipant)}
        alive.discard(bytes(self._participant.entity.guid.bytes))
        self._infos = {gid: info for gid, info in self._infos.items() if gid in alive}
        return [node for info in self._infos.values() for node in info.node_entities_info_seq]

    def publishers_info(self, topic: str) -> list[Any]:
        """Return a TopicEndpointInfo for each publisher of an absolute topic name, regardless of type."""
        with self._lock:
            owners = {
                gid.data.tobytes(): (node.node_name, node.node_namespace)
                for node in self._remote_nodes()
                for gid in node.writer_gid_seq
            }
            owners.update({gid: (entry.name, entry.namespace) for entry in self._nodes for gid in entry.writers})
            return [
                publisher_info(endpoint, _ros_type(endpoint.type_name), owners)
                for endpoint in self._read(BuiltinTopicDcpsPublication)
                if endpoint.topic_name == f"rt{topic}"
            ]

    def _endpoints(self, topic: Any, prefixes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for endpoint in self._read(topic):
            prefix, slash, rest = endpoint.topic_name.partition("/")
            if slash and prefix in prefixes:
                yield f"/{rest}", _ros_type(endpoint.type_name)

    def topic_names_and_types(self) -> list[tuple[str, list[str]]]:
        """Return every topic with its types, sorted."""
        return _collect(
            pair
            for topic in (BuiltinTopicDcpsPublication, BuiltinTopicDcpsSubscription)
            for pair in self._endpoints(topic, ("rt",))
        )

    def service_names_and_types(self) -> list[tuple[str, list[str]]]:
        """Return every available service with its types, sorted."""
        return _collect(
            (name.removesuffix("Request"), type_name.removesuffix("_Request"))
            for name, type_name in self._endpoints(BuiltinTopicDcpsSubscription, ("rq",))
            if name.endswith("Request")
        )

    def count_publishers(self, topic: str) -> int:
        """Return the number of publishers of an absolute topic name."""
        return sum(name == topic for name, _ in self._endpoints(BuiltinTopicDcpsPublication, ("rt",)))

    def count_subscribers(self, topic: str) -> int:
        """Return the number of subscriptions to an absolute topic name."""
        return sum(name == topic for name, _ in self._endpoints(BuiltinTopicDcpsSubscription, ("rt",)))


def _ros_type(dds_type: str) -> str:
    parts = dds_type.split("::")
    if len(parts) == 4 and parts[2] == "dds_" and parts[3].endswith("_"):
        return f"{parts[0]}/{parts[1]}/{parts[3][:-1]}"
    return dds_type


def _collect(pairs: Iterator[tuple[str, str]] | Any) -> list[tuple[str, list[str]]]:
    found: dict[str, set[str]] = {}
    for name, type_name in pairs:
        found.setdefault(name, set()).add(type_name)
    return [(name, sorted(types)) for name, types in sorted(found.items())]
