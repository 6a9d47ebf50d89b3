"""The interpreter's thread switch interval."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

#: Seconds. Python's default, 5 ms, is longer than a job. With the three small DNNs on two cores and a camera of
#: 1280x720 at 10 Hz, this reduces the end-to-end p95 by a twentieth; on a GPU eight VGG16 as one batch are 5 % faster.
_SWITCH_INTERVAL_S = 0.0005


@contextlib.contextmanager
def short_switch_interval() -> Iterator[None]:
    """Context with a short thread switch interval for all threads of the process."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
