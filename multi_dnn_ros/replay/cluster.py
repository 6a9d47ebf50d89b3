"""Replays many recordings on a Ray cluster, one task per recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multi_dnn_ros import __version__
from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.ray_cluster import alive_hosts, ray_reason
from multi_dnn_ros.replay.manifest import Entry, Recording

#: (recording, folder of its results, options of ``multi-dnn replay``, version of this package) -> the fields of Entry,
#: without `input`.
ReplayOne = Callable[[str, str, list[str], str], dict[str, Any]]


@dataclass(frozen=True)
class Needs:
    """What one replay needs. cpus: cores. gpus: GPUs, or a fraction of one. retries: how often it is repeated after the
    loss of a process or host.
    """

    cpus: float
    gpus: float
    retries: int


def replay_all(
    ray: Any,
    recordings: Sequence[Recording],
    output: Path,
    options: Sequence[str],
    needs: Needs,
    settled: Callable[[Recording, Entry], None],
    replay_one: ReplayOne,
) -> None:
    """Replay each recording into the folder with its name below `output`.

    settled: called for each recording when its replay has ended, in any order. replay_one: runs in a process of the
    cluster, which imports the module of this function. A recording that fails does not stop the others. Raises
    CommandError if no host of the cluster has what one replay needs.
    """
    _check(ray, needs)
    task = ray.remote(num_cpus=needs.cpus, num_gpus=needs.gpus, max_calls=1, max_retries=needs.retries)(replay_one)
    pending = {}
    for recording in recordings:
        state = recording.state()  # before the replay: a recording that changes meanwhile is replayed again next time
        reference = task.remote(str(recording.path), str(output / recording.name), list(options), __version__)
        pending[reference] = recording, state
    while pending:
        ended, _ = ray.wait(list(pending), num_returns=1)
        for reference in ended:
            recording, state = pending.pop(reference)
            try:
                entry = Entry(input=state, **ray.get(reference))
            except ray.exceptions.RayTaskError as error:
                entry = Entry(status="failed", input=state, message=ray_reason(error))
            except ray.exceptions.RayError as error:
                reason = f"{type(error).__name__}: {summarize_error(error)}"
                entry = Entry(status="failed", input=state, message=reason)
            settled(recording, entry)


def _check(ray: Any, needs: Needs) -> None:
    hosts = alive_hosts(ray)
    if not any(host.get("CPU", 0) >= needs.cpus and host.get("GPU", 0) >= needs.gpus for host in hosts):
        found = "; ".join(f"{host.get('CPU', 0):g} CPUs, {host.get('GPU', 0):g} GPUs" for host in hosts) or "none"
        raise CommandError(
            f"no host of the cluster has the {needs.cpus:g} CPUs and {needs.gpus:g} GPUs for one replay; hosts: {found}"
        )
