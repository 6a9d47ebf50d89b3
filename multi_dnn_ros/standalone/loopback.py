"""Restricts the sockets of a DDS domain to the loopback interface.

Cyclone sends on the configured interfaces only, but binds its receiving sockets to all addresses of the machine:
without this, any host that can reach the machine could send into the domain. Since Linux 5.7 a process can bind its
sockets to a device without privileges; packets between processes of one machine always use `lo`, whatever their
destination address.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_DEVICE: Final = b"lo\0"
_DESCRIPTORS: Final = Path("/proc/self/fd")
# DDSI-RTPS 2.3, 9.6.1.1: every domain has its own range of UDP ports.
_FIRST_PORT: Final = 7400
_PORTS_PER_DOMAIN: Final = 250


def restrict_to_loopback(domain_id: int) -> list[int]:
    """Bind the domain's receiving sockets to `lo`; returns the ports for which the system denied it."""
    open_ports = []
    for receiver in domain_sockets(domain_id):
        with receiver:
            try:
                receiver.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _DEVICE)
            except OSError:
                open_ports.append(receiver.getsockname()[1])
    return sorted(open_ports)


def domain_sockets(domain_id: int) -> Iterator[socket.socket]:
    """Duplicates of this process's UDP sockets that are bound to a port of the domain on all addresses; the caller must
    close them.
    """
    first = _FIRST_PORT + _PORTS_PER_DOMAIN * domain_id
    for descriptor in sorted(int(entry.name) for entry in _DESCRIPTORS.iterdir()):
        with suppress(OSError):  # another thread closed it
            if not os.readlink(_DESCRIPTORS / str(descriptor)).startswith("socket:"):
                continue
            candidate = socket.socket(fileno=os.dup(descriptor))
            name = candidate.getsockname() if candidate.family == socket.AF_INET else ("", 0)
            udp = candidate.type == socket.SOCK_DGRAM
            if udp and name[0] == "0.0.0.0" and first <= name[1] < first + _PORTS_PER_DOMAIN:
                yield candidate
            else:
                candidate.close()
