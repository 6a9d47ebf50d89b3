"""Model sources by name: where the networks of parameter `dnn.<dnn>.model` come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.settings.schema import DnnConfig

if TYPE_CHECKING:
    from multi_dnn_ros.models.dnn import Source


@dataclass(frozen=True)
class ModelRequest:
    """What a model source is asked for.

    where: what the fields of `config` are called in errors, such as "parameter dnn.object.". name: what stands behind
    the prefix, or the path of a file that exists and can be read. classifiers: whether a classifier is allowed, which
    the node does not run. outline: only the headers of files are to be read: the module of the source may be on the
    meta device, or an empty nn.Module where Source.outputs tells the shapes. It is for checks before anything is
    loaded; a source that cannot do it may load the network.
    """

    where: str
    name: str
    config: DnnConfig
    classifiers: bool = False
    outline: bool = False


@dataclass(frozen=True)
class ModelSource:
    """What is known about a model source. Used in the engine process and by the offline verbs.

    name: `zoo` for models `zoo:<name>`; `.zoo` for files whose names end so.
    load: gives the network in eval mode on the CPU, with what is known about it. Raises ModelError, which names the
    parameter or file, its value and what is allowed.
    form: how such a model is written, for error messages, such as "zoo:<name>".
    takes_weights: whether the parameters `weights` and `num_classes` choose weights and size of the head; for others
    they must be left at their defaults.
    rebuilds: whether `load` gives the same layers for the same name anywhere, so that an artifact of `multi-dnn
    decompose` can be a .safetensors file with the name in it; else it is an exported program.
    file: the file that a model is loaded from, by what stands behind the prefix; None: not known.
    """

    name: str
    load: Callable[[ModelRequest], Source]
    form: str
    takes_weights: bool = False
    rebuilds: bool = False
    file: Callable[[str], Path] | None = None


MODEL_SOURCES = extensions.Registry(ModelSource, extensions.MODEL_SOURCES)


def source_name(model: str) -> str:
    """Name of the model source of `model`, by its prefix or the end of the file name; empty: of none."""
    prefix, suffix = model.partition(":")[0], Path(model).suffix.lower()
    return next((name for name in MODEL_SOURCES.names() if name in (prefix, suffix)), "")


def source_of(model: str) -> ModelSource | None:
    """The model source of `model`; None: of none that can be used."""
    try:
        return MODEL_SOURCES.get(source_name(model))
    except ExtensionError:
        return None
