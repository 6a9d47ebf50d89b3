"""The node: its names, arguments and executor. Its entities, parameters and graph queries are in base classes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from multi_dnn_ros.standalone import logs, names
from multi_dnn_ros.standalone.arguments import ROS_ARGS, Arguments, parse
from multi_dnn_ros.standalone.clock import Clock, ROSClock
from multi_dnn_ros.standalone.context import Context, get_default_context
from multi_dnn_ros.standalone.errors import NameValidationException, NotInitializedException, RCLError
from multi_dnn_ros.standalone.graph import NodeEntry
from multi_dnn_ros.standalone.messages import message_class
from multi_dnn_ros.standalone.missing import missing, refuse
from multi_dnn_ros.standalone.node_entities import NodeEntities
from multi_dnn_ros.standalone.node_graph import NodeGraph
from multi_dnn_ros.standalone.node_parameters import NodeParameters
from multi_dnn_ros.standalone.parameter_services import ParameterServices
from multi_dnn_ros.standalone.parameters import RELATIVE_TOLERANCE, Parameter
from multi_dnn_ros.standalone.qos import (
    qos_profile_parameter_events,
    qos_profile_rosout_default,
)
from multi_dnn_ros.standalone.rosout import Rosout
from multi_dnn_ros.standalone.time_source import TimeSource
from multi_dnn_ros.standalone.type_description import declare_type_description


class Node(NodeEntities, NodeGraph, NodeParameters):
    """A ROS node."""

    PARAM_REL_TOL = RELATIVE_TOLERANCE

    def __init__(
        self,
        node_name: str,
        *,
        context: Context | None = None,
        cli_args: Sequence[str] | None = None,
        namespace: str | None = None,
        use_global_arguments: bool = True,
        enable_rosout: bool = True,
        start_parameter_services: bool = True,
        parameter_overrides: Sequence[Parameter] | None = None,
        allow_undeclared_parameters: bool = False,
        automatically_declare_parameters_from_overrides: bool = False,
        enable_logger_service: bool = False,
    ) -> None:
        """Create a node; see rclpy for the arguments.

        Raises:
            NotInitializedException: before `rclpy.init()`.
            InvalidNodeNameException, InvalidNamespaceException: for an invalid name.
        """
        refuse("Node", enable_logger_service=enable_logger_service or None)
        self._context = context or get_default_context()
        if not self._context.ok():
            raise NotInitializedException("cannot create node")
        local = parse([ROS_ARGS, *(cli_args or ())])
        shared = self._context.arguments if use_global_arguments else Arguments()
        self._remaps = [*local.remaps, *shared.remaps]
        namespace = namespace or "/"
        namespace = namespace if namespace.startswith("/") else f"/{namespace}"
        names.validate_node_name(node_name)
        names.validate_namespace(namespace)
        self._name, self._namespace = names.remap_node(self._remaps, node_name, namespace)
        self._entry = NodeEntry(self._name, self._namespace)
        NodeEntities.__init__(self)
        self._executor: Callable[[], Any] = _no_executor
        self._clock = ROSClock()
        self._logger = logs.get_logger(self.get_fully_qualified_name()[1:].replace("/", "."))
        self._context.add_node(self)
        self._context.graph.add_node(self._entry)
        try:
            self._rosout: Rosout | None = None
            if enable_rosout and shared.rosout and local.rosout:
                log = message_class("rcl_interfaces/msg/Log")
                self._rosout = Rosout(
                    self._logger.name, self._create_publisher(log, "/rosout", qos_profile_rosout_default)
                )
            event = message_class("rcl_interfaces/msg/ParameterEvent")
            events = self._create_publisher(event, "/parameter_events", qos_profile_parameter_events)
            NodeParameters.__init__(
                self, self._clock, events, self.get_fully_qualified_name(), allow_undeclared=allow_undeclared_parameters
            )
            for arguments in (shared, local):
                for name, value in arguments.overrides_for(self.get_fully_qualified_name()).items():
                    self._parameter_overrides[name] = Parameter(name, value=value)
            self._parameter_overrides.update({entry.name: entry for entry in parameter_overrides or ()})
            if automatically_declare_parameters_from_overrides:
                overrides = [(entry.name, entry.value) for entry in self._parameter_overrides.values()]
                self.declare_parameters("", overrides, ignore_override=True)
            self._time_source = TimeSource(self, self._clock)
            if start_parameter_services:
                ParameterServices(self)
            declare_type_description(self)
        except BaseException:
            self.destroy_node()
            raise

    # --------------------------------------------------------------------------------------------------------- names

    def get_name(self) -> str:
        """Return the node's name without its namespace."""
        return self._name

    def get_namespace(self) -> str:
        """Return the namespace."""
        return self._namespace

    def get_fully_qualified_name(self) -> str:
        """Return namespace and name."""
        return names.qualified(self._namespace, self._name)

    def resolve_topic_name(self, topic: str, *, only_expand: bool = False) -> str:
        """Return the absolute name of a topic, remapped unless `only_expand`.

        Raises:
            RCLError: for an invalid name; says why.
        """
        return self._resolve(topic, only_expand=only_expand, service=False)

    def resolve_service_name(self, service: str, *, only_expand: bool = False) -> str:
        """Return the absolute name of a service, remapped unless `only_expand`.

        Raises:
            RCLError: for an invalid name; says why.
        """
        return self._resolve(service, only_expand=only_expand, service=True)

    def _resolve(self, name: str, *, only_expand: bool, service: bool) -> str:
        try:
            return self._remapped(name, service=service, rules=() if only_expand else self._remaps)
        except (NameValidationException, ValueError) as error:
            raise RCLError(f"failed to resolve name: {error}") from error

    def _remapped(self, name: str, *, service: bool = False, rules: Sequence[names.RemapRule] | None = None) -> str:
        rules = self._remaps if rules is None else rules
        return names.remap(rules, name, self._name, self._namespace, service=service)

    def get_logger(self) -> logs.RcutilsLogger:
        """Return the node's logger."""
        return self._logger

    def get_clock(self) -> Clock:
        """Return the node's ROS clock."""
        return self._clock

    @property
    def context(self) -> Context:
        """The context the node belongs to."""
        return self._context

    @property
    def handle(self) -> Any:
        """The C object of rclpy's nodes, which does not exist here."""
        raise AttributeError(missing("Node.handle"), name="handle", obj=self)

    @handle.setter
    def handle(self, value: Any) -> None:
        raise AttributeError("handle cannot be modified after node creation")

    # ------------------------------------------------------------------------------------------------------ executor

    @property
    def executor(self) -> Any:
        """The executor that runs this node, or None."""
        return self._executor()

    @executor.setter
    def executor(self, executor: Any) -> None:
        current = self.executor
        if current is executor:
            return
        self._executor = _no_executor if executor is None else weakref.ref(executor)
        if current is not None:
            current.remove_node(self)
        if executor is not None:
            executor.add_node(self)

    def _wake_executor(self) -> None:
        executor = self.executor
        if executor is not None:
            executor.wake()

    def destroy_node(self) -> None:
        """Destroy everything that the node created, and leave its executor and the graph. Idempotent."""
        with self._entities_lock:
            if self._destroyed:
                return
            self._destroyed = True
        self.executor = None
        if self._rosout is not None:
            self._rosout.close()
        for entity in [*self._others, *self._endpoints]:
            self._remove(entity)
        self._context.graph.remove_node(self._entry)
        self._context.remove_node(self)


def _no_executor() -> None:
    """Replaces the weak reference while the node has no executor."""
