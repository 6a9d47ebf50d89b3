"""An actor of a Ray cluster on one unit: starts the ranks there, reports when they end, measures the unit's use."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from multi_dnn_ros import __version__
from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.fleet.forked_process import EndedProcesses, ForkedProcess
from multi_dnn_ros.fleet.launcher import RankMain
from multi_dnn_ros.fleet.local_launcher import process_context, start_process
from multi_dnn_ros.fleet.rank_links import RankKey, connect, interface_of
from multi_dnn_ros.fleet.rank_process import RankSetup, redirect_output
from multi_dnn_ros.fleet.unit_use import UnitUse
from multi_dnn_ros.planning.batch_units import Unit

#: Longest time from the kill of a rank to its end.
_KILL_S = 5.0


@dataclass(frozen=True)
class Supervision:
    """How ranks reach the supervisor: address of its listener, and the secret of the fleet."""

    address: tuple[str, int]
    secret: bytes


class UnitAgent:
    """Holds the resources of the unit's bundle. It has no connection of its own: ranks connect to the supervisor."""

    def __init__(self, unit: Unit) -> None:
        with optional("fleet --cluster"):
            import ray

        # Otherwise ranks would import the main module of this process, Ray's worker, which takes seconds.
        vars(sys.modules["__main__"]).pop("__file__", None)
        # Ray shows this process and its children one GPU, whatever number it has on the host.
        self._unit = replace(unit, device="cuda:0") if unit.device.startswith("cuda") else unit
        self._interface = interface_of(str(ray.util.get_node_ip_address()))  # type: ignore[no-untyped-call]
        self._use = UnitUse((self._unit,))
        self._ranks: dict[RankKey, ForkedProcess] = {}
        self._ended = EndedProcesses()

    def describe(self, token: Path) -> tuple[str, str, bool]:
        """(name of the host, version of this package, whether the host sees the file `token`)."""
        return socket.gethostname(), __version__, token.is_file()

    def start(self, key: RankKey, setup: RankSetup, supervision: Supervision, rank_main: RankMain) -> int:
        """Start a rank. Returns its process id."""
        setup = replace(setup, unit=self._unit)
        process: Any = process_context().Process(
            target=remote_main, args=(setup, key, supervision, self._interface, rank_main)
        )  # no daemon, as in LocalRank
        start_process(process)
        self._ranks[key] = ForkedProcess(process)
        return self._ranks[key].pid

    def poll(self) -> dict[RankKey, int]:
        """Exit codes of the ranks that have ended since the last call. Samples the use."""
        ended = {key: code for key, process in self._ranks.items() if (code := process.exit_code) is not None}
        self._ended.add(self._ranks.pop(key) for key in ended)
        self._ended.release()
        self._use.sample([[process.pid for process in self._ranks.values()]])
        return ended

    def take_use(self) -> float:
        """Use 0..1 of the unit since the last call."""
        return self._use.take()[0]

    def end(self, key: RankKey, timeout_s: float) -> None:
        """Wait for a rank to end by itself; kill it after the timeout."""
        process = self._ranks.pop(key, None)
        if process is None:
            return
        process.join(timeout_s)
        process.kill()
        process.join(_KILL_S)
        self._ended.add([process])


def remote_main(
    setup: RankSetup, key: RankKey, supervision: Supervision, interface: str | None, rank_main: RankMain
) -> None:
    """The process of a rank on a host of a cluster."""
    redirect_output(setup)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    try:
        connection = connect(supervision.address, supervision.secret, key)
    except Exception:
        traceback.print_exc()
        host, port = supervision.address
        sys.exit(f"the supervisor of the fleet cannot be reached at {host}:{port}")
    rank_main(setup, connection)
