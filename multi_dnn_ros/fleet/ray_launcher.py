"""Starts ranks on the hosts of a Ray cluster: one bundle of a placement group, with an agent in it, per unit."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

from multi_dnn_ros import __version__
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.ray_cluster import alive_hosts, ray_reason
from multi_dnn_ros.fleet.cluster_units import STRATEGY, bundles, check_room
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.launcher import RankHandle, RankMain, UnitChange
from multi_dnn_ros.fleet.rank_links import RankKey, RankListener
from multi_dnn_ros.fleet.rank_process import RankSetup
from multi_dnn_ros.fleet.remote_rank import RemoteRank
from multi_dnn_ros.fleet.unit_agent import Supervision, UnitAgent
from multi_dnn_ros.planning.batch_units import Unit

#: Longest wait for resources that others use, for the agents to start, and for an answer of an agent.
_PLACE_S, _AGENT_S, _ANSWER_S = 30.0, 60.0, 2.0
_POLL_S, _RETRY_S = 0.25, 5.0
#: An agent without an answer for this long hangs. Starting a rank imports PyTorch; ending ranks waits for each of them.
_HUNG_S = 60.0


class _Agent:
    """The agent of a unit. host: empty until it has described itself. problem: why it was refused after a loss.
    request: the call that is under way.
    """

    def __init__(self) -> None:
        self.actor: Any = None
        self.host = ""
        self.lost = False
        self.problem = ""
        self.request: Any = None
        self.asked_at = 0.0
        self.ranks: dict[RankKey, RemoteRank] = {}


class RayLauncher:
    """Create with :func:`ray_launcher`."""

    def __init__(self, ray: Any, units: Sequence[Unit], folder: Path) -> None:
        """folder: the fleet's, on a file system that all hosts share.

        Raises CommandError if the cluster has too few resources, or a host cannot run ranks.
        """
        self._ray = ray
        self.units = tuple(units)
        self._host = str(ray.util.get_node_ip_address())
        self._agents = [_Agent() for _ in units]
        self._changes: list[UnitChange] = []
        self._use = [0.0] * len(units)
        self._starts = itertools.count(1)
        self._starting = threading.Lock()  # a rank may connect, in a thread, before its start has returned here
        folder.mkdir(parents=True, exist_ok=True)
        self._token = folder / f".fleet-{secrets.token_hex(8)}"
        self._token.touch()
        self._supervision = Supervision(("", 0), secrets.token_bytes(32))
        self._listener: RankListener | None = None
        self._group: Any = None
        try:
            self._group = self._reserve()
            self._begin_agents(folder)
            self._listener = RankListener(self._host, self._supervision.secret, self._connected)
            self._supervision = Supervision(self._listener.address, self._supervision.secret)
            self._store = TCPStore(self._host, 0, is_master=True, wait_for_workers=False)
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> Sequence[str]:
        return [f"{unit.name} on {agent.host}" for unit, agent in zip(self.units, self._agents, strict=True)]

    @property
    def usable(self) -> Sequence[bool]:
        return [not agent.lost for agent in self._agents]

    def close(self) -> None:
        """End all agents with their ranks, and free the placement group."""
        if self._listener is not None:
            self._listener.close()
        for agent in self._agents:
            for rank in agent.ranks.values():
                rank.close()
            if agent.actor is not None:
                with suppress(self._ray.exceptions.RayError):  # the others are ended all the same
                    self._ray.kill(agent.actor)
        if self._group is not None:
            with suppress(self._ray.exceptions.RayError):
                self._ray.util.remove_placement_group(self._group)
        with suppress(OSError):  # the file system may be what failed
            self._token.unlink(missing_ok=True)

    def start(self, job: FleetJob, unit: int, folder: Path, prefix: str, rank_main: RankMain) -> RankHandle:
        # A job may start a rank again on the same unit: the answers about the two must differ.
        agent, key = self._agents[unit], (f"{prefix}/{next(self._starts)}", unit)
        setup = RankSetup(job, unit, self.units[unit], folder.absolute(), self._host, self._store.port, prefix)
        agent.ranks = {known: rank for known, rank in agent.ranks.items() if rank.alive()}
        with self._starting:
            started = agent.actor.start.remote(key, setup, self._supervision, rank_main)
            rank = agent.ranks[key] = RemoteRank(self._ray, agent.actor, started, key)
        return rank

    def poll(self) -> list[UnitChange]:
        for unit, agent in enumerate(self._agents):
            self._poll(unit, agent)
        changes, self._changes = self._changes, []
        return changes

    def take_use(self) -> list[float]:
        requests = {agent.actor.take_use.remote(): unit for unit, agent in enumerate(self._agents) if not agent.lost}
        done, _ = self._ray.wait(list(requests), num_returns=len(requests), timeout=_ANSWER_S) if requests else ([], [])
        use = list(self._use)
        for reference in done:
            try:
                use[requests[reference]] = float(self._ray.get(reference))
            except self._ray.exceptions.RayError:
                use[requests[reference]] = 0.0
        self._use = use  # a unit whose agent did not answer in time keeps its value
        return use

    # The cluster

    def _reserve(self) -> Any:
        requested = bundles(self.units)
        check_room(requested, alive_hosts(self._ray))
        group = self._ray.util.placement_group(requested, strategy=STRATEGY)
        if not group.wait(_PLACE_S):
            self._ray.util.remove_placement_group(group)
            free = self._ray.available_resources()
            raise CommandError(
                f"the cluster did not have {len(requested)} units free within {_PLACE_S:g} s; free in total: "
                f"{free.get('CPU', 0):g} CPUs, {free.get('GPU', 0):g} GPUs; wait for other jobs, or name fewer --units"
            )
        return group

    def _begin_agents(self, folder: Path) -> None:
        described = [self._new_agent(unit) for unit in range(len(self.units))]
        deadline = time.monotonic() + _AGENT_S
        for unit, (agent, reference) in enumerate(zip(self._agents, described, strict=True)):
            name = f"unit {unit} ({self.units[unit].name})"
            try:
                problem = self._accept(
                    agent, self._ray.get(reference, timeout=max(1.0, deadline - time.monotonic())), folder
                )
            except self._ray.exceptions.GetTimeoutError:
                raise CommandError(
                    f"{name} cannot be used: its process did not answer within {_AGENT_S:g} s of its start"
                ) from None
            except self._ray.exceptions.RayError as error:
                raise CommandError(f"{name} cannot be used: {ray_reason(error)}") from error
            if problem:
                raise CommandError(f"{name} cannot be used: {problem}")

    def _new_agent(self, unit: int) -> Any:
        """Create the agent of a unit. Returns the reference to its description."""
        with optional("fleet --cluster"):
            from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = bundles(self.units)[unit]
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=unit)
        kind = self._ray.remote(UnitAgent).options(
            num_cpus=bundle["CPU"], num_gpus=bundle.get("GPU", 0), scheduling_strategy=strategy, max_restarts=0
        )
        agent = self._agents[unit]
        agent.actor = kind.remote(self.units[unit])
        return agent.actor.describe.remote(self._token)

    def _accept(self, agent: _Agent, description: tuple[str, str, bool], folder: Path) -> str:
        """Why the host of an agent cannot be used; empty if it can."""
        agent.host, version, shared = description
        if version != __version__:
            return f"host {agent.host} has multi_dnn_ros {version}, this command {__version__}"
        if not shared:
            return (
                f"host {agent.host} does not see the folder {folder}; --folder must be on a file system that all hosts "
                "share"
            )
        return ""

    def _connected(self, key: RankKey, connection: Connection[Any, Any]) -> None:
        with self._starting:
            rank = self._agents[key[1]].ranks.get(key)
        if rank is None:
            connection.close()
        else:
            rank.connected(connection)

    # Agents that are lost and return

    def _poll(self, unit: int, agent: _Agent) -> None:
        """Handle the answer to the last request, or send the next request."""
        now = time.monotonic()
        if agent.request is None:
            if now - agent.asked_at >= (_RETRY_S if agent.lost else _POLL_S):
                agent.asked_at = now
                agent.request = self._new_agent(unit) if agent.lost else agent.actor.poll.remote()
            return
        # A new agent of a lost unit may wait for its host for as long as that takes.
        overdue = not agent.lost and now - agent.asked_at >= _HUNG_S
        # If this command itself was suspended, the answer has arrived, but may not have been read yet.
        done, _ = self._ray.wait([agent.request], timeout=_ANSWER_S if overdue else 0)
        if not done and not overdue:
            return
        request, agent.request = agent.request, None
        if not done:
            self._lose(unit, agent, f"its process on the host did not answer for {_HUNG_S:g} s")
            return
        try:
            answer = self._ray.get(request)
        except self._ray.exceptions.RayError as error:
            if not agent.lost:
                self._lose(unit, agent, ray_reason(error))
            elif getattr(error, "actor_init_failed", False):
                self._refuse(unit, agent, ray_reason(error))
            return
        if agent.lost:
            problem = self._accept(agent, answer, self._token.parent)
            if problem:
                self._refuse(unit, agent, problem)
                return
            agent.lost, agent.problem = False, ""
            self._changes.append(UnitChange(unit, True, f"unit {unit} ({self.names[unit]}) can be used again"))
            return
        for key, code in answer.items():
            if key in agent.ranks:
                agent.ranks.pop(key).exit_code = code
        for rank in agent.ranks.values():
            rank.seen_running(agent.asked_at)

    def _refuse(self, unit: int, agent: _Agent, problem: str) -> None:
        """Leave the unit lost; it is tried again. The same problem is reported once."""
        self._ray.kill(agent.actor)
        if problem != agent.problem:
            text = f"unit {unit} ({self.names[unit]}) cannot be used again: {problem}"
            self._changes.append(UnitChange(unit, False, text))
            agent.problem = problem

    def _lose(self, unit: int, agent: _Agent, why: str) -> None:
        self._changes.append(UnitChange(unit, False, f"unit {unit} ({self.names[unit]}) was lost: {why}"))
        agent.lost = True
        self._ray.kill(agent.actor)  # if only its connection failed, it would keep the bundle
        for rank in agent.ranks.values():
            rank.close()  # a rank that is still running ends
        agent.ranks.clear()


@contextmanager
def ray_launcher(ray: Any, units: Sequence[Unit], folder: Path) -> Iterator[RayLauncher]:
    """A launcher that frees the cluster's resources at the end."""
    launcher = RayLauncher(ray, units, folder)
    try:
        yield launcher
    finally:
        launcher.close()
