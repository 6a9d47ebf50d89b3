"""Recognizes the decoder of a network that does not name one from the shapes of its outputs."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from multi_dnn_ros.decoders.layout import Layout
from multi_dnn_ros.decoders.registry import DECODERS, Recognition, recognize
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.label_names import assumed_labels, configured_labels
from multi_dnn_ros.models.onnx_network import run_network
from multi_dnn_ros.models.sources import load_source
from multi_dnn_ros.settings.forms import PRESETS
from multi_dnn_ros.settings.schema import DnnConfig

log = logging.getLogger(__name__)


def with_recognized_decoder(source: Source, name: str, config: DnnConfig) -> Source:
    """The source with the decoder that reads its outputs, if neither the source nor parameter `decoder` names one.

    If the file does not state the shapes of the outputs, the network is run once on zeros. The source is returned
    unchanged if no input size is known, and if the shapes do not decide but the role has a decoder. Raises ModelError
    if neither decides; it names the decoders that would fit, or the nearest.
    """
    size = input_size(source, config)
    if source.detector is not None or size is None:
        return source
    if config.decoder != "auto" or source.decoder:
        return source
    shapes = source.outputs if has_shapes(source) else run_on_zeros(source, f"dnn.{name}: {config.model}", size)
    recognition = recognized(source, name, config, shapes or ())
    if recognition.decided:
        log.info("dnn.%s.decoder is auto: %s", name, recognition.why)
        classes = recognition.matches[0][1].classes
        return replace(source, decoder=recognition.chosen, classes=source.classes or classes)
    preset = PRESETS.get(config.role)
    if preset is not None and preset.decoder:
        return source
    undecided = "their shapes do not decide it: " if recognition.chosen else ""
    raise ModelError(
        f"parameter dnn.{name}.decoder is 'auto', but {config.model} does not say what its outputs mean: "
        f"{undecided}{recognition.why}; allowed: {', '.join(decoders_for(source))}"
    )


def recognize_outputs(source: Source, model: str, size: tuple[int, int], *, labels: int = 0) -> Recognition:
    """The decoders that read what a network returns for an image of `size` (width, height).

    labels: number of class names; 0: as many as the source has. If the file does not state the shapes of the outputs,
    the network is run once on zeros. Raises ModelError if the network fails.
    """
    shapes = source.outputs if has_shapes(source) else run_on_zeros(source, model, size)
    return recognize(Layout(shapes or (), size, labels or len(source.labels) or source.classes))


def recognized(source: Source, name: str, config: DnnConfig, shapes: tuple[tuple[int, ...], ...]) -> Recognition:
    """The decoders that read outputs of `shapes`, given the input size and class names of source and parameters.

    A decoder that `config` or the source names comes first if it fits.
    """
    labels = configured_labels(name, config) or source.labels
    preset = PRESETS.get(config.role)
    layout = Layout(shapes, input_size(source, config), len(labels) or source.classes)
    found = recognize(layout, preset.result_kind if preset is not None else "")
    named = source.decoder if config.decoder == "auto" else config.decoder
    matches = sorted(found.matches, key=lambda entry: entry[0] != named)
    return replace(found, matches=tuple(matches))


def input_size(source: Source, config: DnnConfig) -> tuple[int, int] | None:
    """(width, height) from the parameters, otherwise from the source; None: unknown."""
    own = source.size or (0, 0)
    width, height = config.input_width or own[0], config.input_height or own[1]
    return (width, height) if width and height else None


def has_shapes(source: Source) -> bool:
    """Whether the lengths of all axes of the outputs are known from the file."""
    return source.outputs is not None and all(axis for shape in source.outputs for axis in shape)


def run_on_zeros(source: Source, model: str, size: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
    """Shapes of the outputs for an image of `size`. Raises ModelError, which names `model`, if the network fails."""
    width, height = size
    try:
        outputs = run_network(source.module, np.zeros((1, 3, height, width), np.float32))
    except Exception as error:
        raise ModelError(f"{model} fails on an image of {width} x {height}: {error}") from None
    return tuple(tuple(output.shape) for output in outputs)


def decoders_for(source: Source) -> list[str]:
    """Names of the decoders that parameter `decoder` may select for this network."""
    return [spec.name for spec in DECODERS.usable() if spec.takes_detector == (source.detector is not None)]


def with_assumed_labels(name: str, config: DnnConfig) -> DnnConfig:
    """`config` with assumed class names if neither it nor the model has any and the outputs show the number of classes.

    Unchanged otherwise, also if only running the network shows its outputs. Raises ModelError, as load_source does.
    """
    if config.labels:
        return config
    source = load_source(name, config, onnx=True)
    if source.labels or source.detector is not None or not has_shapes(source):
        return config
    found = recognized(source, name, config, source.outputs or ())
    if not found.decided:
        return config
    classes = source.classes or found.matches[0][1].classes
    if not classes or (classes == 1 and DECODERS.get(found.chosen).default_labels):
        return config
    return config.model_copy(update={"labels": list(assumed_labels(classes))})
