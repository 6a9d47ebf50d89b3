"""The parameter with which an rclpy node starts `~/get_type_description`, a service that is not implemented here."""

from __future__ import annotations

from typing import Final

from multi_dnn_ros.standalone.messages import message_class
from multi_dnn_ros.standalone.missing import UnsupportedError, missing
from multi_dnn_ros.standalone.node_surface import NodeSurface

START_TYPE_DESCRIPTION_SERVICE_PARAM: Final = "start_type_description_service"


def declare_type_description(node: NodeSurface) -> None:
    """Declare the parameter, read-only as in rclpy, but with the value False.

    Raises:
        UnsupportedError: if a parameter file or the command line enables the service.
    """
    name = START_TYPE_DESCRIPTION_SERVICE_PARAM
    if not node.has_parameter(name):
        descriptor = message_class("rcl_interfaces/msg/ParameterDescriptor")(
            description="If enabled, start the ~/get_type_description service.", read_only=True
        )
        node.declare_parameter(name, False, descriptor)
    if node.get_parameter(name).value is True:
        raise UnsupportedError(missing(f"~/get_type_description (parameter {name})"))
