"""Time limits of tests that run beside others."""

from __future__ import annotations

import os

#: A machine with a load average below this runs little but the test.
_IDLE_LOAD = 1.5
#: What a test may take beside others, which keep all cores busy for seconds.
_SLOWER = 5.0


def at_most_s(limit: float) -> float:
    """The limit in seconds for a test that runs alone; five times that beside others."""
    return limit if os.getloadavg()[0] < _IDLE_LOAD else _SLOWER * limit
