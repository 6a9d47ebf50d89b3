"""The ROS parameters of the node: declared from the schema, validated when set, applied afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rcl_interfaces.msg import ParameterDescriptor, SetParametersResult
from rclpy.exceptions import ParameterNotDeclaredException
from rclpy.node import Node
from rclpy.parameter import Parameter

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.settings.flat_parameters import REPLACED_BY_OUTPUTS, read_parameters, unknown_parameters
from multi_dnn_ros.settings.parameter_fields import (
    DEFAULT_CAMERAS,
    DEFAULT_DNNS,
    OUTPUTS,
    ParameterError,
    ParameterField,
    checked_names,
    initial_value,
    is_name_list,
    is_swappable,
    missing_file,
    parameter_fields,
    shown,
)
from multi_dnn_ros.settings.schema import NodeConfig

if TYPE_CHECKING:
    from multi_dnn_ros.ros.model_swap import ModelSwaps

#: Types of empty lists, which rclpy takes for lists of bytes, by the kind of the field.
_LIST_TYPES = {"string[]": Parameter.Type.STRING_ARRAY, "float[]": Parameter.Type.DOUBLE_ARRAY}


class NodeParameters:
    """Declares the parameters of a node and validates changes.

    A mistake in a parameter file or on the command line must not end the process: an invalid value is declared as it
    is, :meth:`lock` reports it, and the user can correct it while the node runs. Therefore parameters are declared with
    dynamic typing, and the types are checked here. Names of cameras, DNNs and outputs are those of the start.

    apply: called with (name, value) after a runtime parameter has changed. swaps: changes other parameters of DNNs
    while the node is configured.
    """

    def __init__(self, node: Node, apply: Callable[[str, Any], None], swaps: Callable[[], ModelSwaps | None]) -> None:
        self._node = node
        self._apply = apply
        self._swaps = swaps
        self._locked = ""  # "configuring" or "configured"
        self._accept_all = True  # while declaring, and while values that are served are set back
        # The only public access to undeclared overrides in rclpy, automatically_declare_parameters_from_overrides,
        # raises for an empty list (Jazzy).
        given = {name: getattr(it, "value", it) for name, it in node._parameter_overrides.items()}
        self._cameras = _names("cameras", given, DEFAULT_CAMERAS)
        self._dnns = _names("dnns", given, DEFAULT_DNNS)
        self._outputs = {dnn: _names(f"dnn.{dnn}.{OUTPUTS}", given, ()) for dnn in self._dnns}
        self._fields = parameter_fields(self._cameras, self._dnns, self._outputs)
        for name, field in self._fields.items():
            self._declare(name, field, initial_value(name, field, given))
        self._unknown, self._warnings = self._unknown_among(given)
        self._accept_all = False
        if hasattr(node, "add_pre_set_parameters_callback"):  # not on Humble
            node.add_pre_set_parameters_callback(self._prepare)
        node.add_on_set_parameters_callback(self._validate)
        if hasattr(node, "add_post_set_parameters_callback"):
            node.add_post_set_parameters_callback(self._changed)

    def value(self, name: str) -> Any:
        """The value of a parameter; its default if the value is invalid, which :meth:`lock` reports."""
        field = self._fields[name]
        try:
            return field.checked(name, self._node.get_parameter(name).value)
        except ParameterError:
            return field.default

    def lock(self, state: str) -> NodeConfig:
        """The configuration of the present parameters, from which the node is being configured, or is configured.

        state: "configuring" or "configured", for messages. Raises ParameterError with every wrong name, value and
        topic; then :meth:`unlock` is to be called, too.
        """
        for warning in self._warnings:
            self._node.get_logger().warning(warning)
        self._warnings = []
        self._locked = state  # first: a value that another thread sets now must not be missing in the configuration
        parsed = read_parameters({name: self._node.get_parameter(name).value for name in self._fields})
        problems = [*self._unknown, *parsed.problems]
        if parsed.config is not None:
            problems += self._topic_problems(parsed.config)
        if problems or parsed.config is None:
            raise ParameterError(problems)
        return parsed.config

    def unlock(self) -> None:
        """The node is not configured any more."""
        self._locked = ""

    def restore(self, values: Mapping[str, Any]) -> None:
        """Set parameters back to the values that are served, because a swap has failed."""
        self._accept_all = True
        try:
            self._node.set_parameters([_parameter(name, self._fields[name], value) for name, value in values.items()])
        finally:
            self._accept_all = False

    def _declare(self, name: str, field: ParameterField, value: Any) -> None:
        descriptor = ParameterDescriptor(description=field.description, dynamic_typing=True)
        descriptor.additional_constraints = field.allowed
        if not field.runtime:
            how = "replaces the engine process" if is_swappable(name) else "is refused"
            descriptor.additional_constraints += f". A change while the node is configured {how}."
        self._node.declare_parameter(name, value, descriptor, ignore_override=True)
        if isinstance(value, list) and not value:
            self._node.set_parameters([_parameter(name, field, value)])

    def _unknown_among(self, values: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """Errors and warnings about names that are no parameters."""
        return unknown_parameters(values, self._cameras, self._dnns, self._outputs)

    def _topic_problems(self, config: NodeConfig) -> list[str]:
        """Invalid topic names. Only ROS can check them, and without this it would do so during activation."""
        problems = []
        for camera, settings in config.cameras.items():
            try:
                self._node.resolve_topic_name(settings.topic or camera)
            except Exception as error:  # several types; the lines after the first mark the position in the name
                name, reason = f"camera.{camera}.topic", summarize_error(error).rstrip(":")
                problems.append(f"parameter {name} is {shown(settings.topic)}; allowed: a topic name: {reason}")
        return problems

    # -- callbacks of rclpy

    def _prepare(self, parameters: list[Parameter]) -> list[Parameter]:
        """The parameters to set, with the types of the fields.

        Raises ParameterNotDeclaredException, whose text names the parameter most similar to one that does not exist.
        """
        for parameter in parameters:
            if not self._node.has_parameter(parameter.name):
                errors, warnings = self._unknown_among({parameter.name: parameter.value})
                raise ParameterNotDeclaredException((*errors, *warnings, parameter.name)[0])
        return [
            _parameter(it.name, self._fields[it.name], it.value) if it.name in self._fields else it for it in parameters
        ]

    def _validate(self, parameters: list[Parameter]) -> SetParametersResult:
        problems: list[str] = []
        for parameter in parameters if not self._accept_all else ():
            try:
                self._check(parameter.name, parameter.value)
            except ParameterError as error:
                problems.extend(error.problems)
        if not problems and not hasattr(self._node, "add_post_set_parameters_callback"):
            self._changed(parameters)  # Humble has no callbacks after setting
        return SetParametersResult(successful=not problems, reason="; ".join(problems))

    def _check(self, name: str, value: Any) -> None:
        """Raise ParameterError if the parameter must not have this value now."""
        field = self._fields.get(name)
        if field is None:
            return
        if value is None:
            raise ParameterError([f"parameter {name} cannot be deleted; allowed: {field.allowed}"])
        checked = field.checked(name, value)
        if checked == self.value(name):
            return
        _, dnn, leaf = (*name.split(".", 2), "", "")[:3]
        if leaf in REPLACED_BY_OUTPUTS and self._outputs.get(dnn):
            text = f"has no effect with dnn.{dnn}.{OUTPUTS}; set dnn.{dnn}.output.<output>.{leaf}"
        elif is_name_list(name):
            text = "lists names that are fixed when the node starts; start the node with another value"
        elif self._locked == "configuring" or (self._locked and not field.runtime and not is_swappable(name)):
            node = self._node.get_fully_qualified_name()
            text = (
                f"is read-only while the node is {self._locked}; first `ros2 lifecycle set {node} deactivate` (if it "
                f"is active), then `ros2 lifecycle set {node} cleanup`"
            )
        elif not field.runtime and (swaps := self._swaps()) and (refusal := swaps.refusal()):
            text = f"cannot change now: {refusal}"
        elif self._locked and (problem := missing_file(name, checked)):
            raise ParameterError([problem])
        else:
            return
        raise ParameterError([f"parameter {name} {text}"])

    def _changed(self, parameters: list[Parameter]) -> None:
        for parameter in parameters if not self._accept_all else ():
            field = self._fields.get(parameter.name)
            if field is None:
                continue
            value = field.checked(parameter.name, parameter.value)
            if field.runtime:
                self._apply(parameter.name, value)
            elif is_swappable(parameter.name) and (swaps := self._swaps()):
                swaps.request(parameter.name, value)


def _names(name: str, given: Mapping[str, Any], default: tuple[str, ...]) -> tuple[str, ...]:
    """The names in a list; its default if the value is invalid."""
    try:
        return checked_names(name, given.get(name, list(default)))
    except ParameterError:
        return default


def _parameter(name: str, field: ParameterField, value: Any) -> Parameter:
    """The parameter with the type of the field if it is an empty list."""
    if field.kind in _LIST_TYPES and value is not None and not isinstance(value, str) and not len(value):
        return Parameter(name, _LIST_TYPES[field.kind], [])
    return Parameter(name, value=value)
