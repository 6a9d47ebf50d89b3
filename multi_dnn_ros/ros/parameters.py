"""The schema as ROS parameters of a node: declared with their limits, validated when set, applied afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.node import Node
from rclpy.parameter import Parameter

from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.settings.flat_parameters import (
    DEFAULT_CAMERAS,
    DEFAULT_DNNS,
    ParameterError,
    ParameterField,
    Reading,
    checked_names,
    initial_value,
    parameter_fields,
    read_parameters,
    shown,
    unknown_parameters,
)
from multi_dnn_ros.settings.schema import NodeConfig

_LISTS = ("cameras", "dnns")
_READ_ONLY = "Read-only while the node is configured."


class NodeParameters:
    """Declares the parameters on a node and keeps them.

    A mistake in a parameter file or on the command line must not end the process: the wrong value (or the name that
    does not exist) is declared as it stands, :meth:`config` names it, and setting it right, or deleting it, mends it.
    That is why parameters are declared with dynamic typing; values are checked here.

    apply: called with (name, value) after a parameter was changed that may change at run time.
    """

    def __init__(self, node: Node, apply: Callable[[str, Any], None]) -> None:
        self._node = node
        self._apply = apply
        self._locked = False
        self._declaring = False
        # Overrides that nobody declared are how a typing error is found. rclpy's only public way to them,
        # automatically_declare_parameters_from_overrides, raises for an empty list (Jazzy).
        self._overrides: dict[str, Any] = {
            name: getattr(parameter, "value", parameter) for name, parameter in node._parameter_overrides.items()
        }
        names = self._names_or("cameras", DEFAULT_CAMERAS), self._names_or("dnns", DEFAULT_DNNS)
        self._fields = parameter_fields(*names)
        for name, field in self._fields.items():
            self._declare(name, field)
        self._unknown, self._warnings = self._declare_unknown(*names)
        node.add_on_set_parameters_callback(self._validate)
        if hasattr(node, "add_post_set_parameters_callback"):
            node.add_post_set_parameters_callback(self._changed)

    def value(self, name: str) -> Any:
        """The value of a parameter, checked; its default where it is wrong (then :meth:`config` says so)."""
        field = self._fields[name]
        try:
            return field.checked(name, self._node.get_parameter(name).value)
        except ParameterError:
            return field.default

    def reading(self) -> Reading:
        """All parameters as they are now, with what is wrong. Logs what is not used."""
        for warning in self._warnings:
            self._node.get_logger().warning(warning)
        names = [name for name in (*self._fields, *self._unknown) if self._node.has_parameter(name)]
        reading = read_parameters({name: self._node.get_parameter(name).value for name in names})
        if reading.config is None:
            return reading
        return replace(reading, problems=(*reading.problems, *self._topic_problems(reading.config)))

    @staticmethod
    def checked(reading: Reading, check: Callable[[NodeConfig], Sequence[str]]) -> NodeConfig:
        """The configuration of a reading; ParameterError names each parameter that is wrong. May take long.

        check: says what is wrong beyond single values; asked only where something is wrong already, so that everything
        is told at once.
        """
        if reading.config is not None and not reading.problems:
            return reading.config
        beyond = check(reading.config) if reading.config is not None else ()
        # Not of values that are wrong, and were checked further as if they had not been given.
        further = [line for line in beyond if not any(name in line.split() for name in reading.wrong)]
        raise ParameterError([*reading.problems, *further])

    def lock(self, locked: bool) -> None:
        """Whether parameters that are read-only once configured are refused."""
        self._locked = locked

    def _names_or(self, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return checked_names(name, self._overrides.get(name, list(default)))
        except ParameterError:
            return default

    def _declare(self, name: str, field: ParameterField) -> None:
        value = initial_value(name, field, self._overrides)
        descriptor = ParameterDescriptor(description=field.description, dynamic_typing=True)
        descriptor.additional_constraints = field.allowed if field.runtime else f"{field.allowed}. {_READ_ONLY}"
        try:
            value = field.checked(name, value)
        except ParameterError:
            pass  # declared all the same, without a range, which would refuse it
        else:
            if field.minimum is not None and field.maximum is not None:
                low, high = field.minimum, field.maximum
                if field.kind == "int":
                    descriptor.integer_range = [IntegerRange(from_value=int(low), to_value=int(high), step=0)]
                else:
                    descriptor.floating_point_range = [FloatingPointRange(from_value=low, to_value=high, step=0.0)]
        self._declaring = True
        try:
            self._node.declare_parameter(name, value, descriptor, ignore_override=True)
        finally:
            self._declaring = False

    def _declare_unknown(self, cameras: tuple[str, ...], dnns: tuple[str, ...]) -> tuple[list[str], list[str]]:
        """Names that exist nowhere: declared when they are errors, so that they can be looked at and deleted."""
        unknown = []
        for name, value in self._overrides.items():
            errors, _ = unknown_parameters({name: value}, cameras, dnns)
            if errors and not self._node.has_parameter(name):
                descriptor = ParameterDescriptor(description="No such parameter.", dynamic_typing=True)
                self._node.declare_parameter(name, value, descriptor, ignore_override=True)
                unknown.append(name)
        return unknown, unknown_parameters(self._overrides, cameras, dnns)[1]

    def _validate(self, parameters: list[Parameter]) -> SetParametersResult:
        """Judges only; what a change does is done in :meth:`_changed`, when no one can refuse it any more."""
        if self._declaring:  # as it stands: what has no default, such as the role of a new DNN, is set afterwards
            return SetParametersResult(successful=True)
        problems: list[str] = []
        for parameter in parameters:
            try:
                self._check(parameter.name, parameter.value)
            except ParameterError as error:
                problems.extend(error.problems)
        if not problems and not hasattr(self._node, "add_post_set_parameters_callback"):
            self._changed(parameters)  # Humble: nothing is called after setting
        return SetParametersResult(successful=not problems, reason="; ".join(problems))

    def _topic_problems(self, config: NodeConfig) -> list[str]:
        """Only ROS knows what a topic's name may be, and it looks when a subscription is made: when activating."""
        problems = []
        for name, camera in config.cameras.items():
            try:
                self._node.resolve_topic_name(camera.topic or name)
            except Exception as error:  # rclpy's are of several types, with a picture of the name in further lines
                reason = summarize_error(error).rstrip(":")
                problems.append(
                    f"parameter camera.{name}.topic is {shown(camera.topic)}; allowed: a topic name: {reason}"
                )
        return problems

    def _checked(self, name: str, value: Any) -> Any:
        """In the parameter's own type, in which equal values compare equal: rclpy keeps lists, tuples and arrays."""
        return checked_names(name, value) if name in _LISTS else self._fields[name].checked(name, value)

    def _check(self, name: str, value: Any) -> None:
        field = self._fields.get(name)
        if field is None:
            return
        if value is None:
            raise ParameterError([f"parameter {name} cannot be deleted; allowed: {field.allowed}"])
        checked = self._checked(name, value)
        if self._locked and not field.runtime and checked != self._checked(name, self._node.get_parameter(name).value):
            raise ParameterError(
                [
                    f"parameter {name} is read-only while the node is configured; "
                    f"`ros2 lifecycle set {self._node.get_fully_qualified_name()} cleanup` first"
                ]
            )

    def _changed(self, parameters: list[Parameter]) -> None:
        if self._declaring:
            return
        lists = {parameter.name: tuple(parameter.value) for parameter in parameters if parameter.name in _LISTS}
        if lists:
            self._rename(lists)
        for parameter in parameters:
            field = self._fields.get(parameter.name)
            if field is not None and field.runtime:
                self._apply(parameter.name, field.checked(parameter.name, parameter.value))

    def _rename(self, changed: Mapping[str, tuple[str, ...]]) -> None:
        """The lists of cameras or DNNs have changed: declare the parameters of those that are new, drop the others."""
        lists = {name: changed[name] if name in changed else tuple(self.value(name)) for name in _LISTS}
        before, self._fields = self._fields, parameter_fields(lists["cameras"], lists["dnns"])
        for name in before.keys() - self._fields.keys():
            self._node.undeclare_parameter(name)
        for name, field in self._fields.items():
            if name not in before and not self._node.has_parameter(name):
                self._declare(name, field)
        self._unknown = [name for name in self._unknown if name not in self._fields]
