"""Loads a DNN from its parameters: network, preprocessing and decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.decoders.anchor import AnchorHead
from multi_dnn_ros.decoders.base import DEFAULT_SCORE_THRESHOLD, Decoder
from multi_dnn_ros.decoders.registry import DECODERS, DecoderSpec
from multi_dnn_ros.models.decoder_choice import (
    decoders_for,
    has_shapes,
    input_size,
    run_on_zeros,
    with_recognized_decoder,
)
from multi_dnn_ros.models.dnn import Dnn, Output, Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.label_names import configured_labels, suggestion
from multi_dnn_ros.models.onnx_network import run_network
from multi_dnn_ros.models.output_parts import OutputPart, output_parts
from multi_dnn_ros.models.sources import load_source
from multi_dnn_ros.settings.forms import PRESETS
from multi_dnn_ros.settings.schema import DnnConfig
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.result_kind import RESULT_KINDS
from multi_dnn_ros.vision.results import OutputError
from multi_dnn_ros.vision.view import WHOLE, View

T = TypeVar("T")

#: More class names than this do not fit into vision_msgs/LabelInfo, which numbers them in 16 bits.
_MAX_LABELS = 65_536


#: Decoder, class names by index, preprocessing, and the part of the image that the DNN sees.
Interface = tuple[DecoderSpec, tuple[str, ...], Preprocess, View]


def load_dnn(name: str, config: DnnConfig, *, onnx: bool = False) -> Dnn:
    """Load the DNN of parameters ``dnn.<name>.*`` on the CPU, and run it once on zeros to check that its decoder fits.

    onnx: as an OnnxNetwork, which ONNX Runtime serves on a CPU; otherwise as a PyTorch module. Raises ModelError, which
    names the parameter or file, the value and what is allowed.
    """
    return dnn_of(load_source(name, config, onnx=onnx), name, config)


def dnn_of(source: Source, name: str, config: DnnConfig) -> Dnn:
    """As `load_dnn`, for a loaded network. A torchvision detector is taken apart by its decoder."""
    size = input_size(source, config)
    if config.outputs and size is not None and source.detector is None and not has_shapes(source):
        source = replace(source, outputs=run_on_zeros(source, f"dnn.{name}: {config.model}", size))
    parts = output_parts(source, name, config)
    interfaces = _interfaces(parts)
    # Only the preprocessing of the last one contains the defaults of all decoders.
    *_, (_, _, preprocess, view) = interfaces.values()
    outputs = {output: _output(part, interfaces[output], preprocess) for output, part in parts.items()}
    dnn = Dnn(name, config.role, source.runnable, preprocess, outputs, view)
    _try(dnn, config)
    return dnn


def _interfaces(parts: Mapping[str, OutputPart]) -> dict[str, Interface]:
    """The interface of each result. All share one preprocessing: where neither the model nor the parameters define an
    option, the first decoder with a default for it decides. Raises ModelError with the problems of all results.
    """
    problems: list[str] = []
    interfaces: dict[str, Interface] = {}
    defaults: dict[str, Any] = {}
    for output, part in parts.items():
        try:
            source = with_recognized_decoder(part.source, part.name, part.config)
            source = replace(source, preprocess={**defaults, **source.preprocess})
            interfaces[output] = _interface(source, part.name, part.config)
            defaults = {**interfaces[output][0].preprocess, **defaults}
        except ModelError as error:
            problems.extend(line for line in str(error).splitlines() if line not in problems)
    if problems:
        raise ModelError("\n".join(problems))
    return interfaces


def _output(part: OutputPart, interface: Interface, preprocess: Preprocess) -> Output:
    spec, labels, _, _ = interface
    config, head = part.config, part.source.detector
    if head is not None and not isinstance(head, AnchorHead):
        from multi_dnn_ros.models.torchvision_detector import anchor_head

        head = anchor_head(head, (preprocess.height, preprocess.width))
    decoder = spec.factory(
        *(() if head is None else (head,)),
        preprocess,
        labels,
        keep=config.keep,
        score_threshold=config.score_threshold,
        own_threshold=_own_threshold(part.source, config.role),
        iou_threshold=config.iou_threshold,
        max_detections=config.max_detections,
    )
    return Output(decoder, labels, spec.result_kind, part.raw_outputs, spec.name)


def _own_threshold(source: Source, role: str) -> float:
    """The threshold that parameter score_threshold 0 stands for: the model's own, otherwise the default of its role."""
    if source.score_threshold is not None:
        return source.score_threshold
    return PRESETS[role].score_threshold if role in PRESETS else DEFAULT_SCORE_THRESHOLD


def _interface(source: Source, name: str, config: DnnConfig) -> Interface:
    """Combine parameters and source. Raises ModelError with a line for each conflict."""
    problems: list[str] = []

    def collected(step: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return step(name, config, *arguments)
        except ModelError as error:
            problems.extend(str(error).splitlines())
            return None

    decoder = collected(_decoder, source)
    labels = collected(_labels, source, decoder)
    preprocess = collected(_preprocess, source, decoder)
    if decoder is not None and labels is not None:
        collected(_check_classes, decoder, labels)
    view = collected(_view, decoder)
    if problems or decoder is None or labels is None or preprocess is None or view is None:
        raise ModelError("\n".join(problems))
    return decoder, labels, preprocess, view


def _check_classes(name: str, config: DnnConfig, decoder: DecoderSpec, labels: tuple[str, ...]) -> None:
    """Check that `keep` and `num_classes` fit the class names."""
    try:
        getattr(decoder.factory, "check_labels", Decoder.check_labels)(labels, config.keep)
    except ValueError as error:
        raise ModelError(f"parameter dnn.{name}.{error}") from None
    if config.num_classes and config.num_classes != len(labels):
        raise ModelError(
            f"parameter dnn.{name}.num_classes is {config.num_classes}, but {config.model} has {len(labels)} classes"
        )


def _decoder(name: str, config: DnnConfig, source: Source) -> DecoderSpec:
    preset = PRESETS.get(config.role)
    chosen = config.decoder if config.decoder != "auto" else source.decoder or (preset.decoder if preset else "")
    if not chosen:
        raise ModelError(
            f"parameter dnn.{name}.decoder is 'auto', but {config.model} does not say what its outputs mean; "
            f"allowed: {', '.join(decoders_for(source))}"
        )
    by = "" if config.decoder != "auto" or not source.decoder else f", as {config.model} names it"
    try:
        spec = DECODERS.get(chosen)
        RESULT_KINDS.get(spec.result_kind)
    except ExtensionError as error:
        raise ModelError(f"parameter dnn.{name}.decoder is '{chosen}'{by}: {error}") from None
    if spec.takes_detector != (source.detector is not None):
        allowed = (["auto"] if source.decoder else []) + decoders_for(source)
        raise ModelError(
            f"parameter dnn.{name}.decoder is '{chosen}'; allowed with {config.model}: {', '.join(allowed)}"
        )
    if preset is not None and preset.result_kind != spec.result_kind:
        raise ModelError(
            f"parameter dnn.{name}.role is '{config.role}', but {config.model} is decoded as '{chosen}': "
            f"{spec.result_kind} instead of {preset.result_kind}"
        )
    return spec


def _labels(name: str, config: DnnConfig, source: Source, decoder: DecoderSpec | None) -> tuple[str, ...]:
    if not config.labels:
        if source.labels:
            return source.labels
        preset = PRESETS.get(config.role)
        if decoder is None and preset is not None and preset.decoder:  # its problem has been reported
            decoder = DECODERS.get(preset.decoder)
        if decoder is not None and decoder.default_labels and source.classes <= 1:
            return decoder.default_labels
        count = f"each of its {source.classes} classes" if source.classes else "each class"
        raise ModelError(
            f"parameter dnn.{name}.labels is []; {config.model} needs a name for {count}, or a file"
            f"{suggestion(source.classes)}"
        )
    labels = configured_labels(name, config)
    classes = source.classes or len(source.labels)
    if classes and len(labels) != classes:
        raise ModelError(
            f"parameter dnn.{name}.labels has {len(labels)} names, but {config.model} has {classes} classes"
        )
    if not 0 < len(labels) <= _MAX_LABELS:
        raise ModelError(f"parameter dnn.{name}.labels has {len(labels)} names; allowed: 1 to {_MAX_LABELS}")
    return labels


def _preprocess(name: str, config: DnnConfig, source: Source, decoder: DecoderSpec | None) -> Preprocess:
    own = source.size or (0, 0)
    width, height = config.input_width or own[0], config.input_height or own[1]
    if not width or not height:
        raise ModelError(
            f"parameters dnn.{name}.input_width and input_height are {config.input_width} and {config.input_height}; "
            f"{config.model} has no size of its own, so both must be given"
        )
    if source.fixed_size and (width, height) != own:
        raise ModelError(
            f"parameters dnn.{name}.input_width and input_height ask for {width} x {height}; "
            f"allowed with {config.model}: {own[0]} x {own[1]}"
        )
    options = {**(decoder.preprocess if decoder else {}), **source.preprocess}
    if config.resize != "auto":
        options["fit"] = config.resize
    if config.color != "auto":
        options["bgr"] = config.color == "bgr"
    for key in ("mean", "std"):
        if getattr(config, key):
            options[key] = tuple(getattr(config, key))
    try:
        return Preprocess(width, height, **options)
    except ValueError as error:
        raise ModelError(f"parameters dnn.{name}.mean and std: {error}") from None


def _view(name: str, config: DnnConfig, decoder: DecoderSpec | None) -> View:
    """The part of the image by parameter `crop`. decoder: None if unknown; results are then not checked.

    name: the DNN or result, as below "dnn.", for messages. Raises ModelError if results cannot be placed.
    """
    if not config.crop:
        return WHOLE
    dnn = name.partition(".")[0]
    view = View((config.crop[0], config.crop[1], config.crop[2], config.crop[3]), f"parameter dnn.{dnn}.crop")
    if decoder is None:
        return view
    kind = RESULT_KINDS.get(decoder.result_kind)
    where = f"results of dnn.{name} (kind '{kind.name}', decoder {decoder.name})"
    if kind.place is None:
        raise ModelError(
            f"parameter dnn.{dnn}.crop is {config.crop}, but {where} cannot be placed in the image; allowed: []"
        )
    return view


def _try(dnn: Dnn, config: DnnConfig) -> None:
    """Run once on zeros, so that a wrong class count or input size is reported now, not with the first frame."""
    try:
        side = (dnn.preprocess.height, dnn.preprocess.width)
        outputs = run_network(dnn.module, np.zeros((1, 3, *side), np.float32))
    except Exception as error:
        size = f"{dnn.preprocess.width} x {dnn.preprocess.height}"
        raise ModelError(
            f"dnn.{dnn.name}: {config.model} fails on an image of {size}: {summarize_error(error)}"
        ) from None
    for name, output in dnn.outputs.items():
        where = f"{dnn.name}.output.{name}" if name else dnn.name
        numbers = range(len(outputs)) if output.raw_outputs is None else output.raw_outputs
        if missing := [number for number in numbers if number >= len(outputs)]:
            raise ModelError(
                f"parameter dnn.{where}.raw_outputs names '{missing[0]}', but {config.model} has {len(outputs)} raw "
                f"outputs; allowed: 0 to {len(outputs) - 1}"
            )
        try:
            output.decoder.check([outputs[number] for number in numbers])
        except OutputError as error:
            raise ModelError(f"dnn.{where}: {config.model}: {error}") from None
