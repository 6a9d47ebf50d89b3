"""Configures the ROS 2 middleware to receive raw images, unless the user has configured it.

With their default settings, neither Cyclone DDS nor Fast DDS transports raw images reliably between processes
(docs/cameras.md has the figures). Both read their settings from environment variables when rclpy is initialized, so
:func:`configure` sets these variables in this process beforehand.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from rclpy.utilities import get_rmw_implementation_identifier

from multi_dnn_ros.common.resources import config_file

CYCLONE, FAST = "rmw_cyclonedds_cpp", "rmw_fastrtps_cpp"
_FAST_VARIABLES = ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE")
#: Variables by which a user may have configured Fast DDS.
_FAST_USER_VARIABLES = (*_FAST_VARIABLES, "FASTDDS_BUILTIN_TRANSPORTS")
#: Files that Fast DDS reads from the working directory.
_FAST_USER_FILES = ("DEFAULT_FASTRTPS_PROFILES.xml", "DEFAULT_FASTDDS_PROFILES.xml")
#: Smallest net.core.rmem_max with which Fast DDS is configured to receive images by UDP; an image of 1280x720 bgr8
#: needs 1.6 MB (docs/cameras.md).
FAST_UDP_MIN_BYTES = 2_000_000
#: Free space in /dev/shm that the segment of our files needs (measured: 70,258,688 bytes). Docker gives a container
#: 64 MB by default.
_MIN_FREE_SHM_BYTES = 72_000_000
_SHARED_MEMORY = Path("/dev/shm")
_RMEM_MAX = Path("/proc/sys/net/core/rmem_max")
_MAPS = Path("/proc/self/maps")


@dataclass(frozen=True)
class Middleware:
    """The result of :func:`configure`. name: RMW implementation. text: one line for the log.

    package_file: the settings file, if it is one of this package; None: settings of the user or defaults.
    """

    name: str
    text: str
    package_file: Path | None = None


def rmem_max_bytes() -> int | None:
    """net.core.rmem_max: the largest receive buffer that the kernel grants a socket; None: unknown."""
    try:
        return int(_RMEM_MAX.read_text())
    except (OSError, ValueError):
        return None


def limit_text(limit: int | None) -> str:
    """The result of rmem_max_bytes(), for messages."""
    return "unknown" if limit is None else str(limit)


def _free_shared_memory_bytes() -> int:
    try:
        return shutil.disk_usage(_SHARED_MEMORY).free
    except OSError:
        return 0


def detect() -> Middleware:
    """The middleware of a process in which :func:`configure` was not called."""
    name = str(get_rmw_implementation_identifier())
    return Middleware(name, f"middleware: {name}")


def configure(environment: MutableMapping[str, str] = os.environ, folder: Path | None = None) -> Middleware:
    """Set the environment variables of the middleware in use, unless the user has set them; call before ``rclpy.init``.

    folder: where Fast DDS looks for a settings file of the user; None: the working directory.
    """
    name = str(get_rmw_implementation_identifier())
    if name == CYCLONE:
        return _configure_cyclone(name, environment)
    if name.startswith("rmw_fastrtps"):
        return _configure_fast(name, environment, folder or Path.cwd())
    return Middleware(name, f"middleware: {name}; this package does not change its settings")


def _configure_cyclone(name: str, environment: MutableMapping[str, str]) -> Middleware:
    uri = environment.get("CYCLONEDDS_URI")
    if uri:
        return Middleware(name, f"middleware: {name} with your CYCLONEDDS_URI={uri[:200]}")
    file = config_file("cyclonedds.xml")
    environment["CYCLONEDDS_URI"] = f"file://{file}"
    return Middleware(name, f"middleware: {name} with {file}, because CYCLONEDDS_URI is not set", file)


def _configure_fast(name: str, environment: MutableMapping[str, str], folder: Path) -> Middleware:
    for variable in _FAST_USER_VARIABLES:
        if environment.get(variable):
            return Middleware(name, f"middleware: {name} with your {variable}={environment[variable][:200]}")
    for user_file in _FAST_USER_FILES:
        if (folder / user_file).is_file():
            return Middleware(name, f"middleware: {name} with your {folder / user_file}")
    if not _is_fast_dds_2():
        return Middleware(name, f"middleware: {name} with Fast DDS 3; this package does not change its settings")
    limit = rmem_max_bytes()
    rmem_max = limit or 0
    free = _free_shared_memory_bytes()
    if rmem_max < FAST_UDP_MIN_BYTES and free < _MIN_FREE_SHM_BYTES:
        return Middleware(
            name,
            f"middleware: {name} with its defaults: {_SHARED_MEMORY} has {free} bytes free, and a segment for images "
            f"needs {_MIN_FREE_SHM_BYTES} (Docker: --shm-size=1g or --ipc=host)",
        )
    file = config_file("fastdds_udp.xml" if rmem_max >= FAST_UDP_MIN_BYTES else "fastdds_shared_memory.xml")
    environment[_FAST_VARIABLES[0]] = str(file)
    return Middleware(
        name,
        f"middleware: {name} with {file}, because {_FAST_VARIABLES[0]} and {_FAST_USER_VARIABLES[-1]} are not set; "
        f"net.core.rmem_max is {limit_text(limit)}",
        file,
    )


def _is_fast_dds_2() -> bool:
    """Whether the loaded library is Fast DDS 2 (libfastrtps, Humble to Jazzy). The files of Fast DDS 3 differ."""
    return "/libfastrtps.so" in _MAPS.read_text()
