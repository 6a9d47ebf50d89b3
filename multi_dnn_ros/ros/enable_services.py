"""The services ``~/<dnn>/enable``, which set the parameter ``dnn.<dnn>.enable``."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from rclpy.node import Node
from rclpy.parameter import Parameter
from std_srvs.srv import SetBool


class EnableServices:
    """One service for each DNN. Sets the parameter, so that both ways to enable a DNN always agree."""

    def __init__(self, node: Node, dnns: Iterable[str]) -> None:
        self._node = node
        self._services = [
            node.create_service(SetBool, f"~/{dnn}/enable", partial(self._respond, f"dnn.{dnn}.enable")) for dnn in dnns
        ]

    def close(self) -> None:
        """Destroy the services."""
        for service in self._services:
            self._node.destroy_service(service)
        self._services = []

    def _respond(self, name: str, request: Any, response: Any) -> Any:
        (result,) = self._node.set_parameters([Parameter(name, value=bool(request.data))])
        response.success = result.successful
        response.message = result.reason or f"{name} is {'true' if request.data else 'false'}"
        return response
