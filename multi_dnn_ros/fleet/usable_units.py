"""Decisions about the usable units while others are lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from multi_dnn_ros.fleet.shares import Allocation, Shares
from multi_dnn_ros.fleet.sharing import Decision, Expect, Sharing

_Number = TypeVar("_Number", int, float)


def usable_limits(limits: Shares, usable: Sequence[bool]) -> Shares:
    """The limits (tenths per unit), 0 for units that cannot be used."""
    return tuple(limit if can else 0 for limit, can in zip(limits, usable, strict=True))


def decide_for_usable(
    sharing: Sharing,
    usable: Sequence[bool],
    allocation: Mapping[str, Shares],
    slow_downs: Mapping[str, float],
    use: Sequence[float],
    limits: Mapping[str, Shares],
    remaining: Mapping[str, float] | None = None,
    *,
    expect: Expect | None = None,
    work: Mapping[str, float] | None = None,
) -> Decision:
    """:meth:`Sharing.decide` as if only the usable units existed. The others have no shares, and get none."""
    units = [unit for unit, can in enumerate(usable) if can]

    def chosen(values: Sequence[_Number]) -> tuple[_Number, ...]:
        return tuple(values[unit] for unit in units)

    def spread(shares: Shares) -> Shares:
        given = dict(zip(units, shares, strict=True))
        return tuple(given.get(unit, 0) for unit in range(len(usable)))

    def expect_spread(allocation: Allocation) -> Mapping[str, float]:
        assert expect is not None
        return expect({job: spread(shares) for job, shares in allocation.items()})

    decision = sharing.decide(
        {job: chosen(shares) for job, shares in allocation.items()},
        slow_downs,
        chosen(use),
        {job: chosen(tenths) for job, tenths in limits.items()},
        remaining,
        expect=None if expect is None else expect_spread,
        work=work,
    )
    return replace(decision, allocation={job: spread(shares) for job, shares in decision.allocation.items()})
