"""Queries of the ROS graph by a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from multi_dnn_ros.standalone import names
from multi_dnn_ros.standalone.errors import InvalidTopicNameException
from multi_dnn_ros.standalone.missing import Surface, refuse

if TYPE_CHECKING:
    from multi_dnn_ros.standalone.context import Context


class NodeGraph(Surface):
    """The part of a node that queries the network."""

    _context: Context

    def get_name(self) -> str:
        """Return the node's name; implemented by the node."""
        raise NotImplementedError

    def get_namespace(self) -> str:
        """Return the node's namespace; implemented by the node."""
        raise NotImplementedError

    def count_publishers(self, topic_name: str) -> int:
        """Return the number of publishers of a topic on the network; the name is expanded, not remapped."""
        return self._context.graph.count_publishers(self._absolute(topic_name))

    def count_subscribers(self, topic_name: str) -> int:
        """Return the number of subscriptions to a topic on the network; the name is expanded, not remapped."""
        return self._context.graph.count_subscribers(self._absolute(topic_name))

    def _absolute(self, topic_name: str) -> str:
        try:
            names.validate_topic_name(topic_name)
        except InvalidTopicNameException as error:
            raise ValueError(f"topic name {topic_name!r} is invalid: {error}") from None
        return names.expand(topic_name, self.get_name(), self.get_namespace())

    def get_topic_names_and_types(self, no_demangle: bool = False) -> list[tuple[str, list[str]]]:
        """Return every topic on the network with its types; with `no_demangle` by their DDS names."""
        graph = self._context.graph
        return graph.topic_names_and_types_of_dds() if no_demangle else graph.topic_names_and_types()

    def get_publishers_info_by_topic(self, topic_name: str, no_mangle: bool = False) -> list[Any]:
        """Return a TopicEndpointInfo for each publisher of a topic, regardless of type; the name is remapped."""
        refuse("get_publishers_info_by_topic", no_mangle=no_mangle or None)
        return self._context.graph.publishers_info(self.resolve_topic_name(self._absolute(topic_name)))

    def get_service_names_and_types(self) -> list[tuple[str, list[str]]]:
        """Return every service on the network with its types."""
        return self._context.graph.service_names_and_types()

    def get_node_names_and_namespaces(self) -> list[tuple[str, str]]:
        """Return name and namespace of every node on the network."""
        return self._context.graph.node_names_and_namespaces()

    def get_node_names(self) -> list[str]:
        """Return the name of every node on the network."""
        return [name for name, _ in self.get_node_names_and_namespaces()]

    def get_fully_qualified_node_names(self) -> list[str]:
        """Return the fully qualified name of every node on the network."""
        return [names.qualified(namespace, name) for name, namespace in self.get_node_names_and_namespaces()]
