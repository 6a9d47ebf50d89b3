"""The ROS parameters of the node: declared from the schema, validated when set, applied afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rcl_interfaces.msg import ParameterDescriptor, SetParametersResult
from rclpy.exceptions import ParameterNotDeclaredException
from rclpy.node import Node
from rclpy.parameter import Parameter

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.settings.flat_parameters import (
    REPLACED_BY_OUTPUTS,
    ParameterField,
    parameter_fields,
    read_parameters,
    unknown_parameters,
)
from multi_dnn_ros.settings.forms import ParameterError, shown
from multi_dnn_ros.settings.schema import NodeConfig

if TYPE_CHECKING:
    from multi_dnn_ros.ros.model_swap import ModelSwaps

#: Types of empty lists, which rclpy takes for lists of bytes, by the kind of the field.
_LIST_TYPES = {"string[]": Parameter.Type.STRING_ARRAY, "float[]": Parameter.Type.DOUBLE_ARRAY}


class NodeParameters:
    """Declares the parameters of a node and validates changes.

    An invalid value is declared unchanged, with dynamic typing; :meth:`lock` reports it, and the user can correct it
    while the node runs. apply: called with (name, value) after a runtime parameter has changed. swaps: changes other
    parameters of DNNs while the node is configured.
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
        self._fields = parameter_fields(given)
        for name, field in self._fields.items():
            self._declare(name, field, given.get(name, field.default))
        self._unknown, self._warnings = unknown_parameters(given, self._fields)
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
        """The configuration of the present parameters. state: "configuring" or "configured", for messages.

        Raises ParameterError with every wrong name, value and topic; then :meth:`unlock` is to be called, too.
        """
        while self._warnings:
            self._node.get_logger().warning(self._warnings.pop(0))
        self._locked = state  # first: a value that another thread sets now must not be missing in the configuration
        config, problems = read_parameters({name: self._node.get_parameter(name).value for name in self._fields})
        problems = [*self._unknown, *problems, *(self._topic_problems(config) if config is not None else ())]
        if problems or config is None:
            raise ParameterError(problems)
        return config

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
        if field.change != "runtime":
            how = "replaces the engine process" if field.change == "swap" else "is refused"
            descriptor.additional_constraints += f". A change while the node is configured {how}."
        if value is None and field.kind in _LIST_TYPES:  # an empty list in a parameter file
            value = []
        self._node.declare_parameter(name, value, descriptor, ignore_override=True)
        if isinstance(value, list) and not value:
            self._node.set_parameters([_parameter(name, field, value)])

    def _topic_problems(self, config: NodeConfig) -> list[str]:
        """Invalid topic names, which only ROS can check."""
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
        """The parameters to set, empty lists with the type of the field. The error names the most similar parameter."""
        for parameter in parameters:
            if not self._node.has_parameter(parameter.name):
                errors, warnings = unknown_parameters([parameter.name], self._fields)
                raise ParameterNotDeclaredException((*errors, *warnings, parameter.name)[0])
        return [
            _parameter(it.name, self._fields[it.name], it.value) if it.name in self._fields else it for it in parameters
        ]

    def _validate(self, parameters: list[Parameter]) -> SetParametersResult:
        problems = [problem for it in parameters if (problem := self._problem(it.name, it.value))]
        if not problems and not hasattr(self._node, "add_post_set_parameters_callback"):
            self._changed(parameters)  # Humble has no callbacks after setting
        return SetParametersResult(successful=not problems, reason="; ".join(problems))

    def _problem(self, name: str, value: Any) -> str:
        """Why the parameter must not have this value now; empty: it may."""
        field = self._fields.get(name)
        if field is None or self._accept_all:
            return ""
        if value is None:
            return f"parameter {name} cannot be deleted; allowed: {field.allowed}"
        try:
            checked = field.checked(name, value)
        except ParameterError as error:
            return str(error)
        if checked == self.value(name):
            return ""
        prefix, _, leaf = name.rpartition(".")
        if leaf in REPLACED_BY_OUTPUTS and any(other.startswith(f"{prefix}.output.") for other in self._fields):
            text = f"has no effect with {prefix}.outputs; set {prefix}.output.<output>.{leaf}"
        elif field.change == "start":
            text = "lists names that are fixed when the node starts; start the node with another value"
        elif self._locked == "configuring" or (self._locked and field.change == "unconfigured"):
            node = self._node.get_fully_qualified_name()
            text = (
                f"is read-only while the node is {self._locked}; first `ros2 lifecycle set {node} deactivate` (if it "
                f"is active), then `ros2 lifecycle set {node} cleanup`"
            )
        elif field.change == "swap" and (swaps := self._swaps()) and (refusal := swaps.refusal()):
            text = f"cannot change now: {refusal}"
        else:
            return field.missing_file(name, checked) if self._locked else ""
        return f"parameter {name} {text}"

    def _changed(self, parameters: list[Parameter]) -> None:
        for parameter in (it for it in parameters if it.name in self._fields and not self._accept_all):
            field = self._fields[parameter.name]
            value = field.checked(parameter.name, parameter.value)
            if field.change == "runtime":
                self._apply(parameter.name, value)
            elif field.change == "swap" and (swaps := self._swaps()):
                swaps.request(parameter.name, value)


def _parameter(name: str, field: ParameterField, value: Any) -> Parameter:
    """The parameter with the type of the field if it is an empty list."""
    if field.kind in _LIST_TYPES and value is not None and not isinstance(value, str) and not len(value):
        return Parameter(name, _LIST_TYPES[field.kind], [])
    return Parameter(name, value=value)
