"""A network to be trained or scored, with the meaning of its inputs and outputs."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torchvision.transforms.v2 import functional as v2f

from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.decoders.base import Decoder
from multi_dnn_ros.decoders.layout import Layout
from multi_dnn_ros.decoders.registry import DECODERS, recognize
from multi_dnn_ros.models.decoder_choice import with_shapes
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.load import dnn_of
from multi_dnn_ros.settings.schema import DnnConfig
from multi_dnn_ros.training.data import Task
from multi_dnn_ros.training.losses import ClassificationLoss, Loss
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.result_kind import RESULT_KINDS, ResultKind

log = logging.getLogger(__name__)

#: Name of the decoder of classifiers, which the node does not serve.
CLASSIFICATION = "classification"


@dataclass(frozen=True)
class Trainable:
    """A network that can be trained.

    source: its origin, without a decoder that was recognized by shapes; `network` trains the weights of its module.
    network: images (B, 3, h, w) float32 as converted by `inputs` -> raw outputs of B images. decoder, and kind of its
    results: None for a classifier. loss: loss on the truth; None if the network can only be trained by a teacher.
    """

    model: str
    source: Source
    network: nn.Module
    task: Task
    labels: tuple[str, ...]
    preprocess: Preprocess
    decoder: Decoder | None
    loss: Loss | None
    kind: ResultKind | None = None

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of its input."""
        return self.preprocess.width, self.preprocess.height

    @property
    def framing(self) -> Preprocess:
        """How an image becomes its input, without mean and std."""
        own = self.preprocess
        # A pad of None is the mean, 0 after normalization; grey of the same brightness is the nearest value.
        pad = sum(own.mean) / 3 if own.pad is None else own.pad
        return Preprocess(*self.size, fit=own.fit, antialias=own.antialias, centered=own.centered, pad=pad)

    def inputs(self, image: Tensor) -> Tensor:
        """(B, 3, h, w) float 0..1 RGB, as fitted by `framing` -> what `network` takes."""
        image = image.flip(1) if self.preprocess.bgr else image
        normalized: Tensor = v2f.normalize(image, list(self.preprocess.mean), list(self.preprocess.std))
        return normalized

    def input_of(self, image: Tensor) -> tuple[Tensor, ...]:
        """The arguments of `network` for an image (3, h, w) uint8 that `framing` has fitted to its input."""
        return (self.inputs(image[None].float() / 255.0),)


def make_trainable(
    source: Source,
    model: str,
    *,
    size: tuple[int, int] | None = None,
    decoder: str = "auto",
    labels: Sequence[str] = (),
    smoothing: float = 0.1,
    report: Callable[[str], None] = log.info,
) -> Trainable:
    """Build a Trainable from the arguments and, where they are empty, from its source.

    size: (width, height). decoder: name of a decoder, `classification`, or auto: the model's own, else the one that
    reads outputs of such shapes. labels: as the parameter of this name. smoothing: label smoothing. report: called with
    a line about a decoder recognized by shapes. Raises ModelError, which names what is missing or does not match.
    """
    size = source.input_size(model, size, "a size")
    source = written = replace(source, size=size)
    if decoder == "auto" and not source.decoder and source.detector is None:
        source = _with_recognized_decoder(source, model, size, len(labels), report)
    chosen = source.decoder if decoder == "auto" else decoder
    source.module.requires_grad_(True)
    if chosen == CLASSIFICATION:
        try:
            preprocess = Preprocess(*size, **source.preprocess)
        except ValueError as error:
            raise ModelError(f"{model}: {error}") from None
        return Trainable(
            model, written, _in_batches(source.module, size), "classes", tuple(labels) or source.labels, preprocess,
            None, ClassificationLoss(smoothing),
        )  # fmt: skip
    try:
        spec = DECODERS.get(chosen)
        kind = RESULT_KINDS.get(spec.result_kind)
    except ExtensionError as error:
        raise ModelError(f"{model}: {error}") from None
    task: Task | None = next((task for task in get_args(Task) if task == kind.truth), None)
    if task is None:
        known = ", ".join(get_args(Task))
        raise ModelError(f"{model}: results of kind '{kind.name}' cannot be trained or scored; data holds {known}")
    taken = source
    if source.detector is not None:
        # A copy, because the decoder takes its detector apart, and the original is written to a file later.
        taken = replace(source, module=copy.deepcopy(source.module), detector=copy.deepcopy(source.detector))
    config = DnnConfig(role="network", model=model, decoder=chosen, labels=tuple(labels) or source.labels)
    dnn = dnn_of(taken, config.role, config)
    # Average precision needs the whole curve, not only what the node would publish.
    if task == "boxes":
        dnn.decoder.score_threshold, dnn.decoder.iou_threshold = 0.01, 0.6
    else:
        dnn.decoder.score_threshold = 0.5
    loss = extensions.loaded(spec.loss)(dnn, source) if spec.loss is not None else None
    network = _in_batches(source.network, size)
    return Trainable(model, written, network, task, dnn.labels, dnn.preprocess, dnn.decoder, loss, kind)


def _with_recognized_decoder(
    source: Source, model: str, size: tuple[int, int], labels: int, report: Callable[[str], None]
) -> Source:
    """The source with the decoder that reads its outputs, or CLASSIFICATION for one output of one row.

    Less certainty is required than in the node: a decoder is also used if it is the only one that fits, because data of
    another task is an error anyway. Raises ModelError, which names the nearest decoders. labels: number of class names.
    """
    layout = Layout(
        with_shapes(source, model, size).outputs or (), size, labels or len(source.labels) or source.classes
    )
    found = recognize(layout)
    shapes = found.layout.shapes
    if found.decided or len(found.matches) == 1:
        report(f"{model}: {found.why}")
        return replace(source, decoder=found.chosen, classes=source.classes or found.matches[0][1].classes)
    if len(shapes) == 1 and len(shapes[0]) == 2:
        report(f"{model}: output {found.layout} is read as the scores of {shapes[0][1]} classes")
        return replace(source, decoder=CLASSIFICATION)
    undecided = "the shapes of its outputs do not decide it: " if found.chosen else ""
    allowed = ", ".join((CLASSIFICATION, *DECODERS.names()))
    raise ModelError(
        f"{model} does not say what its outputs mean: {undecided}{found.why}; name one of the decoders: {allowed}"
    )


class SingleImages(nn.Module):
    """Runs a network exported for one image on a batch."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Any:
        outputs = [self.network(image) for image in images.split(1)]
        leaves, structure = zip(*(pytree.tree_flatten(output) for output in outputs), strict=True)
        return pytree.tree_unflatten([torch.cat(parts) for parts in zip(*leaves, strict=True)], structure[0])


def _in_batches(network: nn.Module, size: tuple[int, int]) -> nn.Module:
    width, height = size
    try:
        with torch.no_grad():
            for leaf in pytree.tree_leaves(network(torch.zeros(2, 3, height, width))):
                if leaf.shape[0] != 2:
                    raise ValueError("its outputs are not one per image")
    except Exception:  # a graph for one image raises arbitrary errors for two
        return SingleImages(network)
    return network
