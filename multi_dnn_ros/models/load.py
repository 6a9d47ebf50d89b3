"""Loads a DNN from its parameters: network, preprocessing and decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from multi_dnn_ros.decoders.anchor import AnchorHead
from multi_dnn_ros.decoders.base import DEFAULT_SCORE_THRESHOLD, Decoder
from multi_dnn_ros.decoders.registry import DECODERS, DecoderSpec
from multi_dnn_ros.models.decoder_choice import choose_decoder, input_size, run_on_zeros
from multi_dnn_ros.models.dnn import Dnn, Output, Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.label_names import LABEL_SETS, configured_labels
from multi_dnn_ros.models.sources import load_source
from multi_dnn_ros.settings.flat_parameters import REPLACED_BY_OUTPUTS
from multi_dnn_ros.settings.forms import PRESETS
from multi_dnn_ros.settings.schema import DnnConfig, OutputConfig
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.result_kind import RESULT_KINDS
from multi_dnn_ros.vision.results import OutputError
from multi_dnn_ros.vision.view import WHOLE, View

T = TypeVar("T")

#: More class names than this do not fit into vision_msgs/LabelInfo, which numbers them in 16 bits.
_MAX_LABELS = 65_536


@dataclass(frozen=True)
class Result:
    """One result of a DNN, with what would describe a DNN that had only this result.

    name: for messages, below "dnn.": `<dnn>` or `<dnn>.output.<output>`. source: the network as if it had only the raw
    outputs of this result. config: the DNN's, with the parameters of this result. raw_outputs: the numbers of these raw
    outputs.
    """

    name: str
    source: Source
    config: DnnConfig
    raw_outputs: tuple[int, ...]


def load_dnn(name: str, config: DnnConfig, *, onnx: bool = False) -> Dnn:
    """Load the DNN of parameters ``dnn.<name>.*`` on the CPU, and run it once on zeros to check that its decoder fits.

    onnx: as an OnnxNetwork, which ONNX Runtime serves on a CPU; otherwise as a PyTorch module. Raises ModelError, which
    names the parameter or file, the value and what is allowed.
    """
    return dnn_of(load_source(name, config, onnx=onnx), name, config)


def dnn_of(source: Source, name: str, config: DnnConfig) -> Dnn:
    """As `load_dnn`, for a loaded network. A torchvision detector is taken apart by its decoder."""
    size = _size(source, name, config)
    raw = run_on_zeros(source, f"dnn.{name}: {config.model}", size)
    source = replace(source, outputs=tuple(tuple(output.shape) for output in raw))
    problems: list[str] = []

    def attempt(step: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return step(*arguments)
        except ModelError as error:
            problems.extend(line for line in str(error).splitlines() if line not in problems)
            return None

    results = results_of(source, name, config)
    chosen = {output: attempt(choose_decoder, each.source, each.name, each.config) for output, each in results.items()}
    found = {output: pair for output, pair in chosen.items() if pair is not None}
    labels = {output: attempt(_labels, each, *found.get(output, (None, 0))) for output, each in results.items()}
    preprocess = attempt(_preprocess, source, name, config, size, [spec for spec, _ in found.values()])
    if problems or preprocess is None:
        raise ModelError("\n".join(problems))
    outputs = {
        output: _output(each, found[output][0], labels[output] or (), preprocess) for output, each in results.items()
    }
    for output, each in results.items():
        try:
            outputs[output].decoder.check([raw[number] for number in each.raw_outputs])
        except OutputError as error:
            raise ModelError(f"dnn.{each.name}: {config.model}: {error}") from None
    return Dnn(name, config.role, source.runnable, preprocess, outputs, _view(name, config, outputs))


def results_of(source: Source, name: str, config: DnnConfig) -> dict[str, Result]:
    """The results of a DNN by name; one with an empty name if parameter `outputs` is empty.

    source: with the shapes of its outputs. Raises ModelError with a line for each problem of raw_outputs, and for each
    parameter of the DNN that has no effect.
    """
    shapes = source.outputs or ()
    if not config.outputs:
        return {"": Result(name, source, config, tuple(range(len(shapes))))}
    problems = [
        f"parameter dnn.{name}.{field} is {getattr(config, field)!r}, but the DNN has several results; set "
        f"dnn.{name}.output.<output>.{field} instead (outputs: {', '.join(config.outputs)})"
        for field in REPLACED_BY_OUTPUTS
        if getattr(config, field) != DnnConfig.model_fields[field].get_default(call_default_factory=True)
    ]
    known = {**{str(number): number for number in range(len(shapes))},
             **{text: number for number, text in enumerate(source.output_names)}}  # fmt: skip
    results: dict[str, Result] = {}
    for output, settings in config.outputs.items():
        where = f"{name}.output.{output}"
        problems += [
            f"parameter dnn.{where}.raw_outputs names '{entry}', which {config.model} does not have; allowed: "
            + ", ".join([*source.output_names, *map(str, range(len(shapes)))])
            for entry in settings.raw_outputs
            if entry not in known
        ]
        numbers = tuple(known.get(entry, 0) for entry in settings.raw_outputs) or tuple(range(len(shapes)))
        own = _settings(config, settings)
        selected = replace(source, outputs=tuple(shapes[number] for number in numbers))
        if own.labels != config.labels:  # the model's class names belong to another result
            selected = replace(selected, labels=(), classes=0)
        results[output] = Result(where, selected, own, numbers)
    if problems:
        raise ModelError("\n".join(problems))
    return results


def _settings(config: DnnConfig, output: OutputConfig) -> DnnConfig:
    """The DNN's settings with those of one result. For lane lines and areas, the decoder's default labels take
    precedence over the DNN's labels, which name the classes of its boxes.
    """
    decoder = DECODERS.get(output.decoder) if output.decoder != "auto" else None
    named = list(decoder.default_labels) if decoder is not None and decoder.result_kind != "detections" else []
    own = {field: getattr(output, field) for field in REPLACED_BY_OUTPUTS}
    labels = output.labels or named or config.labels
    return config.model_copy(update={**own, "labels": labels, "role": "network", "outputs": {}})


def _size(source: Source, name: str, config: DnnConfig) -> tuple[int, int]:
    size = input_size(source, config)
    if size is None:
        raise ModelError(
            f"parameters dnn.{name}.input_width and input_height are {config.input_width} and {config.input_height}; "
            f"{config.model} has no size of its own, so both must be given"
        )
    if source.fixed_size and source.size is not None and size != source.size:
        raise ModelError(
            f"parameters dnn.{name}.input_width and input_height ask for {size[0]} x {size[1]}; "
            f"allowed with {config.model}: {source.size[0]} x {source.size[1]}"
        )
    return size


def _labels(result: Result, decoder: DecoderSpec | None, classes: int) -> tuple[str, ...]:
    """The class names of a result, to which `keep` and `num_classes` must fit. decoder: None: its problem is reported.

    classes: their number; 0: unknown.
    """
    source, config, where = result.source, result.config, f"parameter dnn.{result.name}"
    labels = configured_labels(result.name, config)
    classes = classes or source.classes or len(source.labels)
    if config.labels:
        if classes and len(labels) != classes:
            raise ModelError(f"{where}.labels has {len(labels)} names, but {config.model} has {classes} classes")
        if not 0 < len(labels) <= _MAX_LABELS:
            raise ModelError(f"{where}.labels has {len(labels)} names; allowed: 1 to {_MAX_LABELS}")
    elif source.labels:
        labels = source.labels
    elif decoder is not None and decoder.default_labels and classes <= 1:
        labels = decoder.default_labels
    elif decoder is not None:
        count = f"each of its {classes} classes" if classes else "each class"
        known = ", ".join(f"[{key}] for {len(names)} classes of COCO" for key, names in LABEL_SETS.items())
        raise ModelError(f"{where}.labels is []; {config.model} needs a name for {count}, a file, or {known}")
    if decoder is not None:
        try:
            getattr(decoder.factory, "check_labels", Decoder.check_labels)(labels, config.keep)
        except ValueError as error:
            raise ModelError(f"{where}.{error}") from None
        if config.num_classes and config.num_classes != len(labels):
            raise ModelError(
                f"{where}.num_classes is {config.num_classes}, but {config.model} has {len(labels)} classes"
            )
    return labels


def _preprocess(
    source: Source, name: str, config: DnnConfig, size: tuple[int, int], decoders: Sequence[DecoderSpec]
) -> Preprocess:
    """Where neither the model nor the parameters define an option, the first decoder with a default for it decides."""
    options: dict[str, Any] = {}
    for decoder in reversed(decoders):
        options |= decoder.preprocess
    options |= source.preprocess
    if config.resize != "auto":
        options["fit"] = config.resize
    if config.color != "auto":
        options["bgr"] = config.color == "bgr"
    options |= {key: tuple(getattr(config, key)) for key in ("mean", "std") if getattr(config, key)}
    try:
        return Preprocess(*size, **options)
    except ValueError as error:
        raise ModelError(f"parameters dnn.{name}.mean and std: {error}") from None


def _output(result: Result, spec: DecoderSpec, labels: tuple[str, ...], preprocess: Preprocess) -> Output:
    config, source, head = result.config, result.source, result.source.detector
    if head is not None and not isinstance(head, AnchorHead):
        from multi_dnn_ros.models.torchvision_detector import anchor_head

        head = anchor_head(head, (preprocess.height, preprocess.width))
    preset = PRESETS.get(config.role)
    # What parameter score_threshold 0 stands for.
    own_threshold = preset.score_threshold if preset is not None else DEFAULT_SCORE_THRESHOLD
    decoder = spec.factory(
        *(() if head is None else (head,)),
        preprocess,
        labels,
        keep=config.keep,
        score_threshold=config.score_threshold,
        own_threshold=own_threshold if source.score_threshold is None else source.score_threshold,
        iou_threshold=config.iou_threshold,
        max_detections=config.max_detections,
    )
    return Output(decoder, labels, spec.result_kind, result.raw_outputs, spec.name)


def _view(name: str, config: DnnConfig, outputs: dict[str, Output]) -> View:
    """The part of the image by parameter `crop`. Raises ModelError if results cannot be placed."""
    if not config.crop:
        return WHOLE
    for output, each in outputs.items():
        if RESULT_KINDS.get(each.result_kind).place is None:
            where = f"{name}.output.{output}" if output else name
            raise ModelError(
                f"parameter dnn.{name}.crop is {config.crop}, but results of dnn.{where} (kind '{each.result_kind}', "
                f"decoder {each.decoder_name}) cannot be placed in the image; allowed: []"
            )
    left, top, right, bottom = config.crop
    return View((left, top, right, bottom), f"parameter dnn.{name}.crop")
