"""The resources that a fleet requests from a Ray cluster: one bundle of a placement group per unit. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.planning.batch_units import Unit, parse_unit

#: Resources of a bundle, or of a host.
Resources = Mapping[str, float]
#: PACK: as few hosts as possible, because gradients cross the network between hosts. Where one host is too small, the
#: group spreads over several, which STRICT_PACK would refuse; SPREAD would cross the network without need.
STRATEGY = "PACK"


def bundles(units: Sequence[Unit]) -> list[dict[str, float]]:
    """The resources of each unit: a GPU with one core, or as many cores as the unit has threads.

    Raises UsageError for a CPU unit without a number of threads.
    """
    requested = []
    for unit in units:
        if unit.device.startswith("cuda"):
            requested.append({"CPU": 1.0, "GPU": 1.0})
        elif unit.threads:
            requested.append({"CPU": float(unit.threads)})
        else:
            raise UsageError(f"unit '{unit.name}': a cluster needs the number of threads, such as cpu:4")
    return requested


def units_of(hosts: Sequence[Resources]) -> tuple[Unit, ...]:
    """Every GPU of the hosts that also has a core; without GPUs, one unit per host with all of its cores.

    Raises CommandError if there are none.
    """
    gpus = sum(int(min(host.get("GPU", 0), host.get("CPU", 0))) for host in hosts)
    cores = [int(host.get("CPU", 0)) for host in hosts]
    names = [f"cuda:{k}" for k in range(gpus)] or [f"cpu:{count}" for count in cores if count]
    if not names:
        raise CommandError(f"the cluster has neither GPUs nor CPUs; hosts: {_listed(hosts)}")
    return tuple(parse_unit(name) for name in names)


def check_room(requested: Sequence[Resources], hosts: Sequence[Resources]) -> None:
    """Raise CommandError if the hosts are too small for all bundles, each of which must fit on one host.

    For each size of a bundle, the hosts must hold as many of this size as there are bundles at least as large. If all
    bundles are equal, this is exact; otherwise Ray may still find no placement.
    """
    for bundle in requested:
        needed = sum(all(other.get(name, 0.0) >= amount for name, amount in bundle.items()) for other in requested)
        room = sum(min(int(host.get(name, 0.0) // amount) for name, amount in bundle.items()) for host in hosts)
        if room < needed:
            raise CommandError(
                f"the cluster has fewer resources than the {len(requested)} units need: no host has "
                f"{_described(bundle)} left for one of them; hosts: {_listed(hosts)}; name fewer or smaller --units"
            )


def _described(resources: Resources) -> str:
    amounts = {name: resources[name] for name in ("CPU", "GPU") if name in resources}
    return " and ".join(f"{amount:g} {name}{'' if amount == 1 else 's'}" for name, amount in amounts.items()) or "none"


def _listed(hosts: Sequence[Resources]) -> str:
    return "; ".join(_described(host) for host in hosts) or "none"
