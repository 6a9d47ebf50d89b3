"""Chooses the decoder of a network: by parameter, by the model, or by the shapes of its outputs."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.decoders.layout import Layout
from multi_dnn_ros.decoders.registry import DECODERS, DecoderSpec, Recognition, recognize
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.label_names import assumed_labels, configured_labels
from multi_dnn_ros.models.onnx_network import run_network
from multi_dnn_ros.models.sources import load_source
from multi_dnn_ros.settings.forms import PRESETS
from multi_dnn_ros.settings.schema import DnnConfig
from multi_dnn_ros.vision.result_kind import RESULT_KINDS

log = logging.getLogger(__name__)


def choose_decoder(source: Source, name: str, config: DnnConfig) -> tuple[DecoderSpec, int]:
    """The decoder that parameter `decoder`, the source, the shapes of the outputs or the role names, in this order; and
    the number of classes, 0 if unknown.

    source: with the shapes of its outputs. Raises ModelError, which names the decoders that would fit, or the nearest.
    """
    preset, where, model = PRESETS.get(config.role), f"parameter dnn.{name}", config.model
    usable = [spec.name for spec in DECODERS.usable() if spec.takes_detector == (source.detector is not None)]
    chosen, by, classes = config.decoder, "", source.classes
    if chosen == "auto" and source.decoder:
        chosen, by = source.decoder, f", as {model} names it"
    elif chosen == "auto":
        found = recognized(source, name, config)
        if found.decided:
            log.info("dnn.%s.decoder is auto: %s", name, found.why)
            chosen, classes = found.chosen, classes or found.matches[0][1].classes
        elif preset is not None and preset.decoder:
            chosen = preset.decoder
        else:
            undecided = "their shapes do not decide it: " if found.chosen else ""
            raise ModelError(
                f"{where}.decoder is 'auto', but {model} does not say what its outputs mean: {undecided}{found.why}; "
                f"allowed: {', '.join(usable)}"
            )
    try:
        spec = DECODERS.get(chosen)
        RESULT_KINDS.get(spec.result_kind)
    except ExtensionError as error:
        raise ModelError(f"{where}.decoder is '{chosen}'{by}: {error}") from None
    if chosen not in usable:
        allowed = ", ".join((["auto"] if source.decoder else []) + usable)
        raise ModelError(f"{where}.decoder is '{chosen}'; allowed with {model}: {allowed}")
    if preset is not None and preset.result_kind != spec.result_kind:
        raise ModelError(
            f"{where}.role is '{config.role}', but {model} is decoded as '{chosen}': {spec.result_kind} instead of "
            f"{preset.result_kind}"
        )
    return spec, classes


def recognized(source: Source, name: str, config: DnnConfig) -> Recognition:
    """The decoders that read the outputs of a source, given the input size and class names of source and parameters.

    A decoder that `config` or the source names comes first if it fits.
    """
    labels = configured_labels(name, config) or source.labels
    preset = PRESETS.get(config.role)
    layout = Layout(source.outputs or (), input_size(source, config), len(labels) or source.classes)
    found = recognize(layout, preset.result_kind if preset is not None else "")
    named = source.decoder if config.decoder == "auto" else config.decoder
    return replace(found, matches=tuple(sorted(found.matches, key=lambda entry: entry[0] != named)))


def input_size(source: Source, config: DnnConfig) -> tuple[int, int] | None:
    """(width, height) from the parameters, otherwise from the source; None: unknown."""
    own = source.size or (0, 0)
    width, height = config.input_width or own[0], config.input_height or own[1]
    return (width, height) if width and height else None


def with_shapes(source: Source, model: str, size: tuple[int, int]) -> Source:
    """The source with the shapes of its outputs for an image of `size`: as the file states them, otherwise those that a
    run on zeros has. Raises ModelError if the network fails.
    """
    if source.outputs is not None and all(axis for shape in source.outputs for axis in shape):
        return source
    return replace(source, outputs=tuple(tuple(output.shape) for output in run_on_zeros(source, model, size)))


def run_on_zeros(source: Source, model: str, size: tuple[int, int]) -> list[Any]:
    """The raw outputs for an image of `size` (width, height). Raises ModelError, which names `model`, if that fails."""
    width, height = size
    try:
        return run_network(source.runnable, np.zeros((1, 3, height, width), np.float32))
    except Exception as error:
        raise ModelError(f"{model} fails on an image of {width} x {height}: {summarize_error(error)}") from None


def with_assumed_labels(name: str, config: DnnConfig) -> DnnConfig:
    """`config` with assumed class names if neither it nor the model has any and the outputs show the number of classes.

    Raises ModelError, as load_source does.
    """
    if config.labels:
        return config
    source = load_source(name, config, onnx=True)
    size = input_size(source, config)
    if source.labels or source.detector is not None or size is None:
        return config
    found = recognized(with_shapes(source, config.model, size), name, config)
    if not found.decided:
        return config
    classes = source.classes or found.matches[0][1].classes
    if not classes or (classes == 1 and DECODERS.get(found.chosen).default_labels):
        return config
    return config.model_copy(update={"labels": list(assumed_labels(classes))})
