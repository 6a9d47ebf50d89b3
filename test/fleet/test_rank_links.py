"""TCP connections of ranks: only ranks that know the secret connect, and a stranger does not hold them up."""

from __future__ import annotations

import errno
import os
import queue
import socket
import threading
import time
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from typing import Any

import psutil
import pytest

from multi_dnn_ros.fleet import rank_links, remote_rank
from multi_dnn_ros.fleet.messages import Failed
from multi_dnn_ros.fleet.rank_links import RankKey, RankListener, connect, interface_of
from multi_dnn_ros.fleet.remote_rank import RemoteRank

SECRET = b"of this fleet"
_PATIENCE_S = 30.0


@pytest.fixture
def found() -> queue.Queue[tuple[RankKey, Connection[Any, Any]]]:
    return queue.Queue()


@pytest.fixture
def listener(found: queue.Queue[tuple[RankKey, Connection[Any, Any]]]) -> Iterator[RankListener]:
    listener = RankListener("127.0.0.1", SECRET, lambda key, connection: found.put((key, connection)))
    yield listener
    listener.close()


def test_a_rank_connects_while_a_stranger_is_silent(
    listener: RankListener, found: queue.Queue[tuple[RankKey, Connection[Any, Any]]]
) -> None:
    with socket.create_connection(listener.address):  # says nothing
        rank = connect(listener.address, SECRET, ("a/1", 3))
        key, supervisor = found.get(timeout=_PATIENCE_S)
    assert key == ("a/1", 3)
    supervisor.send("command")
    assert rank.recv() == "command"
    rank.close()
    with pytest.raises(EOFError):
        supervisor.recv()
    supervisor.close()


def test_a_stranger_that_says_nothing_is_disconnected(
    listener: RankListener,
    found: queue.Queue[tuple[RankKey, Connection[Any, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(rank_links, "_GREETING_S", 1)
        with socket.create_connection(listener.address, timeout=_PATIENCE_S) as stranger:
            while stranger.recv(4096):  # the challenge, then the end
                pass
    rank = connect(listener.address, SECRET, ("a/1", 3))
    _, supervisor = found.get(timeout=_PATIENCE_S)
    with socket.socket(fileno=os.dup(supervisor.fileno())) as tcp:  # a rank that has connected may be silent for longer
        assert not any(tcp.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16))
    rank.close()
    supervisor.close()


def test_a_listener_that_is_closed_leaves_no_thread() -> None:
    before = threading.enumerate()
    listener = RankListener("127.0.0.1", SECRET, lambda key, connection: None)
    (thread,) = [each for each in threading.enumerate() if each.name == "fleet ranks" and each not in before]
    time.sleep(0.1)  # until it waits for connections; otherwise it ends anyway
    listener.close()
    thread.join(_PATIENCE_S)
    assert not thread.is_alive()
    listener.close()  # has no effect


def test_a_wrong_secret_is_refused(
    listener: RankListener, found: queue.Queue[tuple[RankKey, Connection[Any, Any]]]
) -> None:
    with pytest.raises((AuthenticationError, EOFError, OSError)):
        connect(listener.address, b"of another", ("a/1", 3)).recv()
    connect(listener.address, SECRET, ("b/1", 0)).close()
    assert found.get(timeout=_PATIENCE_S)[0] == ("b/1", 0)
    assert found.empty()


@pytest.mark.timeout(60)
def test_ranks_connect_after_a_connection_could_not_be_accepted(
    listener: RankListener, found: queue.Queue[tuple[RankKey, Connection[Any, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, refused = listener._listener.accept, threading.Event()

    def refuse_once() -> Any:
        if refused.is_set():
            return accept()
        refused.set()
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(listener._listener, "accept", refuse_once)
    first = connect(listener.address, SECRET, ("a/1", 0))  # by the call that waits already
    assert found.get(timeout=_PATIENCE_S)[0] == ("a/1", 0)
    assert refused.wait(_PATIENCE_S)
    second = connect(listener.address, SECRET, ("a/1", 1))
    assert found.get(timeout=_PATIENCE_S)[0] == ("a/1", 1)
    first.close()
    second.close()


class StartedRanks:
    """Stands for the module ray: every call has been answered."""

    class exceptions:
        RayError = RayTaskError = RuntimeError

    def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return references, []

    def get(self, reference: Any) -> int:
        return 1


def test_a_rank_that_never_connects_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = RemoteRank(StartedRanks(), None, "started", ("a/1", 0))
    assert rank.receive() == []
    monkeypatch.setattr(remote_rank, "_CONNECT_S", 0.0)
    (failed,) = rank.receive()
    assert isinstance(failed, Failed)
    assert failed.text.startswith("did not connect to the command within 0 s of its start")
    assert rank.receive() == []


def test_the_interface_of_an_address_is_found() -> None:
    assert interface_of("127.0.0.1") in psutil.net_if_addrs()
    assert interface_of("192.0.2.255") is None
