"""Connections between the supervisor and ranks on other hosts: TCP, authenticated with a secret of the fleet."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from typing import Any

import psutil

#: Key of a rank: text that differs for each start, and unit.
RankKey = tuple[str, int]
#: TCP keep-alive in seconds: idle time before the first probe, time between probes, time without an answer after which
#: the connection is lost.
_IDLE_S, _INTERVAL_S, _SILENT_S = 30, 10, 60
#: Time until connections are accepted again after the system has refused one, such as for lack of descriptors.
_RETRY_S = 0.1
#: Longest wait for the connection by which the listener wakes its own thread when it is closed.
_CLOSE_S = 1.0
#: Longest wait for each message of a rank that is connecting.
_GREETING_S = 30


class RankListener:
    """Accepts ranks. Messages are pickles, so a rank must first prove that it knows the secret."""

    def __init__(self, host: str, secret: bytes, connected: Callable[[RankKey, Connection[Any, Any]], None]) -> None:
        """connected: called in a thread with each rank's connection."""
        self._listener = Listener((host, 0), "AF_INET", backlog=64)
        self._secret, self._connected = secret, connected
        self._closed = threading.Event()
        threading.Thread(target=self._accept, name="fleet ranks", daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.address
        return str(host), int(port)

    def close(self) -> None:
        """Accept no more ranks."""
        if self._closed.is_set():
            return
        self._closed.set()
        with suppress(OSError), socket.create_connection(self.address, _CLOSE_S):
            pass  # closing a socket does not wake a thread that waits for connections on it
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection: Connection[Any, Any] = self._listener.accept()
            except OSError:
                if self._closed.wait(_RETRY_S):
                    return
                continue  # a rank whose connection is never accepted would wait forever
            if self._closed.is_set():
                connection.close()
                return
            # A thread of its own: a stranger that does not answer must not hold up the ranks.
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: Connection[Any, Any]) -> None:
        try:
            limit_receiving(connection, _GREETING_S)
            deliver_challenge(connection, self._secret)
            answer_challenge(connection, self._secret)
            key = connection.recv()
            limit_receiving(connection, 0)
            keep_alive(connection)
            self._connected(key, connection)
        except (AuthenticationError, EOFError, OSError, ValueError):
            connection.close()


def connect(address: tuple[str, int], secret: bytes, key: RankKey) -> Connection[Any, Any]:
    """Connect a rank to the supervisor. Raises OSError, EOFError or AuthenticationError."""
    connection: Connection[Any, Any] = Client(address, "AF_INET", authkey=secret)
    keep_alive(connection)
    connection.send(key)
    return connection


def limit_receiving(connection: Connection[Any, Any], seconds: int) -> None:
    """Make reads raise OSError if nothing arrives for this time; 0: wait without a limit."""
    with socket.socket(fileno=connection.fileno()) as tcp:
        try:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))  # struct timeval
        finally:
            tcp.detach()  # the descriptor is the connection's


def keep_alive(connection: Connection[Any, Any]) -> None:
    """Make the kernel close the connection if the other host stops answering without closing it."""
    with socket.socket(fileno=connection.fileno()) as tcp:
        try:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, seconds in (("TCP_KEEPIDLE", _IDLE_S), ("TCP_KEEPINTVL", _INTERVAL_S)):
                with suppress(AttributeError, OSError):  # not on every system
                    tcp.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
            with suppress(AttributeError, OSError):
                tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_S * 1000)
        finally:
            tcp.detach()  # the descriptor is the connection's


def interface_of(address: str) -> str | None:
    """The network interface with this IP address, for gloo and NCCL; None if there is none."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return name
    return None
