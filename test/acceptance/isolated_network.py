"""Runs a command where every network address is this process: ``isolated_network.py LOG COMMAND...``

To be started in a network and mount namespace of its own (``unshare``). All IPv4 addresses are local there, that of
the name server too, and LOG gets a line for each packet to an address outside the computer, with the text in it, such
as the name that is asked for. Multicast is left out: it is how the middleware finds other nodes.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

_IP_HEADER = 14  # bytes of the Ethernet header before it
_IPV4 = 0x0800


def main() -> int:
    log, *command = sys.argv[1:]
    for setting in ("link set lo up", "route add local 0.0.0.0/0 dev lo", "route add 224.0.0.0/4 dev lo"):
        subprocess.run(["ip", *setting.split()], check=True)
    resolver = Path(log).with_suffix(".resolv")
    resolver.write_text("nameserver 192.0.2.1\noptions timeout:1 attempts:1\n")
    subprocess.run(["mount", "--bind", resolver, "/etc/resolv.conf"], check=True)
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_IPV4))
    packets.bind(("lo", _IPV4))
    with Path(log).open("a", buffering=1) as file:
        threading.Thread(target=_read_packets, args=(packets, file), daemon=True).start()
        return subprocess.run(command, check=False).returncode


def _read_packets(device: socket.socket, file: object) -> None:
    while True:
        packet = device.recv(65535)
        target = ipaddress.IPv4Address(packet[_IP_HEADER + 16 : _IP_HEADER + 20])
        if not (target.is_loopback or target.is_multicast):
            print(f"packet to {target}: {re.findall(rb'[a-z]+', packet[_IP_HEADER + 20 :])}", file=file)


if __name__ == "__main__":
    sys.exit(main())
