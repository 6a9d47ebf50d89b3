"""Training passes as CUDA graphs: forward, backward and a teacher's inference as one launch each.

For a deep network on small images, launching its thousands of kernels from Python takes longer than running them.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.garbage_collection import gc_paused
from multi_dnn_ros.training.precision import autocast

log = logging.getLogger(__name__)

_WARM_UP_CALLS = 3
#: Beginnings of PyTorch's warnings about captured passes that are expected: gradients are accumulated on another stream
#: than the captured one, which PyTorch synchronizes, and the first backward pass runs in a new thread.
_EXPECTED_WARNINGS = (
    "The AccumulateGrad node's stream does not match",
    "Attempting to run cuBLAS, but there was no current CUDA context",
)


class _Pass(nn.Module):
    """The captured part: the network in mixed precision."""

    def __init__(self, network: nn.Module, precision: str) -> None:
        super().__init__()
        self.network = network
        self.precision = precision

    def forward(self, image: Tensor) -> Any:
        # Cast the weights in every replay: cached casts would be those of the captured step.
        with autocast(image.device, self.precision, cache=False):
            return self.network(image)


def capture_passes(network: nn.Module, image: Tensor, precision: str) -> nn.Module:
    """Return `network`, in training mode on a GPU, with captured passes for images shaped and laid out like `image`.

    It shares weights and statistics with the network, which is unchanged. Each replay draws new random numbers. A
    network that cannot be captured (for example one that branches on values) is returned itself, with a warning.
    """
    kept = [buffer.clone() for buffer in network.buffers()]
    captured: nn.Module = _Pass(network, precision)
    captured.training = network.training
    for beginning in _EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", beginning, UserWarning)
    try:
        # Restore the generator, so that training draws the same numbers with and without capture.
        with gc_paused(), torch.random.fork_rng([image.device.index]):
            # Replaces captured.forward(). Some networks have parameters without influence on the output.
            torch.cuda.make_graphed_callables(captured, (image.clone(),), allow_unused_input=True)
    except Exception as error:  # capturing raises arbitrary errors
        log.warning(
            "training launches each kernel separately, because its passes cannot be captured: %s",
            summarize_error(error),
        )
        captured = network
    with torch.no_grad():  # undo the effect of warming up on batch normalization statistics
        for buffer, before in zip(network.buffers(), kept, strict=True):
            buffer.copy_(before)
    return captured


def capture_teacher(network: nn.Module, image: Tensor, precision: str) -> Callable[[Tensor], Any]:
    """Return inference of `network`, in evaluation mode on a GPU, for images shaped and laid out like `image`.

    Each call overwrites the result of the previous one. A network that cannot be captured runs uncaptured, with a
    warning.
    """
    static_input = image.clone(memory_format=torch.channels_last)
    step = _Pass(network, precision)

    def infer(images: Tensor) -> Any:
        with torch.no_grad():
            return step(images)

    graph = torch.cuda.CUDAGraph()
    try:
        side = torch.cuda.Stream(image.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_CALLS):
                infer(static_input)
        torch.cuda.current_stream().wait_stream(side)
        with gc_paused(), torch.cuda.graph(graph):
            outputs = infer(static_input)
    except Exception as error:  # capturing raises arbitrary errors
        log.warning(
            "the teacher launches each kernel separately, because it cannot be captured: %s", summarize_error(error)
        )
        return infer

    def replay(images: Tensor) -> Any:
        static_input.copy_(images)
        graph.replay()
        return outputs

    return replay
