"""Counts the kills of the kernel's out-of-memory killer, to distinguish its SIGKILL from others."""

from __future__ import annotations

from pathlib import Path

_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


def oom_kills(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """A count that increases with each OOM kill on this machine or in this process's control group.

    It is 0 where the kernel or the container does not report such kills.
    """
    return sum(_count(file) for file in (proc / "vmstat", *_group_files(proc, cgroup)))


def _group_files(proc: Path, cgroup: Path) -> list[Path]:
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    files = []
    for line in lines:  # 4:memory:/path (version 1) or 0::/path (version 2)
        _, controllers, path = line.split(":", 2)
        if not controllers:
            files.append(cgroup / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            files.append(cgroup / "memory" / path.lstrip("/") / "memory.oom_control")
    return files


def _count(file: Path) -> int:
    try:
        for line in file.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass  # not on this kernel, or not visible in this container
    return 0
