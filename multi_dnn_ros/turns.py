"""How long a thread may compute in Python while others wait for their turn."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import torch

#: Seconds; Python's default of 5 ms is more than a job takes. With the three small DNNs on two cores and a camera of
#: 1280x720 at 10 Hz, half a millisecond takes a twentieth off p95 from end to end. Beside a GPU, where jobs are only
#: launched, eight VGG16 as one batch are 5 % faster with it, and 15 % with a tenth of a millisecond.
_TURN_S, _TURN_BESIDE_A_GPU_S = 0.0005, 0.0001


@contextlib.contextmanager
def short_turns() -> Iterator[None]:
    """Inside the block all threads of the process take short turns."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_TURN_BESIDE_A_GPU_S if torch.cuda.is_available() else _TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
