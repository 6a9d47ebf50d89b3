"""Transport of large messages between processes: Cyclone's configuration for the available socket buffers.

Linux up to 6.8 limits a socket's receive buffer to 212,992 bytes (``net.core.rmem_max``), less than one raw image. A
writer that sends a whole image at once overruns the reader's buffer, and Cyclone's default retransmission after 100 ms
is too late for the next image. Therefore a writer sends at most two thirds of its readers' smallest buffer at once
(``MaxInitTransmit``), and a reader requests the rest immediately (``NackDelay``). This requires reliable subscriptions:
nothing is retransmitted to best-effort ones.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Environment variable for the requested number of bytes; tests set the limit of an ordinary kernel.
BUFFER_VARIABLE: Final = "MULTI_DNN_ROS_RECEIVE_BUFFER"
#: Maximum number of processes of one machine in a domain: each process has its own UDP ports.
MAX_PROCESSES: Final = 33
_DEFAULT_BUFFER_BYTES: Final = 10_000_000
_MIN_BUFFER_BYTES: Final = 65_536  # a buffer must hold a datagram
_MAX_SAMPLE_BYTES: Final = 512 * 2**20  # larger messages are refused
_KERNEL_LIMIT: Final = Path("/proc/sys/net/core/rmem_max")
_STOCK_LIMIT_BYTES: Final = 212_992


@dataclass(frozen=True)
class ReceiveBuffer:
    """The receive buffer of each socket: requested bytes, and the kernel's limit."""

    wanted_bytes: int
    limit_bytes: int

    @property
    def granted_bytes(self) -> int:
        """Payload plus kernel overhead: Linux doubles the requested size (socket(7))."""
        return 2 * min(self.wanted_bytes, self.limit_bytes)

    def description(self) -> str:
        """How large messages are sent, and why; for the log."""
        if self.wanted_bytes <= self.limit_bytes:
            reason = f"receive buffer {self.granted_bytes} bytes"
        else:
            reason = f"receive buffer {self.granted_bytes} bytes, twice net.core.rmem_max, the kernel's limit"
        return (
            f"messages larger than {self.granted_bytes * 2 // 3} bytes are sent over UDP in several bursts; "
            f"best-effort subscriptions may lose them ({reason})"
        )


def receive_buffer() -> ReceiveBuffer:
    """Return the receive buffer to request and the kernel's limit.

    Raises:
        ValueError: for an invalid environment variable; names it and the allowed values.
    """
    text = os.environ.get(BUFFER_VARIABLE, "").strip() or str(_DEFAULT_BUFFER_BYTES)
    if not text.isascii() or not text.isdigit() or not _MIN_BUFFER_BYTES <= int(text) < 2**31:
        raise ValueError(f"{BUFFER_VARIABLE} must be a number of bytes from {_MIN_BUFFER_BYTES}, not {text!r}")
    try:
        limit = int(_KERNEL_LIMIT.read_text())
    except (OSError, ValueError):
        limit = _STOCK_LIMIT_BYTES
    return ReceiveBuffer(int(text), limit)


def configuration(buffer: ReceiveBuffer, *, subnet: bool) -> str:
    """Return Cyclone's XML configuration: loopback only, or loopback and the interface of the local network."""
    network = '<NetworkInterface autodetermine="true"/>' if subnet else ""
    return (
        '<CycloneDDS><Domain Id="any"><General>'
        f'<Interfaces><NetworkInterface name="lo" multicast="false"/>{network}</Interfaces>'
        "<MaxMessageSize>65500B</MaxMessageSize><FragmentSize>65000B</FragmentSize></General>"
        "<Discovery><ParticipantIndex>auto</ParticipantIndex>"
        f"<MaxAutoParticipantIndex>{MAX_PROCESSES - 1}</MaxAutoParticipantIndex>"
        '<Peers><Peer Address="127.0.0.1"/></Peers></Discovery>'
        f'<Internal><SocketReceiveBufferSize max="{buffer.wanted_bytes}B"/>'
        "<BurstSize><MaxInitTransmit>0</MaxInitTransmit></BurstSize><NackDelay>0 ms</NackDelay>"
        f"<MaxSampleSize>{_MAX_SAMPLE_BYTES}B</MaxSampleSize></Internal></Domain></CycloneDDS>"
    )
