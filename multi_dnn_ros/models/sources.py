"""Where a DNN comes from: our own, torchvision's builders, exported programs, ONNX files."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from multi_dnn_ros.models import networks
from multi_dnn_ros.models.decoders.anchor import ONE_STAGE
from multi_dnn_ros.models.dnn import ModelError
from multi_dnn_ros.models.exported_archive import UnsafeArchive, check_archive
from multi_dnn_ros.models.onnx_shapes import fix_shapes
from multi_dnn_ros.models.weights import existing_file, load_weights, read_state_dict
from multi_dnn_ros.schema import DnnConfig

_WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_WEIGHTS = Path(__file__).resolve().parents[1] / "weights"
#: Input of torchvision's RetinaNet and FCOS where none is given: their 800 x 1333 rule applied to a 4:3 image.
_TORCHVISION_SIZE = (1088, 800)
_SEGMENTATION_SIZE = (520, 520)


@dataclass(frozen=True)
class Source:
    """A network and what is known about it before the configuration has its say.

    module: eval mode, on the CPU. size: input (width, height); None: the configuration must give it.
    decoder: name of the decoder; "": the configuration must name it. labels: class names, empty: unknown.
    preprocess: keyword arguments of Preprocess. detector: the torchvision detector that its decoder takes apart.
    """

    module: nn.Module
    size: tuple[int, int] | None
    decoder: str
    labels: tuple[str, ...] = ()
    preprocess: dict[str, Any] = field(default_factory=dict)
    detector: nn.Module | None = None
    fixed_size: bool = False


def load_source(name: str, config: DnnConfig) -> Source:
    """The network of parameter `dnn.<name>.model` with its weights. ModelError."""
    kind, _, rest = config.model.partition(":")
    if kind == "torchvision":
        return _torchvision(name, rest, config)
    if config.weights not in ("default", ""):
        raise ModelError(
            f"parameter dnn.{name}.weights is '{config.weights}'; allowed with {config.model}: default, as the weights "
            "are part of the model"
        )
    if kind == "builtin":
        return _builtin(name, rest)
    loaders: dict[str, Callable[[Path], Source]] = {".pt2": _exported, ".onnx": _onnx}
    suffix = Path(config.model).suffix.lower()
    if suffix not in loaders:
        raise ModelError(
            f"parameter dnn.{name}.model is '{config.model}'; allowed: builtin:{', builtin:'.join(_builtin_names())}, "
            "torchvision:<builder>, a .pt2 file, an .onnx file"
        )
    return loaders[suffix](existing_file(config.model, f"parameter dnn.{name}.model"))


def _builtin_names() -> list[str]:
    return sorted(path.stem for path in _WEIGHTS.glob("*.safetensors"))


def _builtin(name: str, model: str) -> Source:
    from safetensors import safe_open

    if model not in _builtin_names():
        raise ModelError(
            f"parameter dnn.{name}.model is 'builtin:{model}'; allowed: builtin:{', builtin:'.join(_builtin_names())}"
        )
    path = _WEIGHTS / f"{model}.safetensors"
    weights = read_state_dict(path)
    with safe_open(path, "pt") as file:
        header = {key: json.loads(value) for key, value in file.metadata().items()}
    module = networks.build(header["architecture"], header["arguments"])
    load_weights(module, weights, str(path))
    width, height = header["input_size"]
    return Source(module.eval(), (width, height), header["decoder"], tuple(header["labels"]), fixed_size=True)


class _Segmentation(nn.Module):
    """A torchvision segmentation network without auxiliary classifier: (1, 3, h, w) -> logits (1, classes, h, w)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(image)["out"]
        return logits


def _torchvision(name: str, builder: str, config: DnnConfig) -> Source:
    from torchvision import models

    known = [*models.list_models(models.detection), *models.list_models(models.segmentation)]
    if builder not in known:
        one_stage = [model for model in known if "rcnn" not in model]
        raise ModelError(f"parameter dnn.{name}.model is '{config.model}'; allowed builders: {', '.join(one_stage)}")
    catalogue = models.get_model_weights(builder)
    options: dict[str, Any] = {"weights": None, "weights_backbone": None}
    if config.num_classes:
        options["num_classes"] = config.num_classes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = models.get_model(builder, **options).eval()
    is_detector = builder in models.list_models(models.detection)
    if is_detector and not isinstance(network, ONE_STAGE):
        raise ModelError(
            f"parameter dnn.{name}.model is '{config.model}', a detector of two stages, which has no one graph to cut; "
            "allowed: SSD, SSDlite, RetinaNet, FCOS"
        )
    _fill_torchvision(name, config, network, catalogue)
    labels = tuple(catalogue.DEFAULT.meta["categories"])
    if config.num_classes and config.num_classes != len(labels):
        labels = ()
    if not is_detector:
        normalization = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
        return Source(_Segmentation(network).eval(), _SEGMENTATION_SIZE, "lane", labels, normalization)
    transform = network.transform
    preprocess = {
        "mean": tuple(transform.image_mean),
        "std": tuple(transform.image_std),
        "antialias": False,
        "centered": False,
        "pad": None,
        "fit": "stretch" if transform.fixed_size else "letterbox",
    }
    size = tuple(transform.fixed_size or _TORCHVISION_SIZE)
    return Source(network, (size[0], size[1]), "torchvision", labels, preprocess, detector=network)


def _fill_torchvision(name: str, config: DnnConfig, network: nn.Module, catalogue: Any) -> None:
    def fill(weights: Mapping[str, torch.Tensor], source: str) -> None:
        # The auxiliary head serves training alone: weights that bring one fit the network that is run without it.
        load_weights(network, {key: value for key, value in weights.items() if "aux_classifier." not in key}, source)

    names = [entry.name for entry in catalogue]
    if config.weights == "random":
        return
    if config.weights in names:
        try:
            weights = catalogue[config.weights].get_state_dict(progress=False, check_hash=True)
        except Exception as error:
            raise ModelError(
                f"parameter dnn.{name}.weights is '{config.weights}', which cannot be downloaded: {error}; give a file"
            ) from None
        fill(weights, f"parameter dnn.{name}.weights '{config.weights}'")
        return
    if Path(config.weights).suffix not in (".safetensors", ".pth", ".pt"):
        raise ModelError(
            f"parameter dnn.{name}.weights is '{config.weights}'; allowed: {', '.join(names)}, random, "
            "a .safetensors, .pth or .pt file"
        )
    file = existing_file(config.weights, f"parameter dnn.{name}.weights")
    fill(read_state_dict(file), str(file))


def _exported(path: Path) -> Source:
    try:
        check_archive(path)
        with _no_pickles():
            program = torch.export.load(path)
        module: nn.Module = program.module(check_guards=False)
    except UnsafeArchive as error:
        raise ModelError(f"{path}: refused, as loading it could run code: it {error}") from None
    except Exception as error:
        raise ModelError(f"{path}: cannot be read as an exported program: {_first_line(error)}") from None
    shapes = [
        tuple(axis if isinstance(axis, int) else 0 for axis in node.meta["val"].shape)  # symbolic: free
        for node in program.graph.find_nodes(op="placeholder")
        if node.name in program.graph_signature.user_inputs
    ]
    for part in module.modules():  # exported modules refuse eval(); what they compute was fixed at export
        part.training = False
    size = _image_size(path, shapes)
    return Source(module, size, "", fixed_size=size is not None)


@contextlib.contextmanager
def _no_pickles() -> Iterator[None]:
    """torch.export.load itself asks for unrestricted pickles in places; PyTorch's own switch overrules it."""
    before = os.environ.get(_WEIGHTS_ONLY)
    os.environ[_WEIGHTS_ONLY] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_WEIGHTS_ONLY]
        else:
            os.environ[_WEIGHTS_ONLY] = before


def _onnx(path: Path) -> Source:
    import onnx
    import onnx2torch

    try:
        model = onnx.load(path)
        module = onnx2torch.convert(model).eval()
        fix_shapes(module)
    except NotImplementedError as error:
        raise ModelError(f"{path}: an operator that onnx2torch does not have: {_first_line(error)}") from None
    except Exception as error:
        raise ModelError(f"{path}: cannot be read as ONNX: {type(error).__name__}: {_first_line(error)}") from None
    constants = {tensor.name for tensor in model.graph.initializer}
    shapes = [
        tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim)
        for value in model.graph.input
        if value.name not in constants
    ]
    size = _image_size(path, shapes)
    return Source(module, size, "", fixed_size=size is not None)


def _image_size(path: Path, shapes: list[tuple[Any, ...]]) -> tuple[int, int] | None:
    """(width, height) of the one image input, None where they are free; 0 in `shapes` is a free axis."""
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][1] not in (3, 0) or shapes[0][0] not in (1, 0):
        raise ModelError(f"{path}: takes inputs of shapes {shapes}; allowed: one image (1, 3, height, width)")
    _, _, height, width = shapes[0]
    if not isinstance(height, int) or not isinstance(width, int) or not height or not width:
        return None
    return width, height


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
