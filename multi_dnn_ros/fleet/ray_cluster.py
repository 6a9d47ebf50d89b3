"""Connects to a Ray cluster; used by the commands with an option --cluster."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from multi_dnn_ros.common.errors import CommandError, UsageError, summarize_error
from multi_dnn_ros.common.extras import optional

#: Value of --cluster for processes on this machine only.
LOCAL = "local"
_CONNECT_S = 5.0


@contextmanager
def connected(address: str, local_cores: int | None = None) -> Iterator[Any]:
    """The module ray, connected to a cluster. address: `local`, `auto`, or HOST:PORT. local_cores: cores that a local
    cluster counts; None: those of this machine.

    Raises MissingExtra without ray, UsageError for another form of address, CommandError for a cluster that cannot be
    reached.
    """
    with optional("--cluster"):
        import ray

    _check_address(address)
    local, before = address == LOCAL, dict(os.environ)
    if local:
        # Its dashboard would look for the metadata services of clouds, even without dashboard and usage reports (Ray
        # 2.60, UsageStatsHead.run). It uses the library requests, so a proxy that does not exist stops it; Ray's own
        # connections use no proxy.
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


def alive_hosts(ray: Any) -> list[dict[str, float]]:
    """The resources of each host of the cluster that is alive, such as {"CPU": 8.0, "GPU": 1.0}."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def ray_reason(error: BaseException) -> str:
    """The cause of an error of Ray: its last line. The lines before it name the call, or are a traceback."""
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__


def _check_address(address: str) -> None:
    """Raise UsageError for another form of address, CommandError if nothing accepts connections at HOST:PORT.

    Ray itself tries for minutes.
    """
    if address in (LOCAL, "auto"):
        return
    host, separator, port = address.rpartition(":")
    if not (separator and host and port.isdigit()):
        raise UsageError(f"--cluster is '{address}'; expected HOST:PORT, auto, {LOCAL}, or nothing")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise CommandError(f"the Ray cluster {address} cannot be reached: {error}") from None
