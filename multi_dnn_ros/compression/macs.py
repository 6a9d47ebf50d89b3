"""Cost of a network without running it: MACs by PyTorch's FLOP counter, parameters, bytes of weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from multi_dnn_ros.compression.layers import run_on_shapes


@dataclass(frozen=True)
class Cost:
    """macs: multiply-accumulates of one inference (half the counted FLOPs; biases, norms and activations are not
    counted, as in the paper). parameters: number of trainable parameters. bytes: size of parameters and buffers.
    """

    macs: int
    parameters: int
    bytes: int


def cost(network: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Cost:
    """Cost of one inference on `inputs`, whose values do not matter. Raises ModelError if the network cannot run."""
    # PyTorch does not count fused attention kernels: a vision transformer would have 36 % too few MACs.
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            run_on_shapes(network, inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
    parameters = {id(tensor): tensor for tensor in network.parameters()}.values()
    everything = [*parameters, *network.buffers()]
    return Cost(
        macs=counter.get_total_flops() // 2,
        parameters=sum(tensor.numel() for tensor in parameters),
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in everything),
    )
