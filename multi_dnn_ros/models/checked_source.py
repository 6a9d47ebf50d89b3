"""Checks what the model source of another package returns."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.extension_calls import returned_text
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.vision.preprocess import Preprocess


def checked_source(source: Any, name: str, where: str, *, outline: bool) -> Source:
    """`source`, which the model source `name` returned.

    where: beginning of messages. outline: the network may be on the meta device. Raises ModelError, which names the
    model source, for a wrong type, size, network or preprocessing.
    """
    if not isinstance(source, Source):
        raise ModelError(where + returned_text(extensions.MODEL_SOURCES, name, "load", source, "a Source"))
    if problem := _problem(source, outline=outline):
        raise ModelError(
            f"{where}{extensions.display_name(extensions.MODEL_SOURCES, name)}: load returned a Source {problem}"
        )
    return source


def _problem(source: Source, *, outline: bool) -> str:
    """What is wrong with the source; empty: nothing."""
    module: Any = source.module
    if not isinstance(module, nn.Module):
        return f"whose module is of type {type(module).__name__}; expected a torch.nn.Module"
    if not outline and any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers())):
        return "whose module has weights on the meta device; expected weights on the CPU, except for an outline"
    if not outline and module.training and not isinstance(module, fx.GraphModule):  # of torch.export: no eval()
        return "whose module is in training mode; expected eval mode: call module.eval()"
    size: Any = source.size
    if size is not None and not _is_size(size):
        return f"of size {size!r}; expected (width, height) in pixels, or None if parameters have to give it"
    try:
        Preprocess(*(size or (1, 1)), **source.preprocess)
    except (TypeError, ValueError) as error:
        return f"whose preprocess is {source.preprocess!r}: {error}; expected keyword arguments of Preprocess"
    return ""


def _is_size(size: Any) -> bool:
    return (
        isinstance(size, (tuple, list))
        and len(size) == 2
        and all(isinstance(length, int) and not isinstance(length, bool) and length > 0 for length in size)
    )
