"""Quality of service: rclpy's profiles and policies, and their translation to DDS.

The translation is rmw_cyclonedds's: plain CDR only, automatic dispose off, and for a transient-local writer a
durability service with the depth of its history.
"""

from __future__ import annotations

import warnings
from enum import Enum, EnumMeta, IntEnum
from typing import Any, Final

from cyclonedds.core import Policy, Qos

from multi_dnn_ros.standalone.missing import Surface, UnsupportedError, missing
from multi_dnn_ros.standalone.time_values import Duration

# Maximum time that a writer blocks on a slow reader. Every writer here keeps the last N samples only, so it never
# blocks on its history; this bounds the wait for the transmit window. rmw waits indefinitely, which would hold the GIL
# here.
_MAX_BLOCKING_NS: Final = 100_000_000
_DEFAULT_DEPTH: Final = 10


class InvalidQoSProfileException(Exception):
    """A profile is incomplete."""

    def __init__(self, *reasons: str) -> None:
        super().__init__("Invalid QoSProfile", *reasons)


class _QoSPolicyEnum(IntEnum):
    @classmethod
    def short_keys(cls) -> list[str]:
        """Return the policy's values in command line notation."""
        return [member.name.lower() for member in cls]

    @classmethod
    def get_from_short_key(cls, name: str) -> int:
        """Return the value of a short key."""
        return cls[name.upper()].value

    @property
    def short_key(self) -> str:
        """Return the value in command line notation."""
        return self.name.lower()


class HistoryPolicy(_QoSPolicyEnum):
    """Which samples an endpoint keeps."""

    SYSTEM_DEFAULT = 0
    KEEP_LAST = 1
    KEEP_ALL = 2
    UNKNOWN = 3


class ReliabilityPolicy(_QoSPolicyEnum):
    """Whether lost samples are retransmitted."""

    SYSTEM_DEFAULT = 0
    RELIABLE = 1
    BEST_EFFORT = 2
    UNKNOWN = 3
    BEST_AVAILABLE = 4


class DurabilityPolicy(_QoSPolicyEnum):
    """Whether late readers get earlier samples."""

    SYSTEM_DEFAULT = 0
    TRANSIENT_LOCAL = 1
    VOLATILE = 2
    UNKNOWN = 3
    BEST_AVAILABLE = 4


class LivelinessPolicy(_QoSPolicyEnum):
    """How a writer asserts its liveliness."""

    SYSTEM_DEFAULT = 0
    AUTOMATIC = 1
    MANUAL_BY_TOPIC = 3
    UNKNOWN = 4
    BEST_AVAILABLE = 5


# rclpy's longer, older names.
QoSHistoryPolicy = HistoryPolicy
QoSReliabilityPolicy = ReliabilityPolicy
QoSDurabilityPolicy = DurabilityPolicy
QoSLivelinessPolicy = LivelinessPolicy


class QoSProfile(Surface):
    """A set of policies, each checked when set.

    KEEP_ALL is rejected when creating a publisher or subscription: a stopped reader would block all threads of the
    process.
    """

    __slots__ = (
        "avoid_ros_namespace_conventions",
        "deadline",
        "depth",
        "durability",
        "history",
        "lifespan",
        "liveliness",
        "liveliness_lease_duration",
        "reliability",
    )

    def __init__(self, **policies: Any) -> None:
        """Set policies by name; defaults are those of a reliable, volatile endpoint of depth 10.

        Raises:
            InvalidQoSProfileException: if neither history nor depth is given, or KEEP_LAST without a depth.
            AssertionError: for an unknown policy, or a value of a wrong type.
        """
        unknown = ", ".join(sorted(policies.keys() - set(self.__slots__)))
        if unknown:
            raise AssertionError(f"Invalid arguments passed to constructor: {unknown}")
        if "history" not in policies:
            if "depth" not in policies:
                raise InvalidQoSProfileException("History and/or depth settings are required.")
            policies["history"] = HistoryPolicy.KEEP_LAST
        if policies["history"] == HistoryPolicy.KEEP_LAST and "depth" not in policies:
            raise InvalidQoSProfileException("History set to KEEP_LAST without a depth setting.")
        self.history = policies["history"]
        self.depth = policies.get("depth", _DEFAULT_DEPTH)
        self.reliability = policies.get("reliability", ReliabilityPolicy.RELIABLE)
        self.durability = policies.get("durability", DurabilityPolicy.VOLATILE)
        self.lifespan = policies.get("lifespan", Duration())
        self.deadline = policies.get("deadline", Duration())
        self.liveliness = policies.get("liveliness", LivelinessPolicy.SYSTEM_DEFAULT)
        self.liveliness_lease_duration = policies.get("liveliness_lease_duration", Duration())
        self.avoid_ros_namespace_conventions = policies.get("avoid_ros_namespace_conventions", False)

    def __setattr__(self, name: str, value: Any) -> None:
        kind = _POLICIES.get(name)
        if kind is None:
            raise AttributeError(f"'QoSProfile' object has no attribute {name!r}", name=name, obj=self)
        is_policy = issubclass(kind, _QoSPolicyEnum)
        if not isinstance(value, int if is_policy else kind):
            raise AssertionError(f"{name} must be a {kind.__name__}, not {value!r}")
        if name == "depth" and value == 0 and self.history == HistoryPolicy.KEEP_LAST:
            warnings.warn(
                "A zero depth with KEEP_LAST doesn't make sense; no data could be stored. "
                "This will be interpreted as SYSTEM_DEFAULT",
                stacklevel=2,
            )
        super().__setattr__(name, kind(value) if is_policy else value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QoSProfile):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(
            f"{name}={value.name if isinstance(value, Enum) else value}"
            for name, value in ((name, getattr(self, name)) for name in self.__slots__)
        )
        return f"QoSProfile({values})"


_POLICIES: Final[dict[str, type[Any]]] = {
    "history": HistoryPolicy,
    "depth": int,
    "reliability": ReliabilityPolicy,
    "durability": DurabilityPolicy,
    "lifespan": Duration,
    "deadline": Duration,
    "liveliness": LivelinessPolicy,
    "liveliness_lease_duration": Duration,
    "avoid_ros_namespace_conventions": bool,
}


def to_profile(qos: QoSProfile | int) -> QoSProfile:
    """Return the profile for an argument of `create_publisher`, a profile or the depth of a default profile."""
    if isinstance(qos, QoSProfile):
        return qos
    if not isinstance(qos, int):
        raise TypeError(f"Expected QoSProfile or int, but received {type(qos)!r}")
    if qos < 0:
        raise ValueError("history depth must be greater than or equal to zero")
    return QoSProfile(depth=qos)


qos_profile_default: Final = QoSProfile(depth=_DEFAULT_DEPTH)
qos_profile_system_default: Final = QoSProfile(
    history=HistoryPolicy.SYSTEM_DEFAULT,
    depth=0,
    reliability=ReliabilityPolicy.SYSTEM_DEFAULT,
    durability=DurabilityPolicy.SYSTEM_DEFAULT,
)
qos_profile_sensor_data: Final = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
qos_profile_services_default: Final = QoSProfile(depth=_DEFAULT_DEPTH)
qos_profile_parameters: Final = QoSProfile(depth=1000)
qos_profile_parameter_events: Final = QoSProfile(depth=1000)
qos_profile_rosout_default: Final = QoSProfile(
    depth=1000, durability=DurabilityPolicy.TRANSIENT_LOCAL, lifespan=Duration(seconds=10)
)
qos_profile_clock: Final = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)


class _PresetsMeta(EnumMeta):
    """Metaclass: accessing a missing preset raises an explicit error."""

    def __getattr__(cls, name: str) -> Any:
        members = cls.__dict__.get("_member_map_", {})
        if name in members:  # Python 3.10 looks them up here
            return members[name]
        if name.startswith("_"):
            raise AttributeError(name, name=name, obj=cls)
        raise AttributeError(missing(f"{cls.__name__}.{name}"), name=name, obj=cls)


class QoSPresetProfiles(Enum, metaclass=_PresetsMeta):
    """The named profiles of rclpy; `QoSPresetProfiles.SENSOR_DATA.value` is the profile."""

    SYSTEM_DEFAULT = qos_profile_system_default
    DEFAULT = qos_profile_default
    SENSOR_DATA = qos_profile_sensor_data
    SERVICES_DEFAULT = qos_profile_services_default
    PARAMETERS = qos_profile_parameters
    PARAMETER_EVENTS = qos_profile_parameter_events

    @classmethod
    def short_keys(cls) -> list[str]:
        """Return the presets in command line notation."""
        return [member.name.lower() for member in cls]

    @classmethod
    def get_from_short_key(cls, name: str) -> QoSProfile:
        """Return the profile of a short key."""
        return cls[name.upper()].value


def to_dds(profile: QoSProfile, user_data: bytes) -> Qos:
    """Return the DDS policies of a profile, as chosen by rmw_cyclonedds.

    Raises:
        UnsupportedError: for a best-available or unknown policy, and for KEEP_ALL.
        ValueError: for a depth out of range.
    """
    if profile.history == HistoryPolicy.KEEP_ALL:
        raise UnsupportedError(
            f"{missing('endpoints with history KEEP_ALL')}: one reader that stops taking would block its writers, and "
            "with them every Python thread; use KEEP_LAST with a depth"
        )
    if not 0 <= profile.depth <= 2**31 - 1:
        raise ValueError(f"QoS depth must be between 0 and {2**31 - 1}, not {profile.depth}")
    for policy in (profile.reliability, profile.durability, profile.liveliness, profile.history):
        if policy.name in ("UNKNOWN", "BEST_AVAILABLE"):
            raise UnsupportedError(missing(f"{type(policy).__name__}.{policy.name}"))
    depth = max(profile.depth, 1)
    history = Policy.History.KeepLast(depth)
    policies: list[Any] = [
        Policy.WriterDataLifecycle(autodispose=False),
        Policy.DataRepresentation(use_cdrv0_representation=True),
        Policy.Userdata(user_data),
        history,
        Policy.Reliability.BestEffort
        if profile.reliability == ReliabilityPolicy.BEST_EFFORT
        else Policy.Reliability.Reliable(_MAX_BLOCKING_NS),
    ]
    if profile.durability == DurabilityPolicy.TRANSIENT_LOCAL:
        policies += [
            Policy.Durability.TransientLocal,
            Policy.DurabilityService(
                cleanup_delay=0, history=history, max_samples=-1, max_instances=-1, max_samples_per_instance=-1
            ),
        ]
    else:
        policies.append(Policy.Durability.Volatile)
    if profile.lifespan.nanoseconds:
        policies.append(Policy.Lifespan(profile.lifespan.nanoseconds))
    if profile.deadline.nanoseconds:
        policies.append(Policy.Deadline(profile.deadline.nanoseconds))
    lease = profile.liveliness_lease_duration.nanoseconds
    if profile.liveliness == LivelinessPolicy.MANUAL_BY_TOPIC:
        policies.append(Policy.Liveliness.ManualByTopic(lease or 2**63 - 1))
    elif lease:
        policies.append(Policy.Liveliness.Automatic(lease))
    return Qos(*policies)
