"""Registry of model sources, which load the networks of parameter `dnn.<dnn>.model`, and those of this package.

PyTorch is imported only by sources that need it, when they load a network.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.common.extras import MissingExtra, optional
from multi_dnn_ros.models.builtin import SCORE_THRESHOLDS
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.settings.forms import path_problem
from multi_dnn_ros.settings.schema import DnnConfig

if TYPE_CHECKING:
    from multi_dnn_ros.models.dnn import Source


@dataclass(frozen=True)
class ModelRequest:
    """A request to a model source.

    where: prefix of the fields of `config` in messages, such as "parameter dnn.object.". name: the part of the model's
    name after the prefix, or the path of a readable file. classifiers: whether classifiers, which the node does not
    run, are allowed.
    onnx: an OnnxNetwork is preferred to a PyTorch module.
    """

    where: str
    name: str
    config: DnnConfig
    classifiers: bool = False
    onnx: bool = False


@dataclass(frozen=True)
class ModelSource:
    """A model source. Used in the engine process and by the offline verbs.

    name: `zoo` for models `zoo:<name>`; `.zoo` for files with this suffix.
    load: returns the network in eval mode on the CPU. Raises ModelError, which names the parameter or file, its value
    and what is allowed.
    form: how such a model is written, for messages, such as "zoo:<name>".
    takes_weights: whether the parameters `weights` and `num_classes` select the weights and the size of the head;
    otherwise they must have their defaults.
    rebuilds: whether `load` builds the same layers for the same name on any machine, so that an artifact of `multi-dnn
    decompose` can be a .safetensors file that holds the name; otherwise it is an exported program.
    file: returns the path of a model's file from its name without the prefix; None: unknown. onnx_file: likewise, the
    path of the ONNX form that belongs to the model, if there is such a file, for its only input size and with operators
    that take any number of images; see onnx_form. is_onnx: its models are
    ONNX files.
    """

    name: str
    load: Callable[[ModelRequest], Source]
    form: str
    takes_weights: bool = False
    rebuilds: bool = False
    file: Callable[[str], Path] | None = None
    onnx_file: Callable[[str], Path] | None = None
    is_onnx: bool = False


_WEIGHTS = Path(__file__).resolve().parents[1] / "weights"
MODEL_SOURCES = extensions.Registry(ModelSource, extensions.MODEL_SOURCES)


def source_name(model: str) -> str:
    """Name of the model source of `model`, by its prefix or file name suffix; empty: there is none."""
    prefix, suffix = model.partition(":")[0], Path(model).suffix.lower()
    return next((name for name in MODEL_SOURCES.names() if name in (prefix, suffix)), "")


def source_of(model: str) -> ModelSource | None:
    """The model source of `model`; None: there is none, or it cannot be used."""
    try:
        return MODEL_SOURCES.get(source_name(model))
    except ExtensionError:
        return None


def existing_file(path: str, what: str) -> Path:
    """`path`, with ~ expanded, if it is a readable file. Otherwise raises ModelError with the path and `what`."""
    if problem := path_problem(path, "file"):
        raise ModelError(f"{what} is '{path}': {problem}")
    file = Path(path).expanduser()
    if not os.access(file, os.R_OK):
        raise ModelError(f"{what} is '{path}': this user has no permission to read it")
    return file


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
    return _loader("torch_sources", "builtin_source")(request)


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
    _loader("torch_sources", "rebuilt_source"),
    form="a .safetensors file of multi-dnn decompose or retrain",
)
EXPORTED = ModelSource(".pt2", _loader("torch_sources", "exported_source"), form="a .pt2 file")
ONNX = ModelSource(".onnx", _loader("onnx_source", "onnx_source"), form="an .onnx file", is_onnx=True)
