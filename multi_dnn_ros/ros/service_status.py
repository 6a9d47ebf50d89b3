"""Reports of the node to systemd, if systemd has started it: ready, one line of status, heartbeats, stopping.

The loop of the executor calls :meth:`ServiceStatus.update`; heartbeats have no thread of their own. A callback that
blocks the executor therefore stops the heartbeats, and systemd restarts the node.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass

log = logging.getLogger(__name__)

#: Period of checking for a new status.
_STATUS_PERIOD_S = 1.0
#: While configuring, which may take minutes, the time that systemd grants beyond TimeoutStartSec; renewed every period.
_EXTEND_S = 30.0


#: systemd ignores messages above 4096 bytes; this leaves room for the other fields.
_MAX_STATUS_BYTES = 2048


class ServiceManager:
    """Sends messages of the protocol of sd_notify(3): datagrams of lines `NAME=value` to the Unix socket `address`, a
    path, or `@` and the name of an abstract socket.

    watchdog_s: the manager ends the service if it gets no WATCHDOG=1 for this time; None: it does not watch.
    """

    def __init__(self, address: str, watchdog_s: float | None = None) -> None:
        self.watchdog_s = watchdog_s
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)  # a manager that does not read must not block the service
        self._warned = False

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> ServiceManager | None:
        """The manager that started this process; None without NOTIFY_SOCKET.

        Removes the variables of the protocol, so that child processes do not use them.
        """
        names = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
        address, period_us, pid = (environment.pop(name, "") for name in names)
        watches = period_us.isdigit() and int(period_us) > 0 and pid in ("", str(os.getpid()))
        return cls(address, int(period_us) / 1e6 if watches else None) if address else None

    def send(self, **fields: str | int) -> bool:
        """Send one message with these fields, such as READY=1, and return whether it was sent. Logs the first failure.

        STATUS may have several lines and any length: it is sent as one line of at most 2048 bytes.
        """
        try:
            message = "\n".join(f"{name}={_one_line(str(value))}" for name, value in fields.items())
            self._socket.sendto(message.encode(), self._address)
        except OSError as error:
            if not self._warned:
                log.warning("NOTIFY_SOCKET = %r: a message to systemd could not be sent: %s", self._address, error)
            self._warned = True
            return False
        return True

    def close(self) -> None:
        """Close the socket; nothing can be sent afterwards."""
        self._socket.close()


def _one_line(text: str) -> str:
    line = "; ".join(text.splitlines())
    return line.encode(errors="replace")[:_MAX_STATUS_BYTES].decode(errors="ignore")


@dataclass(frozen=True)
class NodeState:
    """The state of the node for the service manager.

    state: life cycle state as in the diagnostics. text: the text of the node's diagnostic status. ended: threads
    that ended with an error while the node is active. supervision_age_s: time since the supervision of the engine
    processes last ran; 0 if there is none.
    """

    state: str
    text: str
    ended: Sequence[str] = ()
    supervision_age_s: float = 0.0


class ServiceStatus:
    """The messages of one node. service_state: returns its state. autostart: the parameter. If it is true, the service
    is ready when the node is active, otherwise as soon as the node responds, because another process configures it.
    """

    def __init__(
        self,
        manager: ServiceManager,
        service_state: Callable[[], NodeState],
        *,
        autostart: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = manager
        self._service_state = service_state
        self._autostart = autostart
        self._clock = clock
        self._ready = False
        self._status = ""
        self._fault = ""
        self._beat_period_s = manager.watchdog_s / 2 if manager.watchdog_s is not None else float("inf")
        self._next_status = self._next_beat = clock()

    def update(self) -> None:
        """Send what is due; to be called at least every 100 ms in the thread of the executor, and only there."""
        now = self._clock()
        beat_is_due = self._beat_period_s < float("inf") and now >= self._next_beat
        if not beat_is_due and now < self._next_status:
            return
        node = self._service_state()
        fields: dict[str, str | int] = {}
        if not self._ready and (node.state == "active" or not self._autostart):
            fields["READY"] = 1
        if node.text != self._status:
            fields["STATUS"] = node.text
        if not self._ready and node.state == "configuring":
            fields["EXTEND_TIMEOUT_USEC"] = round(_EXTEND_S * 1e6)
        if beat_is_due and not self._fault_of(node):
            fields["WATCHDOG"] = 1
        if fields and self._manager.send(**fields):
            self._ready = self._ready or "READY" in fields
            self._status = node.text
            if "WATCHDOG" in fields:  # otherwise the next call tries again, as a whole period would be too long
                self._next_beat = now + self._beat_period_s
        self._next_status = now + _STATUS_PERIOD_S

    def stopping(self, reason: str) -> None:
        """The node shuts down. reason: one line."""
        self._manager.send(STOPPING=1, STATUS=reason)
        self._manager.close()

    def _fault_of(self, node: NodeState) -> str:
        """Why no heartbeat is sent; empty: one is sent."""
        fault = ""
        if node.ended:
            fault = f"threads ended with an error: {', '.join(node.ended)}"
        elif node.supervision_age_s > self._beat_period_s:
            fault = f"the supervision of the engine processes has not run for more than {self._beat_period_s:g} s"
        if fault and fault != self._fault:
            log.error("no heartbeat to systemd, which will restart the node: %s", fault)
        self._fault = fault
        return fault
