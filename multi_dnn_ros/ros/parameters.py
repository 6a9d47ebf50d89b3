"""The ROS parameters of the node: declared from the schema, validated when set, applied afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.exceptions import ParameterNotDeclaredException
from rclpy.node import Node
from rclpy.parameter import Parameter

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.settings.dnn_parameters import REPLACED_BY_OUTPUTS
from multi_dnn_ros.settings.flat_parameters import read_parameters
from multi_dnn_ros.settings.parameter_fields import (
    DEFAULT_CAMERAS,
    DEFAULT_DNNS,
    LISTS,
    OUTPUTS,
    ParameterError,
    ParameterField,
    checked_names,
    initial_value,
    is_name_list,
    parameter_fields,
    shown,
)
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.settings.swappable import is_swappable, missing_file
from multi_dnn_ros.settings.unknown_parameters import unknown_parameters

_LISTS = ("cameras", "dnns")
_READ_ONLY = "Read-only while the node is configured."
_SWAP = "A change while the node is configured replaces the engine process."
#: Types of lists, by the kind of the field.
_LIST_TYPES = {"string[]": Parameter.Type.STRING_ARRAY, "float[]": Parameter.Type.DOUBLE_ARRAY}


class UnknownParameterError(ParameterNotDeclaredException):
    """A parameter that does not exist was set. The text, which is sent to the client, names the most similar one."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)  # the base class would put another text in front


class Swaps(Protocol):
    """Part of :class:`multi_dnn_ros.ros.model_swap.ModelSwaps`."""

    def refusal(self) -> str:
        """Why parameters of DNNs cannot change by a swap now; empty: they can."""
        ...

    def request(self, name: str, value: Any) -> None:
        """A parameter that takes effect by a swap has changed."""
        ...


class NodeParameters:
    """Declares the parameters of a node and validates changes.

    A mistake in a parameter file or on the command line must not end the process. An invalid value or unknown name is
    declared as it is, :meth:`parse` reports it, and the user can correct or delete it while the node runs. Therefore
    parameters are declared with dynamic typing, and the types are checked here.

    apply: called with (name, value) after a runtime parameter has changed. swaps: change other parameters of DNNs while
    the node is configured.
    """

    def __init__(self, node: Node, apply: Callable[[str, Any], None], swaps: Swaps) -> None:
        self._node = node
        self._apply = apply
        self._swaps = swaps
        self._served: dict[str, Parameter] = {}  # served values of parameters that a swap will change
        self._restored: dict[str, Parameter] = {}  # parameters that are being set back
        self._locked = False
        self._declaring = False  # accept any value
        # Undeclared overrides reveal typing errors. The only public access to them in rclpy,
        # automatically_declare_parameters_from_overrides, raises for an empty list (Jazzy).
        self._overrides: dict[str, Any] = {
            name: getattr(parameter, "value", parameter) for name, parameter in node._parameter_overrides.items()
        }
        names = self._names_or_default("cameras", DEFAULT_CAMERAS), self._names_or_default("dnns", DEFAULT_DNNS)
        self._fields = parameter_fields(*names, self._outputs_of(names[1], {}))
        for name, field in self._fields.items():
            self._declare(name, field)
        self._unknown, self._warnings = self._declare_unknown(*names, self._outputs_of(names[1], {}))
        if hasattr(node, "add_pre_set_parameters_callback"):  # not on Humble
            node.add_pre_set_parameters_callback(self._prepare)
        node.add_on_set_parameters_callback(self._validate)
        if hasattr(node, "add_post_set_parameters_callback"):
            node.add_post_set_parameters_callback(self._changed)

    def value(self, name: str) -> Any:
        """The value of a parameter; its default if the value is invalid, which :meth:`parse` reports."""
        field = self._fields[name]
        try:
            return field.checked(name, self._node.get_parameter(name).value)
        except ParameterError:
            return field.default

    def parse(self) -> NodeConfig:
        """The configuration of the present parameters. Logs warnings about unused ones.

        Raises ParameterError with every wrong name, value and topic.
        """
        for warning in self._warnings:
            self._node.get_logger().warning(warning)
        names = [name for name in (*self._fields, *self._unknown) if self._node.has_parameter(name)]
        parsed = read_parameters({name: self._node.get_parameter(name).value for name in names})
        problems = [*parsed.problems, *(self._topic_problems(parsed.config) if parsed.config is not None else ())]
        if problems or parsed.config is None:
            raise ParameterError(problems)
        return parsed.config

    def lock(self, locked: bool) -> None:
        """Set whether the node is configured with the present values."""
        self._locked = locked
        self._served.clear()

    def keep_swapped(self) -> None:
        """The values that were requested for a swap are served."""
        self._served.clear()

    def restore_swapped(self) -> None:
        """A swap has failed: set the parameters back to the values that are served."""
        self._restored, self._served = self._served, {}
        try:
            self._node.set_parameters(list(self._restored.values()))
        finally:
            self._restored = {}

    def _names_or_default(self, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return checked_names(name, self._overrides.get(name, list(default)))
        except ParameterError:
            return default

    def _declare(self, name: str, field: ParameterField) -> None:
        value = initial_value(name, field, self._overrides)
        descriptor = ParameterDescriptor(description=field.description, dynamic_typing=True)
        note = _SWAP if is_swappable(name) else _READ_ONLY
        descriptor.additional_constraints = field.allowed if field.runtime else f"{field.allowed}. {note}"
        try:
            value = field.checked(name, value)
        except ParameterError:
            pass  # declared without a range, which would reject the value
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
            declared = self._node.get_parameter(name)
            typed = _typed(declared, field)
            if typed is not declared:
                self._node.set_parameters([typed])
        finally:
            self._declaring = False

    def _declare_unknown(
        self, cameras: tuple[str, ...], dnns: tuple[str, ...], outputs: Mapping[str, tuple[str, ...]]
    ) -> tuple[list[str], list[str]]:
        """Declare unknown names that are errors, so that users can see and delete them; returns them and warnings."""
        unknown = []
        for name, value in self._overrides.items():
            errors, _ = unknown_parameters({name: value}, cameras, dnns, outputs)
            if errors and not self._node.has_parameter(name):
                descriptor = ParameterDescriptor(description="No such parameter.", dynamic_typing=True)
                self._node.declare_parameter(name, value, descriptor, ignore_override=True)
                unknown.append(name)
        return unknown, unknown_parameters(self._overrides, cameras, dnns, outputs)[1]

    def _prepare(self, parameters: list[Parameter]) -> list[Parameter]:
        """The parameters to set, with the types of the fields. Raises UnknownParameterError."""
        for parameter in parameters:
            if not self._node.has_parameter(parameter.name):
                raise UnknownParameterError(self._unknown_text(parameter))
        return [
            _typed(parameter, self._fields[parameter.name]) if parameter.name in self._fields else parameter
            for parameter in parameters
        ]

    def _unknown_text(self, parameter: Parameter) -> str:
        cameras, dnns = (tuple(self.value(name)) for name in _LISTS)
        errors, warnings = unknown_parameters(
            {parameter.name: parameter.value}, cameras, dnns, self._outputs_of(dnns, {})
        )
        text = next(iter((*errors, *warnings)), f"parameter {parameter.name}: no such parameter")
        kind, _, rest = parameter.name.partition(".")
        members = {"camera": cameras, "dnn": dnns}.get(kind)
        if members is None or rest.partition(".")[0] in members:
            return text
        # `ros2 param load` sets parameters one by one; `ros2 param dump` writes them in alphabetical order.
        return f"{text.removesuffix('; not used')}; set {LISTS[kind]} first, or load the file once more"

    def _validate(self, parameters: list[Parameter]) -> SetParametersResult:
        """Validate changes. :meth:`_changed` applies them once every callback has accepted them; on Humble, which has
        no callbacks after setting, this method calls it. Remembers served values of parameters that change by a swap.
        """
        if self._declaring:  # accept invalid values: the role of a new DNN, for example, has no default
            return SetParametersResult(successful=True)
        parameters = self._without_restored(parameters)
        problems: list[str] = []
        for parameter in parameters:
            try:
                self._check(parameter.name, parameter.value)
            except ParameterError as error:
                problems.extend(error.problems)
        if not problems:
            for name in self._swapped(parameters):
                self._served.setdefault(name, self._node.get_parameter(name))
        if not problems and not hasattr(self._node, "add_post_set_parameters_callback"):
            self._changed(parameters)  # Humble has no callbacks after setting
        return SetParametersResult(successful=not problems, reason="; ".join(problems))

    def _topic_problems(self, config: NodeConfig) -> list[str]:
        """Invalid topic names. Only ROS can check them, and without this it would do so during activation."""
        problems = []
        for camera, settings in config.cameras.items():
            for field, topic in (("topic", settings.topic), ("info_topic", settings.info_topic)):
                try:
                    self._node.resolve_topic_name(topic or camera)
                except Exception as error:  # several types; the lines after the first mark the position in the name
                    reason = summarize_error(error).rstrip(":")
                    problems.append(
                        f"parameter camera.{camera}.{field} is {shown(topic)}; allowed: a topic name: {reason}"
                    )
        return problems

    def _checked(self, name: str, value: Any) -> Any:
        """The value in the type of the parameter, so that equal lists, tuples and arrays compare equal."""
        return checked_names(name, value) if is_name_list(name) else self._fields[name].checked(name, value)

    def _check(self, name: str, value: Any) -> None:
        field = self._fields.get(name)
        if field is None:
            return
        if value is None:
            raise ParameterError([f"parameter {name} cannot be deleted; allowed: {field.allowed}"])
        checked = self._checked(name, value)
        if checked != field.default:
            self._check_effect(name)
        if self._locked and not field.runtime and checked != self._checked(name, self._node.get_parameter(name).value):
            refusal = self._swaps.refusal() if is_swappable(name) else ""
            if refusal or not is_swappable(name):
                node, why = self._node.get_fully_qualified_name(), f" ({refusal})" if refusal else ""
                raise ParameterError(
                    [
                        f"parameter {name} is read-only while the node is configured{why}; first "
                        f"`ros2 lifecycle set {node} deactivate` (if it is active), then "
                        f"`ros2 lifecycle set {node} cleanup`"
                    ]
                )
            problem = missing_file(name, checked)
            if problem:
                raise ParameterError([problem])

    def _without_restored(self, parameters: list[Parameter]) -> list[Parameter]:
        """All but those that a failed swap sets back; other callbacks may set further parameters at the same time."""
        restored = self._restored
        return [
            parameter
            for parameter in parameters
            if parameter.name not in restored or parameter.value != restored[parameter.name].value
        ]

    def _swapped(self, parameters: Iterable[Parameter]) -> list[str]:
        """The names of those that change by a swap; none while the node is not configured."""
        names = [parameter.name for parameter in parameters] if self._locked else []
        return [
            name for name in names if name in self._fields and not self._fields[name].runtime and is_swappable(name)
        ]

    def _check_effect(self, name: str) -> None:
        """Raise ParameterError for a parameter that has no effect because the DNN has parameters of outputs instead."""
        kind, _, rest = name.partition(".")
        dnn, _, field = rest.partition(".")
        if kind == "dnn" and field in REPLACED_BY_OUTPUTS and self._outputs_of([dnn], {})[dnn]:
            raise ParameterError(
                [f"parameter {name} has no effect with dnn.{dnn}.{OUTPUTS}; set dnn.{dnn}.output.<output>.{field}"]
            )

    def _changed(self, parameters: list[Parameter]) -> None:
        if self._declaring:
            return
        parameters = self._without_restored(parameters)
        lists = {
            parameter.name: tuple(parameter.value)
            for parameter in parameters
            if is_name_list(parameter.name) and parameter.name in self._fields  # not of a DNN that does not exist
        }
        if lists:
            self._update_members(lists)
        for parameter in parameters:
            field = self._fields.get(parameter.name)
            if field is not None and field.runtime:
                self._apply(parameter.name, field.checked(parameter.name, parameter.value))
        swapped = self._swapped(parameters)
        for parameter in parameters:
            if parameter.name in swapped:
                self._swaps.request(parameter.name, self._checked(parameter.name, parameter.value))

    def _outputs_of(self, dnns: Iterable[str], changed: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """The outputs of each DNN; none if the value is invalid. changed: new values by parameter."""
        outputs = {}
        for dnn in dnns:
            name = f"dnn.{dnn}.{OUTPUTS}"
            if name in changed:
                outputs[dnn] = changed[name]
            elif self._node.has_parameter(name):
                outputs[dnn] = self._valid_names(name, self._node.get_parameter(name).value or [])
            else:
                outputs[dnn] = self._valid_names(name, self._overrides.get(name) or [])
        return outputs

    def _valid_names(self, name: str, value: Any) -> tuple[str, ...]:
        try:
            return checked_names(name, value)
        except ParameterError:
            return ()

    def _update_members(self, changed: Mapping[str, tuple[str, ...]]) -> None:
        """Lists of names have changed: declare parameters of new members, undeclare those of removed ones."""
        lists = {name: changed[name] if name in changed else tuple(self.value(name)) for name in _LISTS}
        before, self._fields = (
            self._fields,
            parameter_fields(lists["cameras"], lists["dnns"], self._outputs_of(lists["dnns"], changed)),
        )
        for name in before.keys() - self._fields.keys():
            self._node.undeclare_parameter(name)
        for name, field in self._fields.items():
            if name not in before and not self._node.has_parameter(name):
                self._declare(name, field)
        self._unknown = [name for name in self._unknown if name not in self._fields]


def _typed(parameter: Parameter, field: ParameterField) -> Parameter:
    """The parameter with the type of the field if it is an empty list, which rclpy takes for a list of bytes."""
    if field.kind not in _LIST_TYPES or parameter.type_ != Parameter.Type.BYTE_ARRAY or len(parameter.value):
        return parameter
    return Parameter(parameter.name, _LIST_TYPES[field.kind], [])
