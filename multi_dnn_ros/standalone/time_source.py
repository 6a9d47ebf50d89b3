"""Simulated time: follows /clock while the parameter `use_sim_time` is true."""

from __future__ import annotations

from typing import Any, Final

from multi_dnn_ros.standalone.clock import ROSClock
from multi_dnn_ros.standalone.messages import message_class
from multi_dnn_ros.standalone.node_surface import NodeSurface
from multi_dnn_ros.standalone.parameters import Parameter, ParameterTypes
from multi_dnn_ros.standalone.qos import qos_profile_clock
from multi_dnn_ros.standalone.time_values import Time

USE_SIM_TIME_NAME: Final = "use_sim_time"
CLOCK_TOPIC: Final = "/clock"


class TimeSource:
    """Sets a node's clock from /clock."""

    def __init__(self, node: NodeSurface, clock: ROSClock) -> None:
        self._node = node
        self._clock = clock
        self._subscription: Any = None
        if not node.has_parameter(USE_SIM_TIME_NAME):
            node.declare_parameter(USE_SIM_TIME_NAME, False)
        parameter = node.get_parameter_or(USE_SIM_TIME_NAME)
        if parameter.type_ is ParameterTypes.BOOL:
            self._switch(parameter.value)
        elif parameter.type_ is not ParameterTypes.NOT_SET:
            node.get_logger().error(
                f"Invalid type for parameter '{USE_SIM_TIME_NAME}' {parameter.type_!r} should be bool, "
                f"value {parameter.value!r}"
            )
        node.add_on_set_parameters_callback(self._on_set)

    def _on_set(self, wanted: list[Parameter]) -> Any:
        reason = ""
        for parameter in wanted:
            if parameter.name != USE_SIM_TIME_NAME:
                continue
            if parameter.type_ is ParameterTypes.BOOL:
                # The program's callbacks have already run, so none of them can reject the change afterwards.
                self._switch(parameter.value)
            else:
                reason = f"{USE_SIM_TIME_NAME} parameter set to something besides a bool"
                self._node.get_logger().error(reason)
        return message_class("rcl_interfaces/msg/SetParametersResult")(successful=not reason, reason=reason)

    def _switch(self, active: bool) -> None:
        self._clock._set_ros_time_is_active(active)
        if active and self._subscription is None:
            clock = message_class("rosgraph_msgs/msg/Clock")
            self._subscription = self._node.create_subscription(clock, CLOCK_TOPIC, self._follow, qos_profile_clock)
        elif not active and self._subscription is not None:
            self._node.destroy_subscription(self._subscription)
            self._subscription = None

    def _follow(self, message: Any) -> None:
        self._clock.set_ros_time_override(Time.from_msg(message.clock))
