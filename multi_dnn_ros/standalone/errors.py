"""The exceptions of `rclpy.exceptions`, with the same hierarchy and arguments where node code reads them."""

from __future__ import annotations

from typing import Any


class RCLError(RuntimeError):
    """An operation that the ROS client library refuses."""


class NotInitializedException(Exception):
    """A node or executor was made before `rclpy.init()`, or after `rclpy.shutdown()`."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__("rclpy.init() has not been called." + (f" msg:{message}" if message else ""))


class InvalidHandle(RuntimeError):
    """A node, publisher, subscription, service, client or timer was used after it was destroyed."""


class UnknownROSArgsError(RuntimeError):
    """The command line has ROS arguments that nobody knows."""


class NoTypeSupportImportedException(Exception):
    """A class without type support was given where a message or service class is expected."""

    def __init__(self) -> None:
        super().__init__("no type_support imported")


class NameValidationException(Exception):
    """A name breaks the rules of ROS names; the message points at the first character that does."""

    def __init__(self, name_type: str, name: str, error_msg: str, invalid_index: int) -> None:
        super().__init__(f"Invalid {name_type}: {error_msg}:\n  {name!r}\n   {' ' * invalid_index}^")


class InvalidNodeNameException(NameValidationException):
    """A node name that breaks the rules."""

    def __init__(self, name: str, error_msg: str, invalid_index: int) -> None:
        super().__init__("node name", name, error_msg, invalid_index)


class InvalidNamespaceException(NameValidationException):
    """A namespace that breaks the rules."""

    def __init__(self, name: str, error_msg: str, invalid_index: int) -> None:
        super().__init__("namespace", name, error_msg, invalid_index)


class InvalidTopicNameException(NameValidationException):
    """A topic name that breaks the rules."""

    def __init__(self, name: str, error_msg: str, invalid_index: int) -> None:
        super().__init__("topic name", name, error_msg, invalid_index)


class InvalidServiceNameException(NameValidationException):
    """A service name that breaks the rules."""

    def __init__(self, name: str, error_msg: str, invalid_index: int) -> None:
        super().__init__("service name", name, error_msg, invalid_index)


class ParameterException(Exception):
    """Base of what goes wrong with a parameter; the message names the parameters."""

    def __init__(self, error_msg: str, parameters: str | list[str]) -> None:
        super().__init__(f"{error_msg}: {parameters}")


class ParameterNotDeclaredException(ParameterException):
    """A parameter was used that nobody declared."""

    def __init__(self, parameters: str | list[str]) -> None:
        super().__init__("Invalid access to undeclared parameter(s)", parameters)


class ParameterAlreadyDeclaredException(ParameterException):
    """A parameter was declared twice."""

    def __init__(self, parameters: str | list[str]) -> None:
        super().__init__("Parameter(s) already declared", parameters)


class ParameterUninitializedException(ParameterException):
    """A parameter was declared by type only, and nobody gave it a value."""

    def __init__(self, parameter_name: str) -> None:
        super().__init__(f"The parameter '{parameter_name}' is not initialized", parameter_name)


class InvalidParameterException(ParameterException):
    """A parameter's name breaks the rules."""

    def __init__(self, parameter_name: str) -> None:
        super().__init__("Invalid parameter name", parameter_name)


class InvalidParameterTypeException(ParameterException):
    """A value is not of the parameter's type."""

    def __init__(self, desired_parameter: Any, expected_type: Any) -> None:
        name, value, kind = desired_parameter.name, desired_parameter.value, desired_parameter.type_.name
        super().__init__(
            f"Trying to set parameter '{name}' to '{value}' of type '{kind}', expecting type '{expected_type}'", name
        )


class InvalidParameterValueException(ParameterException):
    """A value is of the right type, and a range or a callback rejects it."""

    def __init__(self, parameter: str, value: Any, reason: str) -> None:
        super().__init__(f"Invalid parameter value ({value}) for parameter. Reason: {reason}", parameter)


class ParameterImmutableException(ParameterException):
    """A read-only parameter was undeclared."""

    def __init__(self, parameter_name: str) -> None:
        super().__init__("Attempted to modify read-only parameter", parameter_name)


class ROSInterruptException(Exception):
    """A wait ended because the context was shut down."""

    def __init__(self) -> None:
        super().__init__("rclpy.shutdown() has been called")
