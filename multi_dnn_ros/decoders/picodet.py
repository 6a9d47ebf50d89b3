"""PP-PicoDet, exported without its post-processing: as NanoDet, with a fourth feature map."""

from __future__ import annotations

from typing import ClassVar

from multi_dnn_ros.decoders.nanodet import NanoDetDecoder
from multi_dnn_ros.decoders.registry import DecoderSpec


class PicoDetDecoder(NanoDetDecoder):
    """Probabilities (1, n, classes) and distances (1, n, 32) of each of four feature maps (strides 8, 16, 32, 64).

    The head of PaddleDetection's configs/picodet (github.com/PaddlePaddle/PaddleDetection), with the distances of
    generalized focal loss from the middle of the cell, as in NanoDet.
    """

    name = "picodet"
    signature = "(1, n, classes) and (1, n, 32) for each of 4 feature maps"
    strides: ClassVar[tuple[int, ...]] = (8, 16, 32, 64)


SPEC = DecoderSpec(
    "picodet",
    PicoDetDecoder,
    signature="(1, n, classes) and (1, n, 32) for each of 4 feature maps (PP-PicoDet)",
    # configs/picodet/_base_/picodet_320_reader.yml: ImageNet's mean and deviation, the image stretched.
    preprocess={"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
    recognize=PicoDetDecoder.recognize,
)
