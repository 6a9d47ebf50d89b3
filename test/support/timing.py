"""Time limits of tests that run beside others."""

from __future__ import annotations

import os

#: A machine with a load average below this has run little but the test in the last minute.
_IDLE_LOAD = 1.5
#: What a test may take beside others, which keep all cores busy for seconds.
_SLOWER = 5.0


def at_most_s(limit: float) -> float:
    """The limit in seconds for a test that runs alone; five times that beside others.

    The load average does not know yet what has only just begun, such as the other workers of pytest.
    """
    alone = os.getloadavg()[0] < _IDLE_LOAD and "PYTEST_XDIST_WORKER" not in os.environ
    return limit if alone else _SLOWER * limit
