"""ONNX files of networks, written by the TorchScript-based exporter of PyTorch."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import nn

_OPSET = 17


def export_network(network: nn.Module, inputs: tuple[torch.Tensor, ...], path: str | Path) -> None:
    """Write `network` (eval mode, on the CPU) as an ONNX file for inputs of these shapes."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(network, inputs, str(path), dynamo=False, opset_version=_OPSET)
