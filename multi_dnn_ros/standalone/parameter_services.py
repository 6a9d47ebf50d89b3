"""The six parameter services of a node."""

from __future__ import annotations

import contextlib
from typing import Any

from multi_dnn_ros.standalone import errors
from multi_dnn_ros.standalone.messages import message_class, service_class
from multi_dnn_ros.standalone.node_surface import NodeSurface
from multi_dnn_ros.standalone.parameters import Parameter
from multi_dnn_ros.standalone.qos import qos_profile_parameters


class ParameterServices:
    """Serves `~/get_parameters` and the five other parameter services of one node."""

    def __init__(self, node: NodeSurface) -> None:
        self._node = node
        for name, callback in (
            ("DescribeParameters", self._describe),
            ("GetParameters", self._get),
            ("GetParameterTypes", self._types),
            ("ListParameters", self._list),
            ("SetParameters", self._set),
            ("SetParametersAtomically", self._set_atomically),
        ):
            snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)[1:]
            srv_type = service_class(f"rcl_interfaces/srv/{name}")
            node.create_service(srv_type, f"~/{snake}", callback, qos_profile=qos_profile_parameters)

    # As in rclpy, one undeclared name makes the whole response empty.

    def _describe(self, request: Any, response: Any) -> Any:
        with contextlib.suppress(errors.ParameterNotDeclaredException):
            response.descriptors = self._node.describe_parameters(request.names)
        return response

    def _get(self, request: Any, response: Any) -> Any:
        with contextlib.suppress(errors.ParameterNotDeclaredException, errors.ParameterUninitializedException):
            response.values = [entry.get_parameter_value() for entry in self._node.get_parameters(request.names)]
        return response

    def _types(self, request: Any, response: Any) -> Any:
        with contextlib.suppress(errors.ParameterNotDeclaredException):
            response.types = [getattr(kind, "value", kind) for kind in self._node.get_parameter_types(request.names)]
        return response

    def _list(self, request: Any, response: Any) -> Any:
        response.result = self._node.list_parameters(request.prefixes, request.depth)
        return response

    def _set(self, request: Any, response: Any) -> Any:
        for message in request.parameters:
            response.results.append(self._change([message]))
        return response

    def _set_atomically(self, request: Any, response: Any) -> Any:
        response.result = self._change(request.parameters)
        return response

    def _change(self, messages: list[Any]) -> Any:
        try:
            wanted = [Parameter.from_parameter_msg(message) for message in messages]
            return self._node.set_parameters_atomically(wanted)
        except (errors.ParameterNotDeclaredException, ValueError, TypeError) as error:
            reason = " ".join(str(argument) for argument in error.args)
            return message_class("rcl_interfaces/msg/SetParametersResult")(successful=False, reason=reason)
