"""A rank on a host of a Ray cluster, from the supervisor's side."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.processes import describe_exit
from multi_dnn_ros.fleet.launcher import RankHandle
from multi_dnn_ros.fleet.messages import Command, Message
from multi_dnn_ros.fleet.rank_links import RankKey

#: Longest wait for the start of a process, for an answer of an agent, and for the end of a rank without a connection.
_START_S, _ANSWER_S, _EXIT_S = 60.0, 2.0, 5.0
#: Longest time from the start of a rank, which imports PyTorch, to its connection.
_CONNECT_S = 300.0


class RemoteRank(RankHandle):
    """A process on a host. It connects by itself; until then, commands are kept."""

    def __init__(self, ray: Any, agent: Any, started: Any, key: RankKey) -> None:
        """started: Ray's reference to the process id."""
        super().__init__()
        self._ray, self._agent, self._started, self._key = ray, agent, started, key
        # `connected` is called in another thread, and must not send while `receive` sends what was kept.
        self._lock = threading.RLock()
        self._waiting: list[Command] = []
        self._started_at = time.monotonic()
        self._gone_at = self._seen_running_at = 0.0
        self._closed = False
        self.exit_code: int | None = None

    def connected(self, connection: Connection[Any, Any]) -> None:
        """The rank has connected."""
        with self._lock:
            if self._closed:
                connection.close()
                return
            self.connection = connection
            for command in self._waiting:
                super().send(command)
            self._waiting.clear()

    def send(self, command: Command) -> None:
        with self._lock:
            if self.connection is None:
                self._waiting.append(command)
            else:
                super().send(command)

    def receive(self) -> list[Message]:
        with self._lock:
            return super().receive()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            super().close()

    @property
    def pid(self) -> int:
        return int(self._ray.get(self._started, timeout=_START_S))

    def ending(self) -> str | None:
        if self.connection is None:
            if self.exit_code is not None:
                return describe_exit(self.exit_code)
            problem = self._start_problem()
            if problem is None and time.monotonic() - self._started_at >= _CONNECT_S:
                problem = (
                    f"did not connect to the command within {_CONNECT_S:g} s of its start; the hosts must reach each "
                    "other on all ports"
                )
            return problem
        if not self.connection.closed:
            return None
        self._gone_at = self._gone_at or time.monotonic()
        if self.exit_code is not None:
            return describe_exit(self.exit_code) if self.exit_code != 0 else None
        # Unknown while the agent does not answer, such as while it waits for the end of another rank.
        return describe_exit(None) if self._seen_running_at - self._gone_at > _EXIT_S else None

    def seen_running(self, at_s: float) -> None:
        """The agent has answered that the process was running at this time or later."""
        self._seen_running_at = at_s

    @property
    def awaits_ending(self) -> bool:
        return self.connection is not None and self.connection.closed and self.exit_code is None and not self._ended

    def _start_problem(self) -> str | None:
        done, _ = self._ray.wait([self._started], timeout=0)
        if not done:
            return None
        try:
            self._ray.get(self._started)
        except self._ray.exceptions.RayTaskError as error:
            return f"could not be started: {summarize_error(error.cause or error)}"
        except self._ray.exceptions.RayError:
            return None  # the agent is lost, which the launcher reports
        return None

    def alive(self) -> bool:
        return self.exit_code is None

    def join(self, timeout_s: float) -> None:
        if self.exit_code is not None:
            return
        with suppress(self._ray.exceptions.RayError):  # the unit is lost; its ranks end when their connections close
            self._ray.get(self._agent.end.remote(self._key, timeout_s), timeout=timeout_s + _ANSWER_S)
            self.exit_code = 0

    def kill(self) -> None:
        self.close()
        if self.exit_code is None:
            self._agent.end.remote(self._key, 0.0)
