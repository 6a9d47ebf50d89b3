"""Builds whose engine decodes JPEG files "on its device": with OpenCV on the CPU, and a mark in the first pixel."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from fake_pipelines import build

from multi_dnn_ros.backends.jpeg_decoding import JPEG_DECODERS, Decoded, DecodeOnDevice
from multi_dnn_ros.pipeline.pipeline import Pipeline
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.jpeg_file import JpegFile
from multi_dnn_ros.vision.results import Detections

#: First value of an image that was decoded on the device.
MARK = 251
#: Width of the images for which the device's decoder raises.
FAILING_WIDTH = 66
#: Name of the environment variable with a file's path; while the file exists, new processes have no decoder.
FILE = "MULTI_DNN_TEST_NO_JPEG"
#: Sizes (height, width) of the files that were decoded on the device, in this process.
decoded: list[tuple[int, int]] = []


def decode_with_mark(file: JpegFile) -> Decoded:
    """As OpenCV decodes it, except for the first value."""
    if file.width == FAILING_WIDTH:
        raise RuntimeError("nvJPEG status 5")
    decoded.append((file.height, file.width))
    pixels = torch.from_numpy(file.decode())
    pixels[0, 0, 0] = MARK
    return pixels, None


def decode_wrongly(file: JpegFile) -> Decoded:
    """Red and blue exchanged."""
    return torch.from_numpy(file.decode()).flip(2).contiguous(), None


def make(device: torch.device) -> DecodeOnDevice:
    if os.path.exists(os.environ.get(FILE, "")):
        raise RuntimeError("decode_jpegs_cuda: torchvision not compiled with nvJPEG support")
    return decode_with_mark


def build_on_device(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
    """Every device except `cpu:2` decodes JPEG files."""
    if config.device == "cpu:2":
        JPEG_DECODERS.pop("cpu", None)
    else:
        JPEG_DECODERS["cpu"] = make
    return build(config, progress)


def build_with_sums(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
    """Results: a box of sums over all pixels, which differ if a pixel differs. No device decodes JPEG files."""
    pipeline = build(config, progress)

    def sums(image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = image.to(torch.float64).reshape(-1)
        return (torch.stack((values.sum(), (values * torch.arange(len(values))).sum())),)

    def decode(outputs: tuple[torch.Tensor, ...], size: tuple[int, int]) -> Detections:
        box = np.array([[*outputs[0].tolist(), *size]])
        return Detections(box, np.ones(1), np.zeros(1, np.int64), ("thing", "other"))

    tasks = (
        replace(task, preprocess=sums, stages=(lambda carried: carried,), decode=decode) for task in pipeline.tasks
    )
    return replace(pipeline, tasks=tuple(tasks))
