"""The launcher of a cluster, with a simulated cluster whose agents hang when a test says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from multi_dnn_ros import __version__
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.fleet import ray_launcher as launchers
from multi_dnn_ros.fleet import remote_rank
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.messages import Command, Failed, Message
from multi_dnn_ros.fleet.rank_links import RankKey, connect
from multi_dnn_ros.fleet.rank_process import main
from multi_dnn_ros.fleet.unit_agent import Supervision
from multi_dnn_ros.planning.batch_units import parse_unit

UNITS = (parse_unit("cpu:1"),) * 2
#: Name of a host, version of the package there, and whether it sees the folder.
USABLE = ("host", __version__, True)


class SimulatedMethod:
    """A method of an actor. A reference to its answer is the pair of both. called: called with the arguments."""

    def __init__(self, agent: SimulatedAgent, answer: Any, called: Callable[..., None] = lambda *given: None) -> None:
        self._reference, self._called = (agent, answer), called

    def remote(self, *arguments: Any) -> tuple[SimulatedAgent, Any]:
        self._called(*arguments)
        return self._reference


class SimulatedAgent:
    """hangs: calls of its methods get no answer. description: answer of `describe`."""

    def __init__(self, description: tuple[str, str, bool]) -> None:
        self.hangs = self.killed = False
        self.describe = SimulatedMethod(self, description)
        self.poll = SimulatedMethod(self, {})
        self.start = SimulatedMethod(self, 1)


class SimulatedCluster:
    """Stands for the module ray. agents: all that were created, in order. description: that of new agents."""

    exceptions = SimpleNamespace(RayError=RuntimeError, GetTimeoutError=TimeoutError)

    def __init__(self) -> None:
        self.agents: list[SimulatedAgent] = []
        self.description = USABLE
        self.util = SimpleNamespace(
            get_node_ip_address=lambda: "127.0.0.1",
            placement_group=lambda bundles, strategy: SimpleNamespace(wait=lambda seconds: True),
            remove_placement_group=lambda group: None,
        )

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 2.0}}]

    def remote(self, kind: type) -> Any:
        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=self._create))

    def _create(self, *arguments: Any) -> SimulatedAgent:
        self.agents.append(SimulatedAgent(self.description))
        return self.agents[-1]

    def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        done = [reference for reference in references if not reference[0].hangs]
        return done, [reference for reference in references if reference[0].hangs]

    def get(self, reference: tuple[SimulatedAgent, Any], timeout: float = 0.0) -> Any:
        return reference[1]

    def kill(self, agent: SimulatedAgent) -> None:
        agent.killed = True


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which the test sets."""
    now = [0.0]
    for module in (launchers, remote_rank):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_an_agent_that_hangs_is_lost_and_replaced(tmp_path: Path, now_s: list[float]) -> None:
    cluster = SimulatedCluster()

    def next_change() -> tuple[int, bool, str]:
        while not (changes := launcher.poll()):
            now_s[0] += 1.0
            assert now_s[0] < 300.0
        (change,) = changes
        return change.unit, change.usable, change.text

    with launchers.ray_launcher(cluster, UNITS, tmp_path) as launcher:
        for _ in range(100):  # agents that answer are not lost
            now_s[0] += 1.0
            assert launcher.poll() == []
        hanging = cluster.agents[1]
        hanging.hangs = True
        reason = "its process on the host did not answer for 60 s"
        assert next_change() == (1, False, f"unit 1 (cpu:1 on host) was lost: {reason}")
        assert now_s[0] >= 160.0
        assert list(launcher.usable) == [True, False]
        assert hanging.killed
        assert next_change() == (1, True, "unit 1 (cpu:1 on host) can be used again")
        assert list(launcher.usable) == [True, True]
        assert len(cluster.agents) == 3
    assert all(agent.killed for agent in cluster.agents)


@pytest.mark.parametrize(
    ("description", "problem"),
    [
        (("host", "0.0.1", True), f"host host has multi_dnn_ros 0.0.1, this command {__version__}"),
        (("host", __version__, False), "host host does not see the folder {folder}; --folder must be on a file system"),
    ],
)
def test_a_host_that_cannot_run_ranks_is_refused_at_the_start_and_when_it_returns(
    description: tuple[str, str, bool], problem: str, tmp_path: Path, now_s: list[float]
) -> None:
    cluster, problem = SimulatedCluster(), problem.format(folder=tmp_path)
    cluster.description = description
    with pytest.raises(CommandError, match=re.escape(f"unit 0 (cpu:1) cannot be used: {problem}")):
        launchers.RayLauncher(cluster, UNITS, tmp_path)
    assert all(agent.killed for agent in cluster.agents)
    assert not list(tmp_path.iterdir())

    def changes_of(seconds: int) -> list[tuple[int, bool]]:
        found: list[tuple[int, bool]] = []
        for _ in range(seconds):
            now_s[0] += 1.0
            for change in launcher.poll():
                found.append((change.unit, change.usable))
                lines.append(change.text)
        return found

    lines: list[str] = []
    cluster.description = USABLE
    with launchers.ray_launcher(cluster, UNITS, tmp_path) as launcher:
        cluster.agents[-2].hangs = True
        cluster.description = description
        assert changes_of(100) == [(0, False), (0, False)]  # lost, and refused again and again, which is reported once
        assert problem in lines[-1]
        assert list(launcher.usable) == [False, True]
        cluster.description = USABLE
        assert changes_of(20) == [(0, True)]
    assert all(agent.killed for agent in cluster.agents)


@pytest.mark.parametrize("ends", [True, False])
def test_a_rank_without_a_connection_has_failed_only_if_its_process_runs(
    ends: bool, job: FleetJob, tmp_path: Path, now_s: list[float]
) -> None:
    """A rank that had no share in the last steps ends while the job is scored. Its agent is busy with another rank."""
    cluster = SimulatedCluster()
    keys: list[RankKey] = []

    def messages_of(seconds: int) -> list[Message]:
        found: list[Message] = []
        for _ in range(seconds):
            now_s[0] += 1.0
            assert launcher.poll() == []
            found += rank.receive()
        return found

    with launchers.ray_launcher(cluster, UNITS, tmp_path) as launcher:
        cluster.agents[0].start = SimulatedMethod(cluster.agents[0], 1, lambda key, *given: keys.append(key))
        rank = launcher.start(job, 0, tmp_path, "a/1", main)
        assert isinstance(rank, remote_rank.RemoteRank)
        supervisor_end, rank_end = Pipe()
        rank.connected(supervisor_end)
        assert messages_of(3) == []
        rank_end.close()
        cluster.agents[0].hangs = True
        assert messages_of(30) == []
        assert rank.awaits_ending
        cluster.agents[0].hangs = False
        if ends:
            cluster.agents[0].poll = SimulatedMethod(cluster.agents[0], {keys[0]: 0})
        failed = [] if ends else [Failed("closed its connection", False, False)]
        assert messages_of(20) == failed
        assert not rank.awaits_ending


def test_an_answer_about_a_rank_is_not_taken_for_one_about_the_next_rank_of_the_job(
    job: FleetJob, tmp_path: Path, now_s: list[float]
) -> None:
    """The job has started the rank again on the same unit; then the agent reports the end of the first one."""
    cluster = SimulatedCluster()
    keys: list[RankKey] = []
    with launchers.ray_launcher(cluster, UNITS, tmp_path) as launcher:
        cluster.agents[0].start = SimulatedMethod(cluster.agents[0], 1, lambda key, *given: keys.append(key))
        first, second = (launcher.start(job, 0, tmp_path, "a/1", main) for _ in range(2))
        cluster.agents[0].poll = SimulatedMethod(cluster.agents[0], {keys[0]: -9})
        for _ in range(5):
            now_s[0] += 1.0
            launcher.poll()
        assert (first.alive(), second.alive()) == (False, True)


def test_a_rank_that_connects_before_its_start_has_returned_is_kept(job: FleetJob, tmp_path: Path) -> None:
    cluster = SimulatedCluster()
    connections: list[Connection[Any, Any]] = []

    def connected(key: RankKey, setup: Any, supervision: Supervision, rank_main: Any) -> None:
        connections.append(connect(supervision.address, supervision.secret, key))
        assert not connections[0].poll(0.5)  # not closed

    with launchers.ray_launcher(cluster, UNITS, tmp_path) as launcher:
        cluster.agents[1].start = SimulatedMethod(cluster.agents[1], 1, connected)
        rank = launcher.start(job, 1, tmp_path, "a/1", main)
        rank.send(Command(1, (0, 10)))
        assert connections[0].recv() == Command(1, (0, 10))
    connections[0].close()
