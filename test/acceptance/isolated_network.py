"""Runs a command where every network address is this process: ``isolated_network.py LOG COMMAND...``

To be started in a network and mount namespace of its own (``unshare``). All IPv4 addresses are local there, a name
server answers every name with 192.0.2.1, and LOG gets a line for each name that is asked for and each packet to an
address outside the computer. Multicast is left out: it is how the middleware finds other nodes.
"""

from __future__ import annotations

import ipaddress
import socket
import subprocess
import sys
import threading
from pathlib import Path

_ETHERNET_BYTES = 14
_IPV4 = 0x0800


def main() -> int:
    log, *command = sys.argv[1:]
    for setting in ("link set lo up", "route add local 0.0.0.0/0 dev lo", "route add 224.0.0.0/4 dev lo"):
        subprocess.run(["ip", *setting.split()], check=True)
    resolver = Path(log).with_suffix(".resolv")
    resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    subprocess.run(["mount", "--bind", resolver, "/etc/resolv.conf"], check=True)
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind(("127.0.0.1", 53))
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_IPV4))
    packets.bind(("lo", _IPV4))
    with Path(log).open("a", buffering=1) as file:
        for serve, where in ((_answer_names, names), (_read_packets, packets)):
            threading.Thread(target=serve, args=(where, file), daemon=True).start()
        return subprocess.run(command, check=False).returncode


def _answer_names(server: socket.socket, file: object) -> None:
    while True:
        query, sender = server.recvfrom(4096)
        name, at = [], 12
        while query[at]:
            name.append(query[at + 1 : at + 1 + query[at]].decode("ascii", "replace"))
            at += 1 + query[at]
        print(f"name {'.'.join(name)}", file=file)
        question = query[12 : at + 5]
        answer = bytes.fromhex("c00c 0001 0001 0000003c 0004 c0000201")
        found = query[at + 1 : at + 3] == b"\0\1"  # an IPv4 address is asked for
        counts = b"\0\1" + bytes([0, int(found), 0, 0, 0, 0])
        server.sendto(query[:2] + b"\x81\x80" + counts + question + answer * found, sender)


def _read_packets(device: socket.socket, file: object) -> None:
    while True:
        target = ipaddress.IPv4Address(device.recv(65535)[_ETHERNET_BYTES + 16 : _ETHERNET_BYTES + 20])
        if not (target.is_loopback or target.is_multicast):
            print(f"packet to {target}", file=file)


if __name__ == "__main__":
    sys.exit(main())
