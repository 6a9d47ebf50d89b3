"""Groups of operations that stay on one stream, so that few operations wait for another stream.

A group is a set of operations between which no operation outside lies, so that the groups form a graph without cycles,
too. Everything here is a pure function of operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from multi_dnn_ros.graph.branches import DeviceOperation, branches, readers

Groups = tuple[tuple[str, ...], ...]


def group_operations(operations: Sequence[DeviceOperation], limit_s: float) -> Groups:
    """The operations as groups: the heads of an attention layer, for example, or the branches of an Inception block.

    limit_s: largest duration of a group that has branches itself. Such a group consists of an operation and everything
    that is computed only for it, that is, of the operations that it post-dominates (Ferrante, Ottenstein and Warren
    1987). Groups that follow each other without a fork or a join are then combined, whatever their duration: with
    limit_s = 0 the groups are those of branches(). Each group, and the groups, are in an order that respects all
    dependencies.
    """
    cones = _members(operations, _cones(operations, limit_s))
    inner = dict(cones)
    runs = branches(combine(operations, tuple(cones.values())))
    combined = {run[-1]: tuple(name for cone in run for name in inner[cone]) for run in runs}
    return _in_order(operations, tuple(combined.values()))


def combine(operations: Sequence[DeviceOperation], groups: Groups) -> tuple[DeviceOperation, ...]:
    """One operation for each group, with its name from the last of them and the sum of the costs.

    groups: from group_operations(), in their order.
    """
    name_of = {name: group[-1] for group in groups for name in group}
    by_name = {operation.name: operation for operation in operations}
    combined = []
    for group in groups:
        sources = dict.fromkeys(name_of[source] for name in group for source in by_name[name].sources)
        sources.pop(group[-1], None)
        combined.append(DeviceOperation(group[-1], tuple(sources), sum(by_name[name].cost_s for name in group)))
    return tuple(combined)


def _members(operations: Sequence[DeviceOperation], last_of: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Groups by the name of their last operation. last_of: this name for each operation."""
    found: dict[str, list[str]] = {}
    for operation in operations:
        found.setdefault(last_of[operation.name], []).append(operation.name)
    groups = _in_order(operations, tuple(map(tuple, found.values())))
    return {group[-1]: group for group in groups}


def _in_order(operations: Sequence[DeviceOperation], groups: Groups) -> Groups:
    """The groups in the order of their last operations: all that a group reads is computed before its last operation,
    by groups whose own last operation is before that."""
    position = {operation.name: index for index, operation in enumerate(operations)}
    return tuple(sorted(groups, key=lambda group: position[group[-1]]))


def _cones(operations: Sequence[DeviceOperation], limit_s: float) -> dict[str, str]:
    """For each operation the last one of its group: the one after it that post-dominates most within the limit."""
    parent = _post_dominators(operations)
    total_s = dict.fromkeys(parent, 0.0)
    for operation in operations:  # what an operation post-dominates comes before it
        total_s[operation.name] += operation.cost_s
        above = parent[operation.name]
        if above is not None:
            total_s[above] += total_s[operation.name]
    last_of: dict[str, str] = {}
    for operation in reversed(operations):
        above = parent[operation.name]
        stays = above is not None and total_s[above] <= limit_s
        last_of[operation.name] = last_of[above] if stays and above is not None else operation.name
    return last_of


def _post_dominators(operations: Sequence[DeviceOperation]) -> dict[str, str | None]:
    """For each operation the first one through which all chains from it to the end lead; None: they only share the end.

    Method: the nearest common ancestor of its readers in the tree of what is found so far (Cooper, Harvey and Kennedy
    2001); one pass suffices without cycles.
    """
    after = readers(operations)
    parent: dict[str, str | None] = {}
    depth: dict[str | None, int] = {None: 0}

    def common(left: str | None, right: str | None) -> str | None:
        while left != right:
            if left is not None and depth[left] >= depth[right]:
                left = parent[left]
            elif right is not None:
                right = parent[right]
        return left

    for operation in reversed(operations):
        names: tuple[str | None, ...] = after[operation.name] or (None,)
        above = reduce(common, names)
        parent[operation.name] = above
        depth[operation.name] = depth[above] + 1
    return parent
