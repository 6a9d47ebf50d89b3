"""The parameter by which a node of rclpy starts `~/get_type_description`, a service that is not here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from multi_dnn_ros.standalone.messages import message_class
from multi_dnn_ros.standalone.missing import UnsupportedError, missing

if TYPE_CHECKING:
    from multi_dnn_ros.standalone.node import Node

START_TYPE_DESCRIPTION_SERVICE_PARAM: Final = "start_type_description_service"


def declare_type_description(node: Node) -> None:
    """Declare the parameter as rclpy does, but False: it is read-only, and nobody is told of a service that is missing.

    Raises:
        UnsupportedError: when a parameter file or the command line asks for the service.
    """
    name = START_TYPE_DESCRIPTION_SERVICE_PARAM
    if not node.has_parameter(name):
        descriptor = message_class("rcl_interfaces/msg/ParameterDescriptor")(
            description="If enabled, start the ~/get_type_description service.", read_only=True
        )
        node.declare_parameter(name, False, descriptor)
    if node.get_parameter(name).value is True:
        raise UnsupportedError(missing(f"~/get_type_description (parameter {name})"))
