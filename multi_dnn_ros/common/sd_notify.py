"""Messages to the service manager: the protocol of sd_notify(3) that systemd defines for services of `Type=notify`.

A message is one datagram of lines `NAME=value`, sent to the Unix socket in the environment variable NOTIFY_SOCKET.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping

log = logging.getLogger(__name__)

#: systemd ignores messages above 4096 bytes; this leaves room for the other fields.
_MAX_STATUS_BYTES = 2048


class ServiceManager:
    """Sends messages to `address`: a path, or `@` and the name of an abstract socket.

    watchdog_s: the manager ends the service if it gets no WATCHDOG=1 for this time; None: it does not watch.
    """

    def __init__(self, address: str, watchdog_s: float | None = None) -> None:
        self.watchdog_s = watchdog_s
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)  # a manager that does not read must not block the service
        self._warned = False

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> ServiceManager | None:
        """The manager that started this process; None without NOTIFY_SOCKET, or if its value is not supported.

        Removes the variables of the protocol, so that child processes do not use them.
        """
        address = environment.pop("NOTIFY_SOCKET", "")
        period_us, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        if not address:
            return None
        if address[0] not in "/@" or len(address) < 2:
            log.warning(
                "NOTIFY_SOCKET = %r: must be an absolute path or @ and a name; no messages are sent to systemd", address
            )
            return None
        return cls(address, _watchdog_s(period_us, pid))

    def send(self, **fields: str | int) -> bool:
        """Send one message with these fields, such as READY=1, and return whether it was sent. Logs the first failure.

        STATUS may have several lines and any length: it is sent as one line of at most 2048 bytes.
        """
        lines = [f"{name}={_one_line(value) if isinstance(value, str) else value}" for name, value in fields.items()]
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            self._socket.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            if not self._warned:
                log.warning(
                    "NOTIFY_SOCKET = %r: a message to systemd could not be sent (%s); further failures are not logged",
                    self._address,
                    error,
                )
            self._warned = True
            return False
        return True

    def close(self) -> None:
        """Close the socket; nothing can be sent afterwards."""
        self._socket.close()


def _watchdog_s(period_us: str, pid: str) -> float | None:
    if not period_us:
        return None
    if pid and pid != str(os.getpid()):
        log.warning(
            "systemd watches process %s (WATCHDOG_PID), but this is process %d: no heartbeats are sent to its "
            "watchdog; start the node itself with ExecStart, not by `ros2 launch`, or set WatchdogSec=0",
            pid,
            os.getpid(),
        )
        return None
    if not (period_us.isascii() and period_us.isdigit() and int(period_us) > 0):
        log.warning("WATCHDOG_USEC = %r: must be a whole number above 0; no heartbeats are sent to systemd", period_us)
        return None
    return int(period_us) / 1e6


def _one_line(text: str) -> str:
    line = "; ".join(text.splitlines())
    return line.encode(errors="replace")[:_MAX_STATUS_BYTES].decode(errors="ignore")
