"""What this process may use: installed configuration files, folders for caches, processors."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import stat
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)

_PACKAGE = "multi_dnn_ros"
_CGROUPS = Path("/sys/fs/cgroup")


def config_file(name: str) -> Path:
    """Path of a file in the package's ``config`` folder, such as ``multi_dnn.yaml``: of the source checkout, otherwise
    of the installation. Raises FileNotFoundError that names the file and the searched folders.
    """
    above = Path(__file__).resolve().parents
    folders = [folder / "config" for folder in above if (folder / "package.xml").is_file()]
    folders += [folder / "share" / _PACKAGE / "config" for folder in above]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"config file {name!r} is not installed; searched {', '.join(map(str, folders))}")


def cache_folder() -> Path:
    """Folder for files that can be rebuilt: $XDG_CACHE_HOME/multi_dnn_ros, by default below ~/.cache."""
    return writable_folder(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / _PACKAGE)


def writable_folder(folder: Path) -> Path:
    """`folder`, which need not exist; if it cannot be written, one of the same name in a folder of this user in the
    temporary folder.
    """
    if is_writable(folder):
        return folder
    return _replacement(folder)


@functools.cache  # one warning
def _replacement(folder: Path) -> Path:
    found = temporary_folder() / folder.name
    log.warning("%s cannot be written, so caches are kept in %s; set XDG_CACHE_HOME to change it", folder, found)
    return found


def is_writable(folder: Path) -> bool:
    """Whether files can be created in a folder, which need not exist."""
    # Not Path.exists, which raises PermissionError below a folder of another user.
    nearest = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def temporary_folder() -> Path:
    """A folder of this user, the same for all processes unless somebody else has taken it. Others must not be able to
    write it, because PyTorch executes what it compiles into it.
    """
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
    of_affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(of_affinity, int(_cpu_quota())))


def _cpu_quota() -> float:
    """Processors that the control groups of this process may use together, the smallest of all levels.

    Version 2: https://docs.kernel.org/admin-guide/cgroup-v2.html, cpu.max. Version 1: cpu.cfs_quota_us. In a container,
    /proc/self/cgroup may name a path of the host, of which only its own part is mounted.
    """
    smallest = float(1 << 16)
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)  # 0::/path (version 2) or 4:cpu,cpuacct:/path (version 1)
            if controllers and "cpu" not in controllers.split(","):
                continue
            group = Path(path.lstrip("/"))
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            for level in (group, *group.parents):
                with contextlib.suppress(OSError, ValueError):  # no such file, or `max`
                    texts = [(_CGROUPS / controllers / level / file).read_text(encoding="utf-8") for file in files]
                    quota, period = map(float, " ".join(texts).split())
                    smallest = min(smallest, quota / period) if quota > 0 else smallest  # -1: no quota
    return smallest
