"""A managed node in another process: life cycle and parameters through its services."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import GetParameters, SetParametersAtomically
from rclpy.node import Node
from rclpy.parameter import Parameter, parameter_value_to_python

#: Timeout of requests that the node can answer at once.
_ANSWER_S = 30.0
#: Interval between checks that the node still exists.
_POLL_S = 0.5


class RemoteNodeError(RuntimeError):
    """The node does not answer, or rejects a request; the message names the node and the request."""


class RemoteNode:
    """Client of the node `name` (fully qualified). An executor in another thread must spin `node`.

    start_timeout_s: how long to wait for its services; raises RemoteNodeError if they do not appear.
    failure: returns why that executor has ended, empty while it spins. Once it has ended, every request raises
    RemoteNodeError with this reason.
    """

    def __init__(
        self, node: Node, name: str, start_timeout_s: float, *, failure: Callable[[], str] = lambda: ""
    ) -> None:
        self.name = name
        self._failure = failure
        self._node = node
        self._clients: dict[str, Any] = {
            service: node.create_client(kind, f"{name}/{service}")
            for service, kind in (
                ("get_state", GetState),
                ("change_state", ChangeState),
                ("get_parameters", GetParameters),
                ("set_parameters_atomically", SetParametersAtomically),
            )
        }
        deadline = time.monotonic() + start_timeout_s
        for service, client in self._clients.items():
            if not client.wait_for_service(timeout_sec=max(0.0, deadline - time.monotonic())):
                raise RemoteNodeError(
                    f"no service {name}/{service} after {start_timeout_s:g} s: is the node {name} up?"
                )

    def state(self) -> str:
        """Label of its life cycle state: unconfigured, inactive, active or finalized."""
        return str(self._ask("get_state", GetState.Request(), _ANSWER_S).current_state.label)

    def change_state(self, transition: int, timeout_s: float) -> None:
        """Request a transition (lifecycle_msgs/Transition); configuring includes loading the DNNs.

        Raises RemoteNodeError: the transition failed, or the node ended or did not answer in time.
        """
        request = ChangeState.Request(transition=Transition(id=transition))
        if not self._ask("change_state", request, timeout_s).success:
            raise RemoteNodeError(f"node {self.name} failed to {_TRANSITIONS[transition]}; its log says why")

    def parameters(self, names: Sequence[str]) -> dict[str, Any]:
        """Values of parameters. Raises RemoteNodeError if one is not declared."""
        values = self._ask("get_parameters", GetParameters.Request(names=list(names)), _ANSWER_S).values
        if len(values) != len(names):
            raise RemoteNodeError(f"node {self.name} lacks at least one of the parameters {', '.join(names)}")
        return {name: parameter_value_to_python(value) for name, value in zip(names, values, strict=True)}

    def set_parameters(self, values: Mapping[str, Any]) -> None:
        """Set all of them or none. Raises RemoteNodeError with the node's reason."""
        parameters = [Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]
        request = SetParametersAtomically.Request(parameters=parameters)
        result = self._ask("set_parameters_atomically", request, _ANSWER_S).result
        if not result.successful:
            raise RemoteNodeError(f"node {self.name} rejects parameters: {result.reason}")

    def is_up(self) -> bool:
        """Whether its services still exist. Raises RemoteNodeError if this side's executor has ended."""
        self._require_executor()
        return bool(self._clients["get_state"].service_is_ready())

    def close(self) -> None:
        """Free the clients."""
        for client in self._clients.values():
            self._node.destroy_client(client)
        self._clients.clear()

    def _require_executor(self) -> None:
        if failure := self._failure():
            raise RemoteNodeError(f"node {self.name} can no longer be reached: {failure}")

    def _ask(self, service: str, request: Any, timeout_s: float) -> Any:
        self._require_executor()
        client = self._clients[service]
        answered = threading.Event()
        future = client.call_async(request)
        future.add_done_callback(lambda _: answered.set())
        deadline = time.monotonic() + timeout_s
        while not answered.wait(_POLL_S):
            self._require_executor()
            if not client.service_is_ready():
                raise RemoteNodeError(f"node {self.name} ended during the request {service}")
            if time.monotonic() > deadline:
                client.remove_pending_request(future)
                raise RemoteNodeError(f"node {self.name} did not answer {service} within {timeout_s:g} s")
        return future.result()


_TRANSITIONS = {
    Transition.TRANSITION_CONFIGURE: "configure",
    Transition.TRANSITION_ACTIVATE: "activate",
    Transition.TRANSITION_DEACTIVATE: "deactivate",
    Transition.TRANSITION_CLEANUP: "clean up",
}
