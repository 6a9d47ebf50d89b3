"""Passes of training as CUDA graphs: forward and backward one launch each, and a teacher's answers.

A deep network at small images keeps a GPU busy for less time than Python needs to launch its thousands of kernels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.memory import gc_paused
from multi_dnn_ros.training.precision import autocast

log = logging.getLogger(__name__)

_WARM_UP_CALLS = 3


class _Pass(nn.Module):
    """What is captured: the network in mixed precision."""

    def __init__(self, network: nn.Module, precision: str) -> None:
        super().__init__()
        self.network = network
        self.precision = precision

    def forward(self, image: Tensor) -> Any:
        # Weights are cast in every replay: what a cache of casts holds would be those of the captured step.
        with autocast(image.device, self.precision, cache=False):
            return self.network(image)


def replayed(network: nn.Module, image: Tensor, precision: str) -> nn.Module:
    """`network`, in training mode and on a GPU, with captured passes for images that are and lie as `image` does.

    Its weights and statistics are the network's own, which stays as it is. Random numbers are drawn anew in every
    replay. A network that cannot be captured (it looks at values, say) is returned itself, with a warning.
    """
    kept = [buffer.clone() for buffer in network.buffers()]
    captured: nn.Module = _Pass(network, precision)
    captured.training = network.training
    try:
        # Training draws the same numbers with and without this.
        with gc_paused(), torch.random.fork_rng([image.device.index]):
            # Replaces its forward(). Some networks have parameters that no output depends on.
            torch.cuda.make_graphed_callables(captured, (image.clone(),), allow_unused_input=True)
    except Exception as error:  # whatever capturing raises
        log.warning("training launches kernel by kernel, as its passes cannot be captured: %s", summarize_error(error))
        captured = network
    with torch.no_grad():  # what warming up did to the statistics of batch normalization
        for buffer, before in zip(network.buffers(), kept, strict=True):
            buffer.copy_(before)
    return captured


def replayed_answers(network: nn.Module, image: Tensor, precision: str) -> Callable[[Tensor], Any]:
    """What `network`, in evaluation mode and on a GPU, answers to images that are and lie as `image` does.

    The answers lie where those to the next images will. A network that cannot be captured answers kernel by kernel,
    with a warning.
    """
    place = image.clone(memory_format=torch.channels_last)
    step = _Pass(network, precision)

    def answer(images: Tensor) -> Any:
        with torch.no_grad():
            return step(images)

    graph = torch.cuda.CUDAGraph()
    try:
        side = torch.cuda.Stream(image.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_CALLS):
                answer(place)
        torch.cuda.current_stream().wait_stream(side)
        with gc_paused(), torch.cuda.graph(graph):
            answers = answer(place)
    except Exception as error:  # whatever capturing raises
        log.warning("the teacher launches kernel by kernel, as it cannot be captured: %s", summarize_error(error))
        return answer

    def replay(images: Tensor) -> Any:
        place.copy_(images)
        graph.replay()
        return answers

    return replay
