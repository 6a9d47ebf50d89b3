"""The parameters of a node: declare, get, set, describe, and callbacks on changes."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from multi_dnn_ros.standalone import errors, parameters
from multi_dnn_ros.standalone.clock import Clock
from multi_dnn_ros.standalone.messages import message_class
from multi_dnn_ros.standalone.missing import Surface
from multi_dnn_ros.standalone.parameters import SEPARATOR, Parameter, ParameterTypes
from multi_dnn_ros.standalone.topics import Publisher

ChangeCallback: TypeAlias = Callable[[list[Parameter]], Any]


def _descriptor() -> Any:
    return message_class("rcl_interfaces/msg/ParameterDescriptor")()


def _result(reason: str = "") -> Any:
    return message_class("rcl_interfaces/msg/SetParametersResult")(successful=not reason, reason=reason)


class NodeParameters(Surface):
    """The part of a node that owns its parameters."""

    def __init__(self, clock: Clock, events: Publisher, node_name: str, *, allow_undeclared: bool) -> None:
        self._parameter_lock = threading.RLock()
        self._parameters: dict[str, Parameter] = {}
        self._descriptors: dict[str, Any] = {}
        self._parameter_overrides: dict[str, Parameter] = {}
        self._allow_undeclared_parameters = allow_undeclared
        self._parameter_clock = clock
        self._parameter_events = events
        self._parameter_node_name = node_name
        self._pre_set_parameters_callbacks: list[ChangeCallback] = []
        self._on_set_parameters_callbacks: list[ChangeCallback] = []
        self._post_set_parameters_callbacks: list[ChangeCallback] = []

    # ----------------------------------------------------------------------------------------------------- declaring

    def declare_parameter(
        self, name: str, value: Any = None, descriptor: Any = None, ignore_override: bool = False
    ) -> Parameter:
        """Declare a parameter and return it with its value: the command line's, or the given default.

        Args:
            name: the full name.
            value: the default, which also determines the type; or only a `Parameter.Type`.
            descriptor: a rcl_interfaces/ParameterDescriptor.
            ignore_override: whether to ignore the command line's value.

        Raises:
            ParameterAlreadyDeclaredException, InvalidParameterException, InvalidParameterTypeException,
            InvalidParameterValueException, TypeError, ValueError: each names the parameter.
        """
        entry = (name,) if value is None and descriptor is None else (name, value, descriptor or _descriptor())
        return self.declare_parameters("", [entry], ignore_override)[0]

    def declare_parameters(
        self, namespace: str, parameters: Sequence[tuple[Any, ...]], ignore_override: bool = False
    ) -> list[Parameter]:
        """Declare several parameters, each a tuple (name, value, descriptor); see :meth:`declare_parameter`."""
        with self._parameter_lock:
            prepared = [
                self._prepare(namespace, index, entry, ignore_override) for index, entry in enumerate(parameters)
            ]
            declared = [parameter.name for parameter, _ in prepared if parameter.name in self._parameters]
            if declared:
                raise errors.ParameterAlreadyDeclaredException(declared)
            for parameter, descriptor in prepared:
                result = self._set([parameter], {parameter.name: descriptor})
                if not result.successful:
                    if result.reason.startswith("Wrong parameter type"):
                        raise errors.InvalidParameterTypeException(parameter, ParameterTypes(descriptor.type).name)
                    raise errors.InvalidParameterValueException(parameter.name, parameter.value, result.reason)
            return [self._parameters[parameter.name] for parameter, _ in prepared]

    def _prepare(
        self, namespace: str, index: int, entry: tuple[Any, ...], ignore_override: bool
    ) -> tuple[Parameter, Any]:
        position = f"at index {index} in parameters list"
        if not 1 <= len(entry) <= 3:
            raise TypeError(f"Invalid parameter tuple length {position}: {entry}; expecting length between 1 and 3")
        name: Any = entry[0]
        value: Any = entry[1] if len(entry) > 1 else None
        descriptor: Any = entry[2] if len(entry) > 2 else _descriptor()
        if not isinstance(name, str):
            raise TypeError(f"First element {name} {position} is not a str.")
        name = f"{namespace}.{name}" if namespace else name
        if not name:
            raise errors.InvalidParameterException(name)
        if not isinstance(descriptor, message_class("rcl_interfaces/msg/ParameterDescriptor")):
            raise TypeError(f"Third element {descriptor} {position} is not a ParameterDescriptor.")
        if len(entry) == 1:
            warnings.warn(
                f"when declaring parameter named '{name}', declaring a parameter only providing its name is "
                "deprecated; give a default value, a type, or a descriptor with dynamic_typing=True",
                stacklevel=4,
            )
            descriptor.dynamic_typing = True
        if isinstance(value, ParameterTypes):
            if value is ParameterTypes.NOT_SET:
                raise ValueError(f"Cannot declare parameter {{{name}}} as statically typed of type NOT_SET")
            if descriptor.dynamic_typing:
                raise ValueError(
                    f"When declaring parameter {{{name}}} passing a descriptor with `dynamic_typing=True` is not "
                    "allowed when the parameter type is provided"
                )
            descriptor.type, value = value.value, None
        elif not descriptor.dynamic_typing:
            is_message = isinstance(value, message_class("rcl_interfaces/msg/ParameterValue"))
            descriptor.type = value.type if is_message else ParameterTypes.from_parameter_value(value).value
            if descriptor.type == ParameterTypes.NOT_SET.value:
                raise ValueError(
                    "Cannot declare a statically typed parameter with default value of type PARAMETER_NOT_SET: "
                    f"{name}; give a value or a type, or set dynamic_typing"
                )
        if not ignore_override and name in self._parameter_overrides:
            value = self._parameter_overrides[name].value
        return Parameter(name, value=value), descriptor

    def undeclare_parameter(self, name: str) -> None:
        """Undeclare a parameter.

        Raises:
            ParameterNotDeclaredException, ParameterImmutableException: each names it.
        """
        with self._parameter_lock:
            if name not in self._parameters:
                raise errors.ParameterNotDeclaredException(name)
            if self._descriptors[name].read_only:
                raise errors.ParameterImmutableException(name)
            del self._parameters[name], self._descriptors[name]

    # ------------------------------------------------------------------------------------------------------- getting

    def has_parameter(self, name: str) -> bool:
        """Return whether a parameter is declared."""
        return name in self._parameters

    def get_parameter(self, name: str) -> Parameter:
        """Return a parameter.

        Raises:
            ParameterNotDeclaredException, ParameterUninitializedException: each names it.
        """
        with self._parameter_lock:
            parameter = self._parameters.get(name)
            if parameter is None:
                if self._allow_undeclared_parameters:
                    return Parameter(name)
                raise errors.ParameterNotDeclaredException(name)
            if parameter.type_ is ParameterTypes.NOT_SET and not self._descriptors[name].dynamic_typing:
                raise errors.ParameterUninitializedException(name)
            return parameter

    def get_parameters(self, names: Sequence[str]) -> list[Parameter]:
        """Return several parameters."""
        _check_names(names)
        return [self.get_parameter(name) for name in names]

    def get_parameter_or(self, name: str, alternative_value: Parameter | None = None) -> Parameter:
        """Return a parameter, or the alternative if it is not declared or has no value."""
        alternative = Parameter(name) if alternative_value is None else alternative_value
        found = self._parameters.get(name, alternative)
        return alternative if found.type_ is ParameterTypes.NOT_SET else found

    def get_parameters_by_prefix(self, prefix: str) -> dict[str, Parameter]:
        """Return the parameters below a prefix, by the remainder of their names."""
        prefix = f"{prefix}{SEPARATOR}" if prefix else ""
        with self._parameter_lock:
            found = self._parameters.items()
            return {name[len(prefix) :]: parameter for name, parameter in found if name.startswith(prefix)}

    def get_parameter_type(self, name: str) -> Any:
        """Return the number of a parameter's type; NOT_SET for an undeclared one, if undeclared parameters are allowed.

        Raises:
            ParameterNotDeclaredException: names it.
        """
        if name in self._parameters:
            return self._parameters[name].type_.value
        if self._allow_undeclared_parameters:
            return ParameterTypes.NOT_SET
        raise errors.ParameterNotDeclaredException(name)

    def get_parameter_types(self, names: Sequence[str]) -> list[Any]:
        """Return several parameters' types."""
        _check_names(names)
        return [self.get_parameter_type(name) for name in names]

    def describe_parameter(self, name: str) -> Any:
        """Return a parameter's descriptor."""
        with self._parameter_lock:
            if name in self._descriptors:
                return self._descriptors[name]
            if self._allow_undeclared_parameters:
                return _descriptor()
            raise errors.ParameterNotDeclaredException(name)

    def describe_parameters(self, names: Sequence[str]) -> list[Any]:
        """Return several parameters' descriptors."""
        return [self.describe_parameter(name) for name in names]

    def list_parameters(self, prefixes: Sequence[str], depth: int) -> Any:
        """Return a rcl_interfaces/ListParametersResult: the names below the prefixes, at most `depth` levels deep (0:
        all).

        Raises:
            TypeError, ValueError: for prefixes that are not a list of strings, or an invalid depth.
        """
        if not isinstance(prefixes, list):
            raise TypeError("The prefixes argument must be a list")
        if not all(isinstance(prefix, str) for prefix in prefixes):
            raise TypeError("All prefixes must be instances of type str")
        if not isinstance(depth, int):
            raise TypeError("The depth must be instance of type int")
        if depth < 0:
            raise ValueError("The depth must be greater than or equal to zero")
        result: Any = message_class("rcl_interfaces/msg/ListParametersResult")()
        with self._parameter_lock:
            for name in self._parameters:
                if not _listed(name, prefixes, depth):
                    continue
                result.names.append(name)
                prefix = name.rpartition(SEPARATOR)[0]
                if prefix and prefix not in result.prefixes:
                    result.prefixes.append(prefix)
        return result

    # ------------------------------------------------------------------------------------------------------- setting

    def set_parameters(self, parameter_list: Sequence[Parameter]) -> list[Any]:
        """Set parameters one by one; return a rcl_interfaces/SetParametersResult for each."""
        return [self.set_parameters_atomically([parameter]) for parameter in parameter_list]

    def set_parameters_atomically(self, parameter_list: Sequence[Parameter]) -> Any:
        """Set all of the parameters, or none; return a rcl_interfaces/SetParametersResult.

        Raises:
            ParameterNotDeclaredException: names the undeclared ones.
        """
        wanted = list(parameter_list)
        with self._parameter_lock:
            if self._pre_set_parameters_callbacks:
                wanted = [
                    parameter for callback in self._pre_set_parameters_callbacks for parameter in callback(wanted)
                ]
                if not wanted:
                    return _result(
                        "parameter list cannot be empty, this might be due to pre_set_parameters_callback modifying "
                        "the original parameters list."
                    )
            self._check_declared(wanted)
            return self._set(wanted, None)

    def _check_declared(self, wanted: Sequence[Parameter]) -> None:
        if not all(isinstance(parameter, Parameter) for parameter in wanted):
            raise TypeError(f"parameter must be instance of type {Parameter!r}, not {wanted!r:.80}")
        unknown = [parameter.name for parameter in wanted if parameter.name not in self._parameters]
        if unknown and not self._allow_undeclared_parameters:
            raise errors.ParameterNotDeclaredException(unknown)

    def _set(self, wanted: list[Parameter], descriptors: dict[str, Any] | None) -> Any:
        """Check, call the callbacks, and set; a declaration has `descriptors` and ignores read-only."""
        declaring = descriptors is not None
        known = self._descriptors if descriptors is None else descriptors
        for parameter in wanted:
            if parameter.name in known:
                descriptor = known[parameter.name]
                descriptor.name = parameter.name
                declared = self.has_parameter(parameter.name)
                reason = parameters.refusal(parameter, descriptor, declared=declared, check_read_only=not declaring)
                if reason:
                    return _result(reason)
        for callback in self._on_set_parameters_callbacks:
            result: Any = callback(wanted)
            if not isinstance(result, message_class("rcl_interfaces/msg/SetParametersResult")):
                raise TypeError(f"an on_set_parameters callback must return a SetParametersResult, not {result!r:.80}")
            if not result.successful:
                return result
        self._parameter_events.publish(self._store(wanted, descriptors))
        for callback in self._post_set_parameters_callbacks:
            callback(wanted)
        return _result()

    def _store(self, wanted: list[Parameter], descriptors: dict[str, Any] | None) -> Any:
        stamp = self._parameter_clock.now().to_msg()
        event: Any = message_class("rcl_interfaces/msg/ParameterEvent")(stamp=stamp, node=self._parameter_node_name)
        for parameter in wanted:
            name, message = parameter.name, parameter.to_parameter_msg()
            if descriptors is None and parameter.type_ is ParameterTypes.NOT_SET:
                event.deleted_parameters.append(message)
                self._parameters.pop(name, None)
                self._descriptors.pop(name, None)
                continue
            if descriptors is not None:
                self._descriptors[name] = descriptors[name]
            elif name not in self._descriptors:
                self._descriptors[name] = _descriptor()
                self._descriptors[name].dynamic_typing = True
            is_new = self.get_parameter_or(name).type_ is ParameterTypes.NOT_SET
            (event.new_parameters if is_new else event.changed_parameters).append(message)
            self._parameters[name] = parameter
        return event

    # ----------------------------------------------------------------------------------------------------- callbacks

    def add_pre_set_parameters_callback(self, callback: ChangeCallback) -> None:
        """Add a `callback(parameters)` that returns the parameters to set instead."""
        self._pre_set_parameters_callbacks.insert(0, callback)

    def add_on_set_parameters_callback(self, callback: ChangeCallback) -> None:
        """Add a `callback(parameters)` that accepts or rejects a change; it returns a SetParametersResult."""
        self._on_set_parameters_callbacks.insert(0, callback)

    def add_post_set_parameters_callback(self, callback: ChangeCallback) -> None:
        """Call `callback(parameters)` after a change."""
        self._post_set_parameters_callbacks.insert(0, callback)

    def remove_pre_set_parameters_callback(self, callback: ChangeCallback) -> None:
        """Remove a callback."""
        self._pre_set_parameters_callbacks.remove(callback)

    def remove_on_set_parameters_callback(self, callback: ChangeCallback) -> None:
        """Remove a callback."""
        self._on_set_parameters_callbacks.remove(callback)

    def remove_post_set_parameters_callback(self, callback: ChangeCallback) -> None:
        """Remove a callback."""
        self._post_set_parameters_callbacks.remove(callback)


def _check_names(names: Sequence[str]) -> None:
    if not all(isinstance(name, str) for name in names):
        raise TypeError("All names must be instances of type str")


def _listed(name: str, prefixes: Sequence[str], depth: int) -> bool:
    if not prefixes:
        return not depth or name.count(SEPARATOR) < depth
    for prefix in prefixes:
        if name == prefix:
            return True
        if name.startswith(f"{prefix}{SEPARATOR}"):
            rest = name[len(prefix) + 1 :]
            if not depth or rest.count(SEPARATOR) < depth:
                return True
    return False
