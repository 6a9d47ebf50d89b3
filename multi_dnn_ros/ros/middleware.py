"""Which middleware ROS 2 runs on, and settings with which raw images reach this process, where the user has set none.

At their defaults neither Cyclone DDS nor Fast DDS brings whole raw images from a camera's process into this one
(docs/cameras.md has the figures). Both read their settings from environment variables when rclpy is initialized, so
:func:`configure` sets those for this process alone, before that.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

import rclpy
from rclpy.utilities import get_rmw_implementation_identifier

from multi_dnn_ros.common.resources import config_file

CYCLONE, FAST = "rmw_cyclonedds_cpp", "rmw_fastrtps_cpp"
_FAST_VARIABLES = ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE")
#: What else of a user's Fast DDS configuration a profile of ours would work against.
_FAST_OWN = (*_FAST_VARIABLES, "FASTDDS_BUILTIN_TRANSPORTS")
#: Fast DDS reads these from the working directory by itself.
_FAST_FILES = ("DEFAULT_FASTRTPS_PROFILES.xml", "DEFAULT_FASTDDS_PROFILES.xml")
#: From this net.core.rmem_max on, images of 1280x720 fit a socket's receive buffer (measured, docs/cameras.md).
FAST_UDP_LEAST_BYTES = 2_000_000
#: What Fast DDS reserves in /dev/shm for the segment of our files (measured: 70,258,688 bytes). Docker gives 64 MB.
_SHARED_MEMORY_BYTES = 72_000_000
_SHARED_MEMORY = Path("/dev/shm")
_RMEM_MAX = Path("/proc/sys/net/core/rmem_max")
_MAPS = Path("/proc/self/maps")


@dataclass(frozen=True)
class Middleware:
    """What :func:`configure` found and did. name: RMW implementation; "" for the standalone runtime.

    text: one line for the log. ours: the file of ours that is in force; None: the user's own settings or defaults.
    """

    name: str
    text: str
    ours: Path | None = None


def is_standalone() -> bool:
    """Whether rclpy is this package's standalone runtime."""
    return getattr(rclpy.__spec__, "origin", "") == "multi_dnn_ros.standalone"


def rmem_max_bytes() -> int | None:
    """The largest receive buffer that the kernel grants a socket; None where it does not tell."""
    try:
        return int(_RMEM_MAX.read_text())
    except (OSError, ValueError):
        return None


def _free_shared_memory_bytes() -> int:
    try:
        return shutil.disk_usage(_SHARED_MEMORY).free
    except OSError:
        return 0


def found() -> Middleware:
    """What rclpy runs on, where :func:`configure` was not called: settings are not ours."""
    name = "" if is_standalone() else str(get_rmw_implementation_identifier())
    return Middleware(name, f"middleware: {name or 'the standalone runtime'}")


def configure(environment: MutableMapping[str, str] = os.environ, folder: Path | None = None) -> Middleware:
    """Set the variables of the middleware in use, unless the user has set one. To be called before ``rclpy.init``.

    folder: the working directory, where Fast DDS looks for a file of the user's.
    """
    if is_standalone():
        return Middleware("", "middleware: the standalone runtime, with its own settings")
    name = str(get_rmw_implementation_identifier())
    if name == CYCLONE:
        return _configure_cyclone(name, environment)
    if name.startswith("rmw_fastrtps"):
        return _configure_fast(name, environment, folder or Path.cwd())
    return Middleware(name, f"middleware: {name}, whose settings this package leaves alone")


def _configure_cyclone(name: str, environment: MutableMapping[str, str]) -> Middleware:
    own = environment.get("CYCLONEDDS_URI")
    if own:
        return Middleware(name, f"middleware: {name}, with your own CYCLONEDDS_URI={own[:200]}")
    file = config_file("cyclonedds.xml")
    environment["CYCLONEDDS_URI"] = f"file://{file}"
    return Middleware(name, f"middleware: {name}, with {file} (CYCLONEDDS_URI is not set)", file)


def _configure_fast(name: str, environment: MutableMapping[str, str], folder: Path) -> Middleware:
    for variable in _FAST_OWN:
        if environment.get(variable):
            return Middleware(name, f"middleware: {name}, with your own {variable}={environment[variable][:200]}")
    for own in _FAST_FILES:
        if (folder / own).is_file():
            return Middleware(name, f"middleware: {name}, with your own {folder / own}")
    if not _is_fast_dds_2():
        return Middleware(name, f"middleware: {name} with Fast DDS 3, whose settings this package leaves alone")
    rmem_max = rmem_max_bytes() or 0
    free = _free_shared_memory_bytes()
    if rmem_max < FAST_UDP_LEAST_BYTES and free < _SHARED_MEMORY_BYTES:
        return Middleware(
            name,
            f"middleware: {name} at its own defaults: {_SHARED_MEMORY} has {free} bytes free and our shared-memory "
            f"segment needs {_SHARED_MEMORY_BYTES} (Docker: --shm-size=1g or --ipc=host)",
        )
    file = config_file("fastdds_udp.xml" if rmem_max >= FAST_UDP_LEAST_BYTES else "fastdds_shared_memory.xml")
    environment[_FAST_VARIABLES[0]] = str(file)
    return Middleware(
        name,
        f"middleware: {name}, with {file} ({' and '.join((_FAST_VARIABLES[0], _FAST_OWN[-1]))} are not set; "
        f"net.core.rmem_max is {rmem_max})",
        file,
    )


def _is_fast_dds_2() -> bool:
    """Fast DDS 2 (Humble to Jazzy) is the library fastrtps; 3 is called fastdds, with other names in its files.

    The library is loaded: the middleware has told its name.
    """
    return "/libfastrtps.so" in _MAPS.read_text()
