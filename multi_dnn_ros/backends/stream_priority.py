"""Maps the priorities of DNNs to priorities of CUDA streams, and chooses the stream of captures."""

from __future__ import annotations

from collections.abc import Iterable

import torch

#: PyTorch has streams of four priorities; CUDA has more on some GPUs.
LEVELS = 4


def stream_priorities(dnn_priorities: Iterable[int]) -> dict[int, int]:
    """The stream priority of each DNN priority: 0 for the lowest, one less (more urgent) for each higher one.

    With more than LEVELS different priorities, the highest ones share the last level.
    """
    return {priority: -min(rank, LEVELS - 1) for rank, priority in enumerate(sorted(set(dnn_priorities)))}


def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream for captures: the calling thread's current stream, or a new one instead of the default stream, which
    cannot capture.

    The kernels of a graph keep the SMs of the capture stream, whichever stream the graph is launched on; their priority
    is that of the launching stream (see StreamGraph).
    """
    stream = torch.cuda.current_stream(device)
    if stream == torch.cuda.default_stream(device):
        return torch.cuda.Stream(device)
    return stream
