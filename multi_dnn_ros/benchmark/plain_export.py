"""The package's networks as ONNX files, written by the TorchScript-based exporter of PyTorch."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import torch
from torch import nn

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.settings.schema import DnnConfig

_OPSET = 17


def export_network(network: nn.Module, inputs: Tensors, path: str | Path) -> None:
    """Write `network` (eval mode, on the CPU) as an ONNX file for inputs of these shapes."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(network, inputs, str(path), dynamo=False, opset_version=_OPSET)


def export_builtin(config: DnnConfig, path: Path) -> Path:
    """Write the network of `config` as `path`, and next to it a .json file with what a program needs to run it."""
    dnn = load_dnn("peer", config)
    export_network(dnn.module, dnn.example_inputs(), path)
    description = {
        "role": config.role,
        "width": dnn.preprocess.width,
        "height": dnn.preprocess.height,
        "mean": dnn.preprocess.mean,
        "std": dnn.preprocess.std,
        "score_threshold": dnn.decoder.score_threshold,
        "iou_threshold": dnn.decoder.iou_threshold,
    }
    path.with_suffix(".json").write_text(json.dumps(description), encoding="utf-8")
    return path
