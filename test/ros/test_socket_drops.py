"""Datagrams that the kernel dropped: parsing its table, and real sockets."""

from __future__ import annotations

import socket
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.ros.socket_drops import SocketDrops, parse_drops, parse_inodes, receive_buffer_bytes

HEADER = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid timeout inode ref pointer drops"
)


@given(st.dictionaries(st.integers(1, 2**32), st.integers(0, 2**31)))
def test_the_table_of_the_kernel_is_parsed(drops: dict[int, int]) -> None:
    lines = [
        f"{index:5}: 00000000:1CE8 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 "
        f"{inode} 2 00000000ffff8881 {count}         "
        for index, (inode, count) in enumerate(drops.items())
    ]
    assert parse_drops("\n".join([HEADER, *lines])) == drops


@given(st.text())
def test_other_lines_are_ignored(text: str) -> None:
    assert all(count >= 0 for count in parse_drops(text).values())
    parse_inodes(text.splitlines())


def test_sockets_among_the_descriptors() -> None:
    assert parse_inodes(["socket:[12]", "/dev/null", "anon_inode:[eventfd]", "pipe:[13]", "socket:[x]"]) == {12}


def test_drops_of_our_own_socket_are_counted_once() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as before:
        before.bind(("127.0.0.1", 0))
        counter = SocketDrops()
        assert counter.poll() == 0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
            receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            receiver.bind(("127.0.0.1", 0))
            for _ in range(100):
                before.sendto(bytes(1000), receiver.getsockname())
            kept = 0
            receiver.setblocking(False)
            try:
                while receiver.recv(2000):
                    kept += 1
            except BlockingIOError:
                pass
            assert 0 < kept < 100
            assert counter.poll() == 100 - kept
            assert counter.poll() == 0
        assert counter.poll() == 0


def test_drops_of_other_processes_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "fd").mkdir()
    row = "1: 0:1 0:0 07 0:0 0:0 0 0 0 {inode} 2 0 {drops}"
    (tmp_path / "fd" / "3").symlink_to("socket:[11]")
    table = tmp_path / "net" / "udp"
    table.write_text("\n".join([HEADER, row.format(inode=11, drops=5), row.format(inode=12, drops=9)]))
    counter = SocketDrops(tmp_path)
    table.write_text("\n".join([HEADER, row.format(inode=11, drops=7), row.format(inode=12, drops=99)]))
    assert counter.poll() == 2
    (tmp_path / "fd" / "4").symlink_to("socket:[12]")  # a new socket of ours: all its drops are new
    assert counter.poll() == 99
    table.unlink()
    assert counter.poll() == 0


def test_the_largest_receive_buffer_is_that_of_the_socket() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)
        size = receive_buffer_bytes()
        assert size is not None
        assert size >= 200_000
