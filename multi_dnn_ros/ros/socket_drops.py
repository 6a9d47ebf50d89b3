"""Counts the datagrams that the kernel dropped at this process's UDP sockets because a receive buffer was full.

A raw image arrives as a burst of hundreds of datagrams. When the buffer is full, the kernel drops the rest, the image
cannot be reassembled, and no middleware reports it. The counters are in ``/proc/self/net/udp``, one line per socket of
the network namespace; ``/proc/self/fd`` lists the sockets of this process.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_TABLES = ("net/udp", "net/udp6")
_INODE = re.compile(r"socket:\[(\d+)\]")
#: Columns of the table: "inode" and "drops" (Documentation/networking/proc_net_tcp.rst; net/ipv4/udp.c).
_INODE_COLUMN, _DROPS_COLUMN = 9, 12


def parse_drops(table: str) -> dict[int, int]:
    """Drops by socket inode, from the text of ``/proc/net/udp``. Lines of another format are ignored."""
    drops: dict[int, int] = {}
    for line in table.splitlines():
        words = line.split()
        if len(words) > _DROPS_COLUMN and words[_INODE_COLUMN].isdecimal() and words[_DROPS_COLUMN].isdecimal():
            drops[int(words[_INODE_COLUMN])] = int(words[_DROPS_COLUMN])
    return drops


def parse_inodes(links: Iterable[str]) -> set[int]:
    """Socket inodes among the link targets of ``/proc/self/fd``."""
    return {int(found[1]) for found in map(_INODE.fullmatch, links) if found is not None}


class SocketDrops:
    """Counts drops between calls of poll(), from its creation on. process: folder of the process in ``/proc``."""

    def __init__(self, process: Path = Path("/proc/self")) -> None:
        self._process = process
        self._last = self._read()

    def poll(self) -> int:
        """Datagrams dropped since the last call at the sockets that are open now; 0 if the system has no counters."""
        now = self._read()
        # All drops of a new socket have happened since the last call.
        new = sum(max(0, count - self._last.get(inode, 0)) for inode, count in now.items())
        self._last = now
        return new

    def _read(self) -> dict[int, int]:
        own = parse_inodes(_links(self._process / "fd"))
        drops: dict[int, int] = {}
        for table in _TABLES:
            with suppress(OSError):
                drops.update(parse_drops((self._process / table).read_text()))
        return {inode: count for inode, count in drops.items() if inode in own}


def receive_buffer_bytes() -> int | None:
    """The largest receive buffer of this process's UDP sockets as the kernel counts it: twice the granted size.

    None: there is no UDP socket (the middleware uses only TCP or shared memory), or no access to ``/proc``.
    """
    sizes: list[int] = []
    for name, link in _named_links(Path("/proc/self/fd")):
        if _INODE.fullmatch(link) is None:
            continue
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as duplicate:
            if duplicate.family in (socket.AF_INET, socket.AF_INET6) and duplicate.type == socket.SOCK_DGRAM:
                sizes.append(duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
    return max(sizes, default=None)


def _links(folder: Path) -> list[str]:
    return [link for _, link in _named_links(folder)]


def _named_links(folder: Path) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names:
        with suppress(OSError):  # closed by another thread since it was listed
            found.append((name, os.readlink(folder / name)))
    return found
