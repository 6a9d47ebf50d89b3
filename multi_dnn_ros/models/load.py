"""From a DNN's parameters to a DNN that can be cut and run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from multi_dnn_ros.models.decoders.anchor import AnchorDecoder
from multi_dnn_ros.models.decoders.base import Decoder
from multi_dnn_ros.models.decoders.grid import GridDecoder
from multi_dnn_ros.models.decoders.lane import LaneDecoder
from multi_dnn_ros.models.decoders.yolo import YoloDecoder
from multi_dnn_ros.models.dnn import Dnn, ModelError, Source
from multi_dnn_ros.models.preprocess import Preprocess
from multi_dnn_ros.models.results import OutputError
from multi_dnn_ros.models.sources import load_source
from multi_dnn_ros.models.weights import existing_file
from multi_dnn_ros.schema import DnnConfig

_DECODERS: dict[str, type[Decoder]] = {"yolo": YoloDecoder, "grid": GridDecoder, "lane": LaneDecoder}
#: How the heads that files come with were trained: Ultralytics letterboxes, FastestDet stretches and wants BGR.
_HABITS: dict[str, dict[str, Any]] = {"yolo": {"fit": "letterbox"}, "grid": {"bgr": True}}


def load_dnn(name: str, config: DnnConfig) -> Dnn:
    """Load the DNN of parameters ``dnn.<name>.*``, on the CPU, and run it once on zeros to see that its decoder fits.

    Raises ModelError, which names the parameter or file, the value and what is allowed.
    """
    return dnn_of(load_source(name, config), name, config)


def dnn_of(source: Source, name: str, config: DnnConfig) -> Dnn:
    """As `load_dnn`, of a network that is there already; it is taken apart where its decoder does that."""
    decoder_name = _decoder_name(name, config, source)
    labels = _labels(name, config, source)
    preprocess = _preprocess(name, config, source, decoder_name)
    options: dict[str, Any] = {
        "keep": config.keep,
        "score_threshold": config.score_threshold,
        "own_threshold": source.score_threshold,
        "iou_threshold": config.iou_threshold,
        "max_detections": config.max_detections,
    }
    module = source.module
    try:
        if source.detector is not None:
            anchors = AnchorDecoder(source.detector, preprocess, labels, **options)
            module, decoder = anchors.core.eval(), anchors
        else:
            decoder = _DECODERS[decoder_name](preprocess, labels, **options)  # type: ignore[assignment]
    except ValueError as error:
        raise ModelError(f"parameter dnn.{name}.{error}") from None
    dnn = Dnn(name, config.role, module, preprocess, decoder, labels)
    _try(dnn, config)
    return dnn


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
        if config.role == "lane":
            return ("lane",)
        raise ModelError(f"parameter dnn.{name}.labels is []; {config.model} needs a name for each class, or a file")
    only = config.labels[0]
    if len(config.labels) == 1 and ("/" in only or Path(only).suffix in (".txt", ".names")):
        file = existing_file(only, f"parameter dnn.{name}.labels")
        try:
            labels = tuple(line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
        except UnicodeDecodeError:
            raise ModelError(f"parameter dnn.{name}.labels is '{only}': not a text file") from None
    else:
        labels = tuple(config.labels)
    if source.labels and len(labels) != len(source.labels):
        raise ModelError(
            f"parameter dnn.{name}.labels has {len(labels)} names, but {config.model} has {len(source.labels)} classes"
        )
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
        raise ModelError(f"parameters dnn.{name}: {error}") from None


def _try(dnn: Dnn, config: DnnConfig) -> None:
    """One run on zeros: a class count or an input size that does not fit is told now, not with the first frame."""
    try:
        with torch.inference_mode():
            outputs = pytree.tree_leaves(dnn.module(*dnn.example_inputs()))
    except Exception as error:
        size = f"{dnn.preprocess.width} x {dnn.preprocess.height}"
        raise ModelError(f"dnn.{dnn.name}: {config.model} fails on an image of {size}: {error}") from None
    try:
        dnn.decoder.check([output for output in outputs if isinstance(output, torch.Tensor)])
    except OutputError as error:
        raise ModelError(f"dnn.{dnn.name}: {config.model}: {error}") from None
