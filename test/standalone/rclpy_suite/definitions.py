"""The interfaces of test_msgs (ROS 2 Jazzy), which rclpy's tests send: registered for a run, not shipped.

WStrings and the action are left out, because the standalone runtime has no wide strings and no actions.
"""

from __future__ import annotations

from typing import Any, Final

from multi_dnn_ros.standalone import definitions

_INTEGERS: Final = tuple(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u"))
_NUMBERS: Final = ("bool", "byte", "char", "float32", "float64", *_INTEGERS)
_MESSAGES: Final = ("BasicTypes", "Constants", "Defaults")
_ARRAY_DEFAULTS: Final[dict[str, tuple[Any, ...]]] = {
    "bool": (False, True, False),
    "byte": (b"\x00", b"\x01", b"\xff"),
    "char": (0, 1, 127),
    "float32": (1.125, 0.0, -1.125),
    "float64": (3.1415, 0.0, -3.1415),
    **{f"int{bits}": (0, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, 1, 2**bits - 1) for bits in (8, 16, 32, 64)},
    "string": ("", "max value", "min value"),
}
_VALUES: Final[dict[str, Any]] = {
    "bool": True,
    "byte": 50,
    "char": 100,
    "float32": 1.125,
    "float64": 1.125,
    "int8": -50,
    "uint8": 200,
    "int16": -1000,
    "uint16": 2000,
    "int32": -30000,
    "uint32": 60000,
    "int64": -40000000,
    "uint64": 50000000,
}
_TEXTS: Final = ("Hello world!", "Hello'world!", 'Hello"world!', "Hello'world!", 'Hello"world!')


def _several(brackets: str) -> str:
    kinds = (*_NUMBERS, "string", *(f"test_msgs/{name}" for name in _MESSAGES))
    names = (*_NUMBERS, "string", "basic_types", "constants", "defaults")
    lines = [f"{kind}{brackets} {name}_values" for kind, name in zip(kinds, names, strict=True)]
    lines += [f"{kind}{brackets} {kind}_values_default" for kind in _ELEMENT_KINDS]
    return "\n".join([*lines, "int32 alignment_check"])


_ELEMENT_KINDS: Final = (*_NUMBERS, "string")
_BASIC: Final = "\n".join(f"{kind} {kind}_value" for kind in _NUMBERS)
_NESTED: Final = (("Arrays", "arrays"), ("BoundedSequences", "bounded_sequences"))
_ALL_NESTED: Final = (*_NESTED, ("UnboundedSequences", "unbounded_sequences"))


def register() -> None:
    """Add test_msgs to the interfaces of the standalone runtime; must be called before a message is imported."""
    several = {"Arrays": "[3]", "BoundedSequences": "[<=3]", "UnboundedSequences": "[]"}
    strings = [f"string{bound} {prefix}string_value" for bound, prefix in (("", ""), ("<=22", "bounded_"))]
    for bound, prefix in (("", ""), ("<=22", "bounded_")):
        strings += [f"string{bound} {prefix}string_value_default{index}" for index in range(1, 6)]
    messages = {
        "BasicTypes": _BASIC,
        "Builtins": "builtin_interfaces/Duration duration_value\nbuiltin_interfaces/Time time_value",
        "Constants": "\n".join(f"{kind} {kind.upper()}_CONST={str(value).lower()}" for kind, value in _VALUES.items()),
        "Defaults": _BASIC,
        "Empty": "uint8 structure_needs_at_least_one_member",
        "Nested": "test_msgs/BasicTypes basic_types_value",
        "Strings": "\n".join(
            [strings[0], *strings[2:7], strings[1], *strings[7:], 'string STRING_CONST="Hello world!"']
        ),
        **{name: _several(brackets) for name, brackets in several.items()},
        "MultiNested": "\n".join(
            f"test_msgs/{name}{brackets} {prefix}_of_{field}"
            for brackets, prefix in (("[3]", "array"), ("[<=3]", "bounded_sequence"), ("[]", "unbounded_sequence"))
            for name, field in _ALL_NESTED
        ),
    }
    definitions.MESSAGES.update({f"test_msgs/msg/{name}": text for name, text in messages.items()})
    definitions.SERVICES["test_msgs/srv/BasicTypes"] = (f"{_BASIC}\nstring string_value",) * 2
    definitions.SERVICES["test_msgs/srv/Empty"] = ("", "")
    for name in several:
        for kind, values in _ARRAY_DEFAULTS.items():
            definitions.DEFAULTS[f"test_msgs/msg/{name}", f"{kind}_values_default"] = values
    for kind, value in _VALUES.items():
        default = bytes([value]) if kind == "byte" else value
        definitions.DEFAULTS["test_msgs/msg/Defaults", f"{kind}_value"] = default
    for prefix in ("", "bounded_"):
        for index, text in enumerate(_TEXTS, 1):
            definitions.DEFAULTS["test_msgs/msg/Strings", f"{prefix}string_value_default{index}"] = text


def fixture(name: str) -> list[Any]:
    """Return messages to send, as `test_msgs.message_fixtures.get_test_msg(name)` does: zeros, and the extremes."""
    import test_msgs.msg

    cls = getattr(test_msgs.msg, name)
    if name == "WStrings":
        return [cls]  # a placeholder for the missing class, which raises when used
    zeros = cls()
    extremes = cls()
    if name in ("BasicTypes", "Nested"):
        basic = extremes if name == "BasicTypes" else extremes.basic_types_value
        for kind in _NUMBERS:
            setattr(basic, f"{kind}_value", _ARRAY_DEFAULTS[kind][1 if kind == "bool" else 2])
    elif name == "Builtins":
        extremes.duration_value.sec, extremes.time_value.nanosec = -(2**31), 10**9 - 1
    elif name == "Strings":
        extremes.string_value, extremes.bounded_string_value = "a" * 20000, "b" * 22
    elif name in ("Arrays", "BoundedSequences", "UnboundedSequences"):
        for kind in _ELEMENT_KINDS:
            setattr(extremes, f"{kind}_values", list(_ARRAY_DEFAULTS[kind]))
        extremes.basic_types_values = [*fixture("BasicTypes"), test_msgs.msg.BasicTypes()]
        extremes.alignment_check = 4
    elif name == "MultiNested":
        for nested, field in _ALL_NESTED:
            values = [*fixture(nested), fixture(nested)[1]]
            setattr(extremes, f"array_of_{field}", values)
            setattr(extremes, f"bounded_sequence_of_{field}", values)
            setattr(extremes, f"unbounded_sequence_of_{field}", values)
    return [zeros, extremes]
