"""A loaded network (Source), and a DNN ready to be cut into jobs (Dnn)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.decoders.base import Decoder
from multi_dnn_ros.decoders.several import Part, ResultDecoder
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.onnx_network import OnnxNetwork
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.result_kind import RESULT_KINDS
from multi_dnn_ros.vision.view import WHOLE, View

if TYPE_CHECKING:
    import torch
    from torch import nn

    from multi_dnn_ros.models.decomposed import Description


@dataclass(frozen=True)
class Source:
    """A network and what its model source knows about it, before parameters are applied.

    module: a PyTorch module in eval mode on the CPU, or an OnnxNetwork if one was asked for. size: input (width,
    height); None: parameters must give it. decoder: name of the decoder; "": parameters must name it. labels: class
    names by index; empty: unknown. preprocess: keyword arguments of Preprocess; missing ones are the decoder's
    defaults. detector: a torchvision detector, or for an OnnxNetwork of one its AnchorHead. fixed_size: whether no
    other size is possible. description: the description stored in an artifact. classes: number of classes; 0: unknown.
    outputs: shapes of the outputs according to the file, 0 for a free axis; None: unknown. score_threshold: the
    threshold, 0..1, that parameter score_threshold 0 stands for; None: the model has no threshold of its own.
    output_names: names of its outputs in order, according to the file; empty: unknown.
    """

    module: Any
    size: tuple[int, int] | None
    decoder: str
    labels: tuple[str, ...] = ()
    preprocess: dict[str, Any] = field(default_factory=dict)
    detector: Any = None
    fixed_size: bool = False
    description: Description | None = None
    classes: int = 0
    outputs: tuple[tuple[int, ...], ...] | None = None
    score_threshold: float | None = None
    output_names: tuple[str, ...] = ()

    @property
    def runnable(self) -> Any:
        """What a Dnn runs: the OnnxNetwork, or as `network`."""
        return self.module if isinstance(self.module, OnnxNetwork) else self.network

    @property
    def network(self) -> nn.Module:
        """The layers that run on the device; for a torchvision detector, those before its own decoding."""
        if self.detector is None:
            network: nn.Module = self.module
            return network
        from multi_dnn_ros.models.torchvision_detector import DetectorCore

        return DetectorCore(self.detector).eval()

    @property
    def own_interface(self) -> dict[str, Any]:
        """What the model itself says about its images and outputs: fields of the Description of its artifact."""
        return {"preprocess": self.preprocess, "decoder": self.decoder}

    def input_size(self, model: str, requested: tuple[int, int] | None, name: str) -> tuple[int, int]:
        """(width, height) to run at: `requested`, otherwise the network's own.

        model, name: names of the network and of the argument, for messages. Raises ModelError for a size that the
        network does not take, and if no size is known.
        """
        if requested is not None and self.fixed_size and requested != self.size:
            width, height = self.size or (0, 0)
            raise ModelError(f"{name} is {requested[0]}x{requested[1]}; {model} takes {width}x{height} only")
        chosen = requested or self.size
        if chosen is None:
            raise ModelError(f"{name} is needed: {model} has no input size of its own")
        return chosen


@dataclass(frozen=True)
class Output:
    """One result of a DNN.

    decoder: (flat raw outputs on the CPU, (H, W) of the source image) -> result; `score_threshold`, `iou_threshold` and
    `max_detections` may be set at any time. labels: class names by index, as in the decoder's results. result_kind:
    name of the kind of its results. raw_outputs: numbers of the raw outputs that the decoder reads; None: all.
    decoder_name: name of the decoder in its registry.
    """

    decoder: Decoder
    labels: tuple[str, ...]
    result_kind: str
    raw_outputs: tuple[int, ...] | None = None
    decoder_name: str = ""


@dataclass(frozen=True)
class Dnn:
    """One DNN with its preprocessing and its decoders.

    module: a PyTorch module in eval mode on the CPU, forward(x: (1, 3, h, w) float32) -> tensor, tuple or dict of
    tensors; or an OnnxNetwork.
    preprocess: (H, W, 3) uint8 RGB image, a NumPy array -> (1, 3, h, w) float32; `inputs` is for tensors.
    outputs: its results by the names in parameter `outputs`, or a single one with an empty name.
    view: the part of the image that it sees, which `preprocess` and the decoders take for the whole image.
    """

    name: str
    role: str
    module: Any
    preprocess: Preprocess
    outputs: Mapping[str, Output]
    view: View = WHOLE

    @property
    def decoder(self) -> Decoder:
        """The decoder of the first result."""
        return next(iter(self.outputs.values())).decoder

    @property
    def labels(self) -> tuple[str, ...]:
        """The class names of the first result."""
        return next(iter(self.outputs.values())).labels

    @property
    def result_kind(self) -> str:
        """The kind of the first result."""
        return next(iter(self.outputs.values())).result_kind

    @property
    def inputs(self) -> Callable[[torch.Tensor], tuple[torch.Tensor]]:
        """(H, W, 3) uint8 RGB image on any device -> the network's input, made from the part that the DNN sees."""
        from multi_dnn_ros.vision.preprocess_gpu import TensorPreprocess

        return TensorPreprocess(self.preprocess, self.view)

    def array_inputs(self, image: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.float32]]:
        """As `inputs`, for an image on the host."""
        self.preprocess.check_image(image.shape, str(image.dtype))
        return (self.preprocess(np.ascontiguousarray(self.view.part_of(image))),)

    @property
    def input_key(self) -> Hashable:
        """Equal for two DNNs whose `inputs` are the same for every image."""
        return self.preprocess.key, self.view.key

    @property
    def results(self) -> ResultDecoder:
        """Raw outputs for `inputs` -> the result in pixels of the image; SeveralResults if the outputs have names."""
        parts = {}
        for name, output in self.outputs.items():
            place = None if self.view.is_whole else RESULT_KINDS.get(output.result_kind).place
            parts[name] = Part(output.decoder, output.raw_outputs, place)
        return ResultDecoder(parts, self.view)

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        """Zeros of the shape and type of the inputs, (1, 3, h, w) float32 on the CPU, for tracing and warm-up."""
        import torch

        return (torch.zeros(1, 3, self.preprocess.height, self.preprocess.width),)
