"""Splits a DNN with parameter `outputs` into its results, each with source and settings like a separate DNN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from multi_dnn_ros.decoders.registry import DECODERS
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.settings.flat_parameters import REPLACED_BY_OUTPUTS
from multi_dnn_ros.settings.schema import DnnConfig, OutputConfig

#: Role of a result: a label without defaults.
_ROLE = "network"


@dataclass(frozen=True)
class OutputPart:
    """One result of a DNN.

    name: for messages, below "dnn.": `<dnn>` or `<dnn>.output.<output>`. source: the network as if it had only the raw
    outputs of this result. config: the DNN's, with the parameters of this result. raw_outputs: the numbers of these raw
    outputs; None: all.
    """

    name: str
    source: Source
    config: DnnConfig
    raw_outputs: tuple[int, ...] | None


def output_parts(source: Source, name: str, config: DnnConfig) -> dict[str, OutputPart]:
    """The results of a DNN by name; one with an empty name if parameter `outputs` is empty.

    Raises ModelError with a line for each problem of raw_outputs, and for each parameter of the DNN that has no effect.
    """
    if not config.outputs:
        return {"": OutputPart(name, source, config, None)}
    problems = []
    for field in REPLACED_BY_OUTPUTS:
        value = getattr(config, field)
        if value != DnnConfig.model_fields[field].get_default(call_default_factory=True):
            problems.append(
                f"parameter dnn.{name}.{field} is {value!r}, but the DNN has several results; set "
                f"dnn.{name}.output.<output>.{field} instead (outputs: {', '.join(config.outputs)})"
            )
    parts: dict[str, OutputPart] = {}
    for output, settings in config.outputs.items():
        where = f"{name}.output.{output}"
        try:
            numbers = _numbers(settings.raw_outputs, source, where, config.model)
        except ModelError as error:
            problems.append(str(error))
        else:
            own = _settings(config, settings)
            selected = _with_selected(source, numbers)
            if own.labels != config.labels:  # the model's class names belong to another result
                selected = replace(selected, labels=(), classes=0)
            parts[output] = OutputPart(where, selected, own, numbers)
    if problems:
        raise ModelError("\n".join(problems))
    return parts


def _settings(config: DnnConfig, output: OutputConfig) -> DnnConfig:
    """The DNN's settings with those of one result. For lane lines and areas, the decoder's default labels take
    precedence over the DNN's labels, which name the classes of its boxes.
    """
    decoder = DECODERS.get(output.decoder) if output.decoder != "auto" else None
    named = list(decoder.default_labels) if decoder is not None and decoder.result_kind != "detections" else []
    own = {field: getattr(output, field) for field in REPLACED_BY_OUTPUTS}
    labels = output.labels or named or config.labels
    return config.model_copy(update={**own, "labels": labels, "role": _ROLE, "outputs": {}})


def _numbers(wanted: Sequence[str], source: Source, where: str, model: str) -> tuple[int, ...] | None:
    """The numbers of the raw outputs that `wanted` lists by name or number; None: all. Raises ModelError."""
    if not wanted:
        return None
    names = source.output_names
    count = len(names) or len(source.outputs or ())
    numbers = []
    for entry in wanted:
        if entry in names:
            numbers.append(names.index(entry))
        elif entry.isdecimal() and (not count or int(entry) < count):
            numbers.append(int(entry))
        else:
            allowed = [*names, *map(str, range(count))]
            raise ModelError(
                f"parameter dnn.{where}.raw_outputs names '{entry}', which {model} does not have; allowed: "
                + (", ".join(allowed) if allowed else "numbers from 0")
            )
    return tuple(numbers)


def _with_selected(source: Source, numbers: tuple[int, ...] | None) -> Source:
    """The source with the raw outputs `numbers` only."""
    if numbers is None:
        return source
    outputs = None if source.outputs is None else tuple(source.outputs[number] for number in numbers)
    names = tuple(source.output_names[number] for number in numbers) if source.output_names else ()
    return replace(source, outputs=outputs, output_names=names)
