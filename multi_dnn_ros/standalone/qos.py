"""Quality of service: rclpy's profiles and policies, and what they are in DDS.

The translation is rmw_cyclonedds': plain CDR only, automatic dispose off, and for a transient-local writer a durability
service that keeps as many samples as its history.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any, Final

from cyclonedds.core import Policy, Qos

from multi_dnn_ros.standalone.clock import Duration
from multi_dnn_ros.standalone.missing import UnsupportedError, missing

# How long a writer may block when a reader does not keep up. Every writer here keeps the last N samples only, so it
# does not block on its history; this bounds the wait on the transmit window. rmw waits for ever, holding the GIL here.
_MAX_BLOCKING_NS: Final = 100_000_000
_DEFAULT_DEPTH: Final = 10


class InvalidQoSProfileException(Exception):
    """A profile that says too little."""

    def __init__(self, *reasons: str) -> None:
        super().__init__("Invalid QoSProfile", *reasons)


class _QoSPolicyEnum(IntEnum):
    @classmethod
    def short_keys(cls) -> list[str]:
        """Return the policy's values as the command line writes them."""
        return [member.name.lower() for member in cls]

    @classmethod
    def get_from_short_key(cls, name: str) -> int:
        """Return the value that a short key stands for."""
        return cls[name.upper()].value

    @property
    def short_key(self) -> str:
        """Return the value as the command line writes it."""
        return self.name.lower()


class HistoryPolicy(_QoSPolicyEnum):
    """How many samples an endpoint keeps."""

    SYSTEM_DEFAULT = 0
    KEEP_LAST = 1
    KEEP_ALL = 2
    UNKNOWN = 3


class ReliabilityPolicy(_QoSPolicyEnum):
    """Whether lost samples are sent again."""

    SYSTEM_DEFAULT = 0
    RELIABLE = 1
    BEST_EFFORT = 2
    UNKNOWN = 3
    BEST_AVAILABLE = 4


class DurabilityPolicy(_QoSPolicyEnum):
    """Whether a late reader gets earlier samples."""

    SYSTEM_DEFAULT = 0
    TRANSIENT_LOCAL = 1
    VOLATILE = 2
    UNKNOWN = 3
    BEST_AVAILABLE = 4


class LivelinessPolicy(_QoSPolicyEnum):
    """How a writer shows that it lives."""

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


class QoSProfile:
    """A set of policies. KEEP_ALL is refused: a stopped reader would then freeze every thread of the process."""

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

    def __init__(
        self,
        *,
        history: HistoryPolicy | None = None,
        depth: int | None = None,
        reliability: ReliabilityPolicy = ReliabilityPolicy.RELIABLE,
        durability: DurabilityPolicy = DurabilityPolicy.VOLATILE,
        lifespan: Duration | None = None,
        deadline: Duration | None = None,
        liveliness: LivelinessPolicy = LivelinessPolicy.SYSTEM_DEFAULT,
        liveliness_lease_duration: Duration | None = None,
        avoid_ros_namespace_conventions: bool = False,
    ) -> None:
        if history is None:
            if depth is None:
                raise InvalidQoSProfileException("History and/or depth settings are required.")
            history = HistoryPolicy.KEEP_LAST
        elif history == HistoryPolicy.KEEP_LAST and depth is None:
            raise InvalidQoSProfileException("History set to KEEP_LAST without a depth setting.")
        self.history = HistoryPolicy(history)
        self.depth = depth or 0
        self.reliability = ReliabilityPolicy(reliability)
        self.durability = DurabilityPolicy(durability)
        self.lifespan = lifespan or Duration()
        self.deadline = deadline or Duration()
        self.liveliness = LivelinessPolicy(liveliness)
        self.liveliness_lease_duration = liveliness_lease_duration or Duration()
        self.avoid_ros_namespace_conventions = avoid_ros_namespace_conventions
        if self.history == HistoryPolicy.KEEP_ALL:
            raise UnsupportedError(
                "the standalone runtime keeps the last N samples only (history KEEP_LAST): with KEEP_ALL one reader "
                "that stops taking blocks its writers, and with them every Python thread; give a depth"
            )
        if not 0 <= self.depth <= 2**31 - 1:
            raise ValueError(f"QoS depth must be between 0 and {2**31 - 1}, not {self.depth}")

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


def profile_of(qos: QoSProfile | int) -> QoSProfile:
    """Return the profile that an argument of `create_publisher` stands for: itself, or the default with that depth."""
    if isinstance(qos, QoSProfile):
        return qos
    if isinstance(qos, bool) or not isinstance(qos, int):
        raise TypeError(f"qos_profile must be a QoSProfile or an integer depth, not {qos!r}")
    if qos < 0:
        raise ValueError(f"QoS history depth must be at least 0, not {qos}")
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


class QoSPresetProfiles(Enum):
    """The named profiles of rclpy; `QoSPresetProfiles.SENSOR_DATA.value` is the profile."""

    SYSTEM_DEFAULT = qos_profile_system_default
    DEFAULT = qos_profile_default
    SENSOR_DATA = qos_profile_sensor_data
    SERVICES_DEFAULT = qos_profile_services_default
    PARAMETERS = qos_profile_parameters
    PARAMETER_EVENTS = qos_profile_parameter_events

    @classmethod
    def short_keys(cls) -> list[str]:
        """Return the presets as the command line writes them."""
        return [member.name.lower() for member in cls]

    @classmethod
    def get_from_short_key(cls, name: str) -> QoSProfile:
        """Return the profile that a short key stands for."""
        return cls[name.upper()].value


def to_dds(profile: QoSProfile, user_data: bytes) -> Qos:
    """Return the DDS policies of a profile, as rmw_cyclonedds chooses them.

    Raises:
        UnsupportedError: for a policy that asks for the best available, or is unknown.
    """
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
