"""The model sources of this package. PyTorch is imported only by those that need it, when they load a network."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from multi_dnn_ros.common.extras import MissingExtra, optional
from multi_dnn_ros.models.builtin import SCORE_THRESHOLDS
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.registry import ModelRequest, ModelSource

_WEIGHTS = Path(__file__).resolve().parents[1] / "weights"


def _loader(module: str, function: str) -> Callable[[ModelRequest], Source]:
    """A function of another module of this package, which is imported when it is called."""

    def load(request: ModelRequest) -> Source:
        try:
            with optional(f"model '{request.config.model}', when it is first used,"):
                implementation = importlib.import_module(f"multi_dnn_ros.models.{module}")
        except MissingExtra as error:
            raise ModelError(f"{request.where}{error}") from error
        found: Source = getattr(implementation, function)(request)
        return found

    return load


def _builtin(request: ModelRequest) -> Source:
    """A built-in network. Raises ModelError; for an unknown name without PyTorch, too."""
    if request.name not in SCORE_THRESHOLDS:
        raise ModelError(f"{request.where}model is 'builtin:{request.name}'; allowed: {BUILTIN.form}")
    return _loader("builtin_source", "builtin_source")(request)


BUILTIN = ModelSource(
    "builtin",
    _builtin,
    form=", ".join(f"builtin:{name}" for name in sorted(SCORE_THRESHOLDS)),
    rebuilds=True,
    file=lambda name: _WEIGHTS / f"{name}.safetensors",
    onnx_file=lambda name: _WEIGHTS / f"{name}.onnx",
)
TORCHVISION = ModelSource(
    "torchvision",
    _loader("torchvision_source", "torchvision_source"),
    form="torchvision:<builder>",
    takes_weights=True,
    rebuilds=True,
)
SAFETENSORS = ModelSource(
    ".safetensors",
    _loader("safetensors_source", "rebuilt_source"),
    form="a .safetensors file of multi-dnn decompose or retrain",
)
EXPORTED = ModelSource(".pt2", _loader("exported_source", "exported_source"), form="a .pt2 file")
ONNX = ModelSource(".onnx", _loader("onnx_source", "onnx_source"), form="an .onnx file", is_onnx=True)
