"""Passes a result between processes: small parts are pickled, large arrays are copied into the slot of the frame."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.serving.wire import FrameResult

#: Arrays of at least this size are passed in shared memory.
LARGE_BYTES = 16_384


def pack(output: Any, space: npt.NDArray[np.uint8]) -> tuple[bytes, tuple[int, ...]]:
    """Return `output` and `large` of a FrameResult.

    Arrays of at least LARGE_BYTES are copied into `space`, (bytes,) uint8, if they fit; otherwise they are pickled.
    """
    sizes: list[int] = []
    used = 0

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        """Whether pickle has to write the array into its own data."""
        nonlocal used
        raw = buffer.raw()
        if raw.nbytes < LARGE_BYTES or used + raw.nbytes > len(space):
            return True
        space[used : used + raw.nbytes] = np.frombuffer(raw, dtype=np.uint8)
        sizes.append(raw.nbytes)
        used += raw.nbytes
        return False

    return pickle.dumps(output, protocol=5, buffer_callback=keep_in_band), tuple(sizes)


def unpack(result: FrameResult, space: npt.NDArray[np.uint8]) -> Any:
    """The output of a FrameResult. Its large arrays are copied from `space`, which is reused for later frames."""
    arrays, begin = [], 0
    for size in result.large:
        arrays.append(space[begin : begin + size].copy())
        begin += size
    return pickle.loads(result.output, buffers=arrays)  # noqa: S301  (sent by our own process)
