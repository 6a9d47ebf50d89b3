"""The units of a fleet, and the Ray cluster that lends them: one bundle of a placement group per unit."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from multi_dnn_ros.common.errors import CommandError, UsageError, summarize_error
from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.resources import cpu_count

#: Value of --cluster for processes on this machine only.
LOCAL = "local"
_CONNECT_S = 5.0
#: Longest wait for units that other programs of a cluster use.
_PLACE_S = 30.0
#: Part of a GPU that Ray counts for a process. Which process uses the GPU is decided here; Ray only has to give it one.
_GPU_PART = 0.001


@dataclass(frozen=True)
class UnitPool:
    """Units that a Ray cluster has reserved. count: how many. threads: of each CPU unit; 0: they are GPUs."""

    ray: Any
    count: int
    threads: int
    group: Any

    @property
    def kind(self) -> str:
        """What each unit is."""
        return f"CPU with {self.threads} threads" if self.threads else "GPU"

    def start(self, unit: int, actor: type, *arguments: Any) -> Any:
        """Start an actor of a class on a unit; others may be there. Ray finds the host, also after a loss of hosts."""
        strategies = self.ray.util.scheduling_strategies
        options = {
            "scheduling_strategy": strategies.PlacementGroupSchedulingStrategy(self.group, unit),
            "num_cpus": 0, "num_gpus": 0 if self.threads else _GPU_PART,
        }  # fmt: skip
        return self.ray.remote(actor).options(**options).remote(*arguments)


@contextmanager
def reserved_units(address: str, count: int | None, threads: int | None) -> Iterator[UnitPool]:
    """Reserve units in a Ray cluster. address: as for :func:`connected`. count: how many; None for all GPUs, or two CPU
    units. threads: of each CPU unit; None for GPUs or, if there are none, for all cores divided by the units.

    Raises CommandError if the cluster does not have them, and like :func:`connected`.
    """
    # CPU units may have more threads than this machine has cores.
    with connected(address, max(cpu_count(), (count or 2) * (threads or 1))) as ray:
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0))
        if threads is None:
            threads = 0 if gpus else max(1, int(resources["CPU"]) // (count or 2))
        count = count or (2 if threads else gpus)
        bundle = {"CPU": float(threads)} if threads else {"CPU": 1.0, "GPU": 1.0}
        # As few hosts as possible, because the gradients of a job on several units cross the network between hosts.
        pool = UnitPool(ray, count, threads, ray.util.placement_group([bundle] * count, strategy="PACK"))
        if not pool.group.wait(_PLACE_S):
            raise CommandError(
                f"{count} units ({pool.kind}) were not free within {_PLACE_S:g} s: see `ray status`; wait for other "
                "programs, or request fewer --units"
            )
        yield pool


@contextmanager
def connected(address: str, local_cores: int | None = None) -> Iterator[Any]:
    """The module ray, connected to a cluster. address: `local`, `auto`, or HOST:PORT. local_cores: cores that a local
    cluster counts; None: those of this machine.

    Raises MissingExtra without ray, UsageError for another form of address, CommandError for a cluster that cannot be
    reached.
    """
    with optional("--cluster"):
        import ray

    local, before = address == LOCAL, dict(os.environ)
    if not local and address != "auto":
        host, separator, port = address.rpartition(":")
        if not (separator and host and port.isdigit()):
            raise UsageError(f"--cluster is '{address}'; expected HOST:PORT, auto, {LOCAL}, or nothing")
        try:  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
        except (OSError, OverflowError) as error:
            raise CommandError(f"the Ray cluster {address} cannot be reached: {error}") from None
    if local:
        # Its dashboard would ask metadata services of clouds (Ray 2.60, UsageStatsHead.run), by the library requests,
        # which a proxy that does not exist stops. Ray's own connections use no proxy.
        os.environ.update(http_proxy="http://127.0.0.1:9", no_proxy="")
    try:
        ray.init(
            address=address, log_to_driver=False, logging_level=logging.ERROR,
            include_dashboard=False if local else None, num_cpus=local_cores if local else None,
        )  # fmt: skip
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise CommandError(f"the Ray cluster {address} cannot be reached: {summarize_error(error)}") from error
    finally:
        os.environ.clear()
        os.environ.update(before)
    try:
        yield ray
    finally:
        ray.shutdown()
