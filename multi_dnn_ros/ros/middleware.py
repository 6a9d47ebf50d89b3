"""Settings of the middleware for raw images, made unless the user has made his own; the kernel's limit for them.

With its default settings, Cyclone DDS loses most raw images, and Fast DDS those of a best-effort camera
(docs/cameras.md has the figures). Both read their settings from environment variables when rclpy is initialized.
"""

from __future__ import annotations

import math
import os
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

from rclpy.utilities import get_rmw_implementation_identifier

from multi_dnn_ros.common.resources import config_file

#: Names of the variable with the settings file in Fast DDS 2 (up to Jazzy) and 3.
_FAST_FILE_VARIABLES = ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE")
#: Variables by which a user may have configured the middleware.
_USER_VARIABLES = {
    "rmw_cyclonedds_cpp": ("CYCLONEDDS_URI",),
    "rmw_fastrtps_cpp": (*_FAST_FILE_VARIABLES, "FASTDDS_BUILTIN_TRANSPORTS"),
}
#: Smallest net.core.rmem_max with which Fast DDS receives images by UDP and not through shared memory.
_UDP_MIN_BYTES = 2_000_000
_RMEM_MAX = Path("/proc/sys/net/core/rmem_max")
#: Payload that fits a receive buffer, as a share of its size as the kernel counts it, twice the granted one (measured).
_PAYLOAD_SHARE = 0.88
#: Smallest net.core.rmem_max that is recommended.
_MIN_RECOMMENDED = 10_485_760


def configure(environment: MutableMapping[str, str] = os.environ) -> str:
    """Set the environment variables of the middleware in use, unless the user has; to be called before `rclpy.init`.

    Returns one line for the log.
    """
    name = str(get_rmw_implementation_identifier())
    for variable in _USER_VARIABLES.get(name, ()):
        if environment.get(variable):
            return f"middleware: {name} with your {variable}={environment[variable][:200]}"
    made: dict[str, str] = {}
    if name == "rmw_cyclonedds_cpp":
        made = {"CYCLONEDDS_URI": f"file://{config_file('cyclonedds.xml')}"}
    elif name == "rmw_fastrtps_cpp" and (rmem_max_bytes() or 0) >= _UDP_MIN_BYTES:
        made = dict.fromkeys(_FAST_FILE_VARIABLES, str(config_file("fastdds_udp.xml")))
    environment.update(made)
    return f"middleware: {name} with {next(iter(made.values()), 'its own settings')}"


def rmem_max_bytes() -> int | None:
    """net.core.rmem_max: the largest receive buffer that the kernel grants a socket; None: unknown."""
    with suppress(OSError, ValueError):
        return int(_RMEM_MAX.read_text())
    return None


def remedy_for_size(image_bytes: int, alternative: str, limit: int | None) -> str:
    """What to do about raw images, each of which arrives as one burst, if the receive buffer of a socket is too small;
    otherwise empty. image_bytes: of one. alternative: a remedy without root. limit: rmem_max; None: unknown.
    """
    needed = math.ceil(image_bytes / _PAYLOAD_SHARE / 2)
    if limit is None or limit >= needed:
        return ""
    recommended = max(_MIN_RECOMMENDED, math.ceil(2 * needed / 2**20) * 2**20)
    return (
        f"net.core.rmem_max is {limit}, and an image of {image_bytes} bytes needs {needed}: as root, `sysctl -w "
        f"net.core.rmem_max={recommended}` and restart; or {alternative}; see docs/cameras.md"
    )
