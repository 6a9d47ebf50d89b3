"""From a DNN's parameters to a DNN that can be cut and run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from multi_dnn_ros.models.dnn import Dnn, Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.sources import load_source, outline_source
from multi_dnn_ros.models.weights import existing_file
from multi_dnn_ros.settings.schema import DnnConfig
from multi_dnn_ros.vision.decoders.anchor import AnchorDecoder
from multi_dnn_ros.vision.decoders.base import Decoder
from multi_dnn_ros.vision.decoders.grid import GridDecoder
from multi_dnn_ros.vision.decoders.lane import LaneDecoder
from multi_dnn_ros.vision.decoders.yolo import YoloDecoder
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import OutputError

T = TypeVar("T")

_DECODERS: dict[str, type[Decoder]] = {
    "yolo": YoloDecoder, "grid": GridDecoder, "lane": LaneDecoder, "torchvision": AnchorDecoder,
}  # fmt: skip
#: How the heads that files come with were trained: Ultralytics letterboxes, FastestDet stretches and wants BGR.
_HABITS: dict[str, dict[str, Any]] = {"yolo": {"fit": "letterbox"}, "grid": {"bgr": True}}
#: More class names than this do not fit into vision_msgs/LabelInfo, which numbers them in 16 bits.
_MAX_LABELS = 65_536


@dataclass(frozen=True)
class Interface:
    """How images go into a DNN and its outputs come out, by its parameters and what its source knows.

    decoder: its name. labels: class names by index.
    """

    decoder: str
    labels: tuple[str, ...]
    preprocess: Preprocess


def load_dnn(name: str, config: DnnConfig) -> Dnn:
    """Load the DNN of parameters ``dnn.<name>.*``, on the CPU, and run it once on zeros to see that its decoder fits.

    Raises ModelError, which names the parameter or file, the value and what is allowed.
    """
    return dnn_of(load_source(name, config), name, config)


def check_dnn(name: str, config: DnnConfig) -> None:
    """Raise ModelError, a line for each problem, for what is wrong by parameters and the headers of files.

    Takes a second, and little memory, however large the DNN. What is left for :func:`load_dnn` to find: damage among
    the values of weights, weights that cannot be downloaded, outputs that only running the network shows.
    """
    source = outline_source(name, config)
    interface = interface_of(source, name, config)
    if source.outputs is None or source.detector is not None:
        return
    shapes = [_with_free_axes(shape) for shape in source.outputs]
    if all(shape[1:2] != (0,) for shape in source.outputs):  # else the number of classes is open
        decoder = _DECODERS[interface.decoder](interface.preprocess, interface.labels, keep=config.keep)
        _check_outputs(decoder, [torch.empty(shape, device="meta") for shape in shapes], name, config)


def _with_free_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with an axis that may have any length as 1."""
    return tuple(axis or 1 for axis in shape)


def dnn_of(source: Source, name: str, config: DnnConfig) -> Dnn:
    """As `load_dnn`, of a network that is there already; it is taken apart where its decoder does that."""
    interface = interface_of(source, name, config)
    preprocess, labels = interface.preprocess, interface.labels
    options: dict[str, Any] = {
        "keep": config.keep,
        "score_threshold": config.score_threshold,
        "own_threshold": source.score_threshold,
        "iou_threshold": config.iou_threshold,
        "max_detections": config.max_detections,
    }
    module = source.module
    decoder: Decoder
    if source.detector is not None:
        decoder = anchors = AnchorDecoder(source.detector, preprocess, labels, **options)
        module = anchors.core.eval()
    else:
        decoder = _DECODERS[interface.decoder](preprocess, labels, **options)
    dnn = Dnn(name, config.role, module, preprocess, decoder, labels)
    _try(dnn, config)
    return dnn


def interface_of(source: Source, name: str, config: DnnConfig) -> Interface:
    """What parameters and source say together. ModelError with a line for each thing in which they disagree."""
    problems: list[str] = []

    def collected(step: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return step(*arguments)
        except ModelError as error:
            problems.extend(str(error).splitlines())
            return None

    decoder = collected(_decoder_name, name, config, source)
    labels = collected(_labels, name, config, source)
    preprocess = collected(_preprocess, name, config, source, decoder or "")
    if decoder is not None and labels is not None:
        collected(_check_classes, name, config, decoder, labels)
    if problems or decoder is None or labels is None or preprocess is None:
        raise ModelError("\n".join(problems))
    return Interface(decoder, labels, preprocess)


def _check_classes(name: str, config: DnnConfig, decoder: str, labels: tuple[str, ...]) -> None:
    """Whatever the source, `keep` and `num_classes` go with the class names."""
    problems = []
    try:
        _DECODERS[decoder].check_labels(labels, config.keep)
    except ValueError as error:
        problems.append(f"parameter dnn.{name}.{error}")
    if config.num_classes and config.num_classes != len(labels):
        problems.append(
            f"parameter dnn.{name}.num_classes is {config.num_classes}, but {config.model} has {len(labels)} classes"
        )
    if problems:
        raise ModelError("\n".join(problems))


def _decoder_name(name: str, config: DnnConfig, source: Source) -> str:
    chosen = source.decoder if config.decoder == "auto" else config.decoder
    if not chosen:
        raise ModelError(
            f"parameter dnn.{name}.decoder is 'auto', but {config.model} does not say what its outputs mean; "
            "allowed: yolo, grid, lane"
        )
    if (chosen == "torchvision") != (source.detector is not None):
        allowed = "auto, torchvision" if source.detector is not None else "yolo, grid, lane"
        raise ModelError(f"parameter dnn.{name}.decoder is '{chosen}'; allowed with {config.model}: {allowed}")
    if (config.role == "lane") != (chosen == "lane"):
        raise ModelError(f"parameter dnn.{name}.role is '{config.role}', but {config.model} is decoded as '{chosen}'")
    return chosen


def _labels(name: str, config: DnnConfig, source: Source) -> tuple[str, ...]:
    if not config.labels:
        if source.labels:
            return source.labels
        if config.role == "lane" and source.classes <= 1:
            return ("lane",)
        count = f"each of its {source.classes} classes" if source.classes else "each class"
        raise ModelError(f"parameter dnn.{name}.labels is []; {config.model} needs a name for {count}, or a file")
    only = config.labels[0]
    if len(config.labels) == 1 and ("/" in only or Path(only).suffix in (".txt", ".names")):
        file = existing_file(only, f"parameter dnn.{name}.labels")
        try:
            labels = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
        except UnicodeDecodeError:
            raise ModelError(f"parameter dnn.{name}.labels is '{only}': not a text file") from None
    else:
        labels = tuple(config.labels)
    classes = source.classes or len(source.labels)
    if classes and len(labels) != classes:
        raise ModelError(
            f"parameter dnn.{name}.labels has {len(labels)} names, but {config.model} has {classes} classes"
        )
    if not 0 < len(labels) <= _MAX_LABELS:
        raise ModelError(f"parameter dnn.{name}.labels has {len(labels)} names; allowed: 1 to {_MAX_LABELS}")
    return labels


def _preprocess(name: str, config: DnnConfig, source: Source, decoder: str) -> Preprocess:
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
    options = {**({} if source.preprocess else _HABITS.get(decoder, {})), **source.preprocess}
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


def _try(dnn: Dnn, config: DnnConfig) -> None:
    """One run on zeros: a class count or an input size that does not fit is told now, not with the first frame."""
    try:
        with torch.inference_mode():
            outputs = pytree.tree_leaves(dnn.module(*dnn.example_inputs()))
    except Exception as error:
        size = f"{dnn.preprocess.width} x {dnn.preprocess.height}"
        raise ModelError(f"dnn.{dnn.name}: {config.model} fails on an image of {size}: {error}") from None
    tensors = [output for output in outputs if isinstance(output, torch.Tensor)]
    _check_outputs(dnn.decoder, tensors, dnn.name, config)


def _check_outputs(decoder: Decoder, outputs: list[torch.Tensor], name: str, config: DnnConfig) -> None:
    try:
        decoder.check(outputs)
    except OutputError as error:
        raise ModelError(f"dnn.{name}: {config.model}: {error}") from None
