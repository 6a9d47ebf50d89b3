"""The launcher of a cluster, with a simulated cluster whose agents hang when a test says so."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from multi_dnn_ros import __version__
from multi_dnn_ros.fleet import ray_launcher as launchers
from multi_dnn_ros.planning.batch_units import parse_unit

UNITS = (parse_unit("cpu:1"),) * 2


class SimulatedMethod:
    """A method of an actor. A reference to its answer is the pair of both."""

    def __init__(self, agent: SimulatedAgent, answer: Any) -> None:
        self._reference = agent, answer

    def remote(self, *arguments: Any) -> tuple[SimulatedAgent, Any]:
        return self._reference


class SimulatedAgent:
    """hangs: its methods are not answered."""

    def __init__(self) -> None:
        self.hangs = self.killed = False
        self.describe = SimulatedMethod(self, ("host", __version__, True))
        self.poll = SimulatedMethod(self, {})


class SimulatedCluster:
    """Stands for the module ray. agents: all that were created, in order."""

    exceptions = SimpleNamespace(RayError=RuntimeError, GetTimeoutError=TimeoutError)

    def __init__(self) -> None:
        self.agents: list[SimulatedAgent] = []
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
        self.agents.append(SimulatedAgent())
        return self.agents[-1]

    def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        done = [reference for reference in references if not reference[0].hangs]
        return done, [reference for reference in references if reference[0].hangs]

    def get(self, reference: tuple[SimulatedAgent, Any], timeout: float = 0.0) -> Any:
        return reference[1]

    def kill(self, agent: SimulatedAgent) -> None:
        agent.killed = True


def test_an_agent_that_hangs_is_lost_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, now_s = SimulatedCluster(), [0.0]
    monkeypatch.setattr(launchers, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

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
