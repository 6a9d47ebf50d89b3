"""Model source of torchvision's builders: one-stage detectors, segmentation, and classifiers for offline verbs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision import models

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.registry import ModelRequest, existing_file
from multi_dnn_ros.models.weights import load_weights, no_pickles, read_state_dict
from multi_dnn_ros.settings.schema import DnnConfig

#: Default input of RetinaNet and FCOS, (width, height): their 800 x 1333 rule applied to a 4:3 image.
_DETECTOR_SIZE = (1088, 800)
#: Heads that are used in training only: their weights are ignored.
_AUXILIARY = ("aux_classifier.", "AuxLogits.", "aux1.", "aux2.")


class Segmentation(nn.Module):
    """A torchvision segmentation network without auxiliary classifier: (1, 3, h, w) -> logits (1, classes, h, w)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(image)["out"]
        return logits


def torchvision_source(request: ModelRequest) -> Source:
    """The network of a builder with the weights that the request's parameters name.

    With weights `random`, it is initialized from seed 0. Raises ModelError.
    """
    where, builder, config = request.where, request.name, request.config
    classifiers = request.classifiers
    detectors, segmentation = models.list_models(models.detection), models.list_models(models.segmentation)
    known = [*detectors, *segmentation, *(_classifiers() if classifiers else ())]
    if builder not in known:
        one_stage = [model for model in known if not _has_two_stages(model)]
        raise ModelError(f"{where}model is '{config.model}'; allowed builders: {', '.join(one_stage)}")
    if _has_two_stages(builder):
        raise ModelError(
            f"{where}model is '{config.model}', a two-stage detector, which is not a single graph that can be cut; "
            "allowed: SSD, SSDlite, RetinaNet, FCOS"
        )
    catalogue = models.get_model_weights(builder)
    file = _weights_file(where, config, catalogue)  # before the network is built, which takes up to a second
    options: dict[str, Any] = {"weights": None}
    if builder in (*detectors, *segmentation):
        options["weights_backbone"] = None
    elif builder in ("inception_v3", "googlenet"):
        options.update(aux_logits=False, init_weights=True)
    if config.num_classes:
        options["num_classes"] = config.num_classes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = models.get_model(builder, **options).eval()
    _fill(where, config, network, catalogue, file)
    trained = catalogue[config.weights] if config.weights in [entry.name for entry in catalogue] else catalogue.DEFAULT
    transforms = trained.transforms()  # how the images were prepared
    labels = tuple(trained.meta["categories"])
    classes = config.num_classes or len(labels)
    if classes != len(labels):
        labels = ()
    if builder in segmentation:
        side = transforms.resize_size[0]
        own = Segmentation(network).eval()
        return Source(own, (side, side), "lane", labels, _normalization(transforms), classes=classes)
    if builder not in detectors:
        side = transforms.crop_size[0]
        normalization = _normalization(transforms)
        return Source(network, (side, side), "classification", labels, normalization, classes=classes)
    transform = network.transform
    preprocess = {
        "mean": tuple(transform.image_mean),
        "std": tuple(transform.image_std),
        "antialias": False,
        "centered": False,
        "pad": None,
        "fit": "stretch" if transform.fixed_size else "letterbox",
    }
    size = tuple(transform.fixed_size or _DETECTOR_SIZE)
    return Source(network, (size[0], size[1]), "torchvision", labels, preprocess, detector=network, classes=classes)


def _normalization(transforms: Any) -> dict[str, tuple[float, ...]]:
    return {"mean": tuple(transforms.mean), "std": tuple(transforms.std)}


def _has_two_stages(builder: str) -> bool:
    return "rcnn" in builder


def _weights_file(where: str, config: DnnConfig, catalogue: Any) -> Path | None:
    """The file that parameter weights names; None: it is `random` or the name of one of torchvision's weights.

    Raises ModelError for anything else.
    """
    names = [entry.name for entry in catalogue]
    if config.weights in (*names, "random"):
        return None
    if Path(config.weights).suffix not in (".safetensors", ".pth", ".pt"):
        raise ModelError(
            f"{where}weights is '{config.weights}'; allowed: {', '.join(names)}, random, "
            "a .safetensors, .pth or .pt file"
        )
    return existing_file(config.weights, f"{where}weights")


def _fill(where: str, config: DnnConfig, network: nn.Module, catalogue: Any, file: Path | None) -> None:
    if file is not None:
        weights, named = read_state_dict(file), str(file)
    elif config.weights == "random":
        return
    else:
        named = f"{where}weights '{config.weights}'"
        try:
            with no_pickles():  # torchvision checks the hash of downloads only, not of cached files
                weights = catalogue[config.weights].get_state_dict(progress=False, check_hash=True)
        except Exception as error:
            raise ModelError(
                f"{where}weights is '{config.weights}', which cannot be loaded: {summarize_error(error)}; give a file"
            ) from None
    load_weights(network, {key: value for key, value in weights.items() if not key.startswith(_AUXILIARY)}, named)


def _classifiers() -> list[str]:
    return [name for name in models.list_models(models) if not name.startswith(("quantized", "raft"))]
