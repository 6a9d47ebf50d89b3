"""The exceptions of `rclpy.exceptions`, with the same hierarchy and, where node code reads them, the same arguments."""

from __future__ import annotations

from typing import Any


class RCLError(RuntimeError):
    """The ROS client library rejects an operation."""


class NotInitializedException(Exception):
    """A node or executor was created before `rclpy.init()`, or after `rclpy.shutdown()`."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__("rclpy.init() has not been called." + (f" msg:{message}" if message else ""))


class InvalidHandle(RuntimeError):
    """A node, publisher, subscription, service, client or timer was used after it was destroyed."""


class UnknownROSArgsError(RuntimeError):
    """The command line has unknown ROS arguments."""


class NoTypeSupportImportedException(Exception):
    """A class without type support was given instead of a message or service class."""

    def __init__(self) -> None:
        super().__init__("no type_support imported")


class NameValidationException(Exception):
    """A name violates the rules of ROS names; the message marks the first invalid character."""

    def __init__(self, name_type: str, name: str, error_msg: str, invalid_index: int) -> None:
        super().__init__(f"Invalid {name_type}: {error_msg}:\n  {name!r}\n   {' ' * invalid_index}^")


class InvalidNodeNameException(NameValidationException):
    """An invalid node name."""

    def __init__(self, name: str, error_msg: str, invalid_index: int) -> None:
        super().__init__("node name", name, error_msg, invalid_index)


class InvalidNamespaceException(NameValidationException):
    """An invalid namespace."""

    def __init__(self, name: str, error_msg: str, invalid_index: int) -> None:
        super().__init__("namespace", name, error_msg, invalid_index)


class InvalidTopicNameException(NameValidationException):
    """An invalid topic name."""

    def __init__(self, name: str, error_msg: str, invalid_index: int) -> None:
        super().__init__("topic name", name, error_msg, invalid_index)


class InvalidServiceNameException(NameValidationException):
    """An invalid service name."""

    def __init__(self, name: str, error_msg: str, invalid_index: int) -> None:
        super().__init__("service name", name, error_msg, invalid_index)


class ParameterException(Exception):
    """Base of parameter errors; the message names the parameters."""

    def __init__(self, error_msg: str, parameters: str | list[str]) -> None:
        super().__init__(f"{error_msg}: {parameters}")


class ParameterNotDeclaredException(ParameterException):
    """An undeclared parameter was used."""

    def __init__(self, parameters: str | list[str]) -> None:
        super().__init__("Invalid access to undeclared parameter(s)", parameters)


class ParameterAlreadyDeclaredException(ParameterException):
    """A parameter was declared twice."""

    def __init__(self, parameters: str | list[str]) -> None:
        super().__init__("Parameter(s) already declared", parameters)


class ParameterUninitializedException(ParameterException):
    """A parameter was declared by type only, and has no value."""

    def __init__(self, parameter_name: str) -> None:
        super().__init__(f"The parameter '{parameter_name}' is not initialized", parameter_name)


class InvalidParameterException(ParameterException):
    """An invalid parameter name."""

    def __init__(self, parameter_name: str) -> None:
        super().__init__("Invalid parameter name", parameter_name)


class InvalidParameterTypeException(ParameterException):
    """A value does not have the parameter's type."""

    def __init__(self, desired_parameter: Any, expected_type: Any) -> None:
        name, value, kind = desired_parameter.name, desired_parameter.value, desired_parameter.type_.name
        super().__init__(
            f"Trying to set parameter '{name}' to '{value}' of type '{kind}', expecting type '{expected_type}'", name
        )


class InvalidParameterValueException(ParameterException):
    """A value has the right type, but a range or a callback rejects it."""

    def __init__(self, parameter: str, value: Any, reason: str) -> None:
        super().__init__(f"Invalid parameter value ({value}) for parameter. Reason: {reason}", parameter)


class ParameterImmutableException(ParameterException):
    """An attempt to undeclare a read-only parameter."""

    def __init__(self, parameter_name: str) -> None:
        super().__init__("Attempted to modify read-only parameter", parameter_name)


class ROSInterruptException(Exception):
    """A wait ended because the context was shut down."""

    def __init__(self) -> None:
        super().__init__("rclpy.shutdown() has been called")
