"""Simulated time: follows /clock while the parameter `use_sim_time` is true."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from multi_dnn_ros.standalone.clock import ROSClock, Time
from multi_dnn_ros.standalone.messages import message_class
from multi_dnn_ros.standalone.parameters import Parameter, ParameterTypes
from multi_dnn_ros.standalone.qos import qos_profile_clock

if TYPE_CHECKING:
    from multi_dnn_ros.standalone.node import Node

_PARAMETER: Final = "use_sim_time"


class TimeSource:
    """Drives a node's clock."""

    def __init__(self, node: Node, clock: ROSClock) -> None:
        self._node = node
        self._clock = clock
        self._subscription: Any = None
        if not node.has_parameter(_PARAMETER):
            node.declare_parameter(_PARAMETER, False)
        parameter = node.get_parameter(_PARAMETER)
        if parameter.type_ is not ParameterTypes.BOOL:
            raise TypeError(f"parameter {_PARAMETER} must be a bool, not {parameter.value!r}")
        node.add_on_set_parameters_callback(self._check)
        node.add_post_set_parameters_callback(self._apply)
        self._apply([parameter])

    def _check(self, wanted: list[Parameter]) -> Any:
        wrong = [entry for entry in wanted if entry.name == _PARAMETER and entry.type_ is not ParameterTypes.BOOL]
        reason = f"{_PARAMETER} must be a bool, not {wrong[0].value!r}" if wrong else ""
        return message_class("rcl_interfaces/msg/SetParametersResult")(successful=not reason, reason=reason)

    def _apply(self, changed: list[Parameter]) -> None:
        for parameter in changed:
            if parameter.name != _PARAMETER:
                continue
            self._clock.set_ros_time_is_active(parameter.value)
            if parameter.value and self._subscription is None:
                clock = message_class("rosgraph_msgs/msg/Clock")
                self._subscription = self._node.create_subscription(clock, "/clock", self._follow, qos_profile_clock)
            elif not parameter.value and self._subscription is not None:
                self._node.destroy_subscription(self._subscription)
                self._subscription = None

    def _follow(self, message: Any) -> None:
        self._clock.set_ros_time_override(Time.from_msg(message.clock))
