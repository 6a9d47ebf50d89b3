"""Which of the failures of a job's ranks is the cause of the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from multi_dnn_ros.fleet.job_processes import JobProcesses, wait_for_messages
from multi_dnn_ros.fleet.messages import Failed

#: Time for failures that follow at once, and longest time until it is known how the process of a rank has ended.
_GRACE_S, _CAUSE_S = 0.5, 5.0
_TICK_S = 0.02


def find_cause(
    processes: JobProcesses,
    failures: Sequence[tuple[int, Failed]],
    lost_units: Callable[[], Sequence[tuple[int, Failed]]],
) -> tuple[int, Failed]:
    """The rank that failed first, as far as is known, and its failure.

    The first known failure may only be the effect of a peer's end, whose cause may be known later. A lost unit explains
    all other failures. failures: by rank. lost_units: called about 50 times per second; returns the units that the job
    needs and that are lost.
    """
    found = list(failures)
    begin = time.monotonic()
    while True:
        lost = lost_units()
        explained = any(failure.unit_lost for _, failure in [*found, *lost]) or not processes.awaits_ending
        if time.monotonic() - begin >= (_GRACE_S if explained else _CAUSE_S):
            return max([*found, *lost], key=lambda each: _rank_of_cause(each[1]))
        wait_for_messages([processes], _TICK_S)
        found += [(rank, message) for rank, message in processes.receive() if isinstance(message, Failed)]


def _rank_of_cause(failure: Failed) -> tuple[bool, ...]:
    """Larger: explains the others."""
    return failure.unit_lost, failure.out_of_memory, "killed" in failure.text, failure.expected
