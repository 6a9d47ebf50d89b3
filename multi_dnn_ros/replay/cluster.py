"""Replays many recordings on a Ray cluster, one task per recording."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multi_dnn_ros import __version__
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.replay.manifest import Entry, Recording

#: Value of --cluster for processes of this machine alone.
LOCAL = "local"
_CONNECT_S = 5.0


#: (recording, folder of its results, options of ``multi-dnn replay``, version of this package) -> the fields of Entry,
#: without `input`.
ReplayOne = Callable[[str, str, list[str], str], dict[str, Any]]


@dataclass(frozen=True)
class Needs:
    """What one replay needs. cpus: cores. gpus: GPUs, or a part of one. retries: after a process or host was lost."""

    cpus: float
    gpus: float
    retries: int


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """The module ray, connected to a cluster. address: `local`, `auto`, or HOST:PORT.

    Raises MissingExtra without ray, CommandError for a cluster that cannot be reached.
    """
    with optional("--cluster"):
        import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    _check_address(address)
    try:
        ray.init(
            address=address, log_to_driver=False, logging_level=logging.ERROR,
            include_dashboard=False if address == LOCAL else None,
        )  # fmt: skip
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CommandError(f"the Ray cluster {address} cannot be reached: {first}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Raise CommandError unless something listens at HOST:PORT; ray itself tries for minutes."""
    if address in (LOCAL, "auto"):
        return
    host, separator, port = address.rpartition(":")
    if not (separator and host and port.isdigit()):
        raise UsageError(f"--cluster is '{address}'; expected HOST:PORT, auto, or nothing")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise CommandError(f"the Ray cluster {address} cannot be reached: {error}") from None


def replay_all(
    ray: Any,
    recordings: Sequence[Recording],
    output: Path,
    options: Sequence[str],
    needs: Needs,
    settled: Callable[[Recording, Entry], None],
    replay_one: ReplayOne,
) -> None:
    """Replay each recording into a folder of its name below `output`.

    settled: called for each as it ends, in any order. replay_one: runs in a process of the cluster, which imports its
    module. A recording that fails does not stop the others. Raises CommandError if no host of the cluster has what one
    replay needs.
    """
    _check(ray, needs)
    task = ray.remote(num_cpus=needs.cpus, num_gpus=needs.gpus, max_calls=1, max_retries=needs.retries)(replay_one)
    waiting = {
        task.remote(str(recording.path), str(output / recording.name), list(options), __version__): recording
        for recording in recordings
    }
    while waiting:
        ended, _ = ray.wait(list(waiting), num_returns=1)
        for reference in ended:
            recording = waiting.pop(reference)
            try:
                entry = Entry(input=recording.state(), **ray.get(reference))
            except ray.exceptions.RayError as error:
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                reason = f"{type(error).__name__}: {lines[0] if lines else ''}"
                entry = Entry(status="failed", input=recording.state(), message=reason)
            settled(recording, entry)


def _check(ray: Any, needs: Needs) -> None:
    hosts = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(host.get("CPU", 0) >= needs.cpus and host.get("GPU", 0) >= needs.gpus for host in hosts):
        there = "; ".join(f"{host.get('CPU', 0):g} CPUs, {host.get('GPU', 0):g} GPUs" for host in hosts) or "none"
        raise CommandError(
            f"no host of the cluster has the {needs.cpus:g} CPUs and {needs.gpus:g} GPUs of one replay; hosts: {there}"
        )
