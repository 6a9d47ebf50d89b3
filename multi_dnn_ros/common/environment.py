"""What surrounds this process: variables that libraries read when they are loaded, processors, locale, limits."""

from __future__ import annotations

import getpass
import locale
import math
import os
import resource
import stat
from pathlib import Path

from multi_dnn_ros.common.errors import CommandError

#: Switches off what libraries report to their vendors: ONNX Runtime (from version 1.29 on), Ray, Hugging Face's, and
#: others that follow https://consoledonottrack.com.
_NO_REPORTS = {
    "ORT_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}
#: Hardware queues of a GPU, at most 32, by default 8; read when CUDA is initialized, which asking for GPUs does, too.
#: Streams that share a queue wait for one another, also at a closed gate.
_GPU_QUEUES = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
_CGROUPS = Path("/sys/fs/cgroup")
#: With less, OpenBLAS ends the process when NumPy is imported.
_MIN_ADDRESS_SPACE_BYTES = 1 << 30


def prepare_environment() -> None:
    """Set the variables that libraries read when they are loaded; child processes inherit them. The user's own values
    are kept.
    """
    for name, value in (*_NO_REPORTS.items(), *_GPU_QUEUES.items()):
        os.environ.setdefault(name, value)
    # A container may be started with a user id that /etc/passwd does not know. PyTorch asks for the user's name when it
    # is imported, other libraries for the home folder.
    try:
        getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        os.environ["USER"] = str(os.getuid())
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = os.sep  # as Docker sets it
    # Without a folder for its logs, which it hardly uses, the real rclpy does not start.
    if not os.environ.keys() & {"ROS_LOG_DIR", "ROS_HOME"} and not is_writable(Path.home() / ".ros" / "log"):
        os.environ["ROS_LOG_DIR"] = str(temporary_folder() / "ros_log")
    if (count := cpu_count()) < _process_cpu_count():
        os.environ.setdefault("OMP_NUM_THREADS", str(count))


def is_writable(folder: Path) -> bool:
    """Whether files can be created in a folder, which need not exist."""
    # Not Path.exists, which raises PermissionError below a folder of another user.
    nearest = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def temporary_folder() -> Path:
    """A folder of this user, the same for all processes unless somebody else has taken it. Others must not be able to
    write it, because PyTorch executes what it compiles into it.
    """
    import tempfile  # hardly ever needed

    folder = Path(tempfile.gettempdir()) / f"multi_dnn_ros_{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return folder
    except OSError:
        pass  # mkdtemp names the problem if it cannot create a folder either
    return Path(tempfile.mkdtemp(prefix="multi_dnn_ros_"))


def cpu_count() -> int:
    """Number of processors that this process may keep busy: those of its affinity, within its control groups' quota."""
    return max(1, min(_process_cpu_count(), int(_cpu_quota())))


def _process_cpu_count() -> int:
    """os.process_cpu_count of Python 3.13."""
    if hasattr(os, "process_cpu_count"):
        return int(os.process_cpu_count() or 1)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_quota() -> float:
    """Processors that the control groups of this process may use together, the smallest of all levels.

    Version 2: https://docs.kernel.org/admin-guide/cgroup-v2.html, cpu.max. Version 1: cpu.cfs_quota_us. In a container,
    /proc/self/cgroup may name a path of the host, of which only its own part is mounted.
    """
    smallest = float(1 << 16)
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return smallest
    for line in lines:  # 0::/path (version 2) or 4:cpu,cpuacct:/path (version 1)
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = Path(path.lstrip("/"))
        for level in (group, *group.parents):
            folder = _CGROUPS / controllers / level
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            try:
                quota, period = " ".join((folder / file).read_text(encoding="utf-8") for file in files).split()
                if float(quota) > 0:  # -1: no quota
                    smallest = min(smallest, float(quota) / float(period))
            except (OSError, ValueError):  # no such file, or `max`
                continue
    return smallest


def check_process() -> None:
    """Raise CommandError for a locale, a current folder or a limit of the address space with which libraries fail, each
    with an error of its own.
    """
    encoding = locale.getpreferredencoding(False)
    if encoding.lower().replace("-", "") != "utf8":
        raise CommandError(
            f"the character set of the locale is {encoding}, so paths cannot be read reliably; allowed: UTF-8, for "
            "example LC_ALL=C.UTF-8"
        )
    try:
        Path.cwd()
    except FileNotFoundError:
        raise CommandError("the current folder has been deleted; change to another one with `cd`") from None
    if _address_space_bytes() < _MIN_ADDRESS_SPACE_BYTES:
        raise CommandError(_limit_text())


def with_memory_limit(text: str) -> str:
    """The text of an unexpected error, preceded by the limit of this process's address space if there is one: under
    such a limit libraries fail in many ways. They cannot be loaded, lack parts, or cannot start threads.
    """
    return text if math.isinf(_address_space_bytes()) else f"{_limit_text()} ({text})"


def _limit_text() -> str:
    limit_mib = _address_space_bytes() / (1 << 20)
    return (
        f"the address space of this process is limited to {limit_mib:.0f} MiB (ulimit -v), too little for the "
        "libraries; limit its memory with a control group instead, as systemd's MemoryMax does"
    )


def _address_space_bytes() -> float:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return math.inf if limit == resource.RLIM_INFINITY else float(limit)
