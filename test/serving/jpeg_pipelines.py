"""Builds whose engine decodes JPEG files "on its device": with OpenCV on the CPU, and a mark in the first pixel."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from fake_pipelines import build

from multi_dnn_ros.backends.jpeg_decoding import JPEG_DECODERS, Decoded, DecodeOnDevice
from multi_dnn_ros.serving.tasks import Pipeline
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.jpeg_file import JpegFile

#: First value of an image that was decoded on the device.
MARK = 251
#: Name of the environment variable with a file's path; while the file exists, new processes have no decoder.
FILE = "MULTI_DNN_TEST_NO_JPEG"


def decode_with_mark(file: JpegFile) -> Decoded:
    """As OpenCV decodes it, except for the first value."""
    pixels = torch.from_numpy(file.decode())
    pixels[0, 0, 0] = MARK
    return pixels, None


def make(device: torch.device) -> DecodeOnDevice:
    if os.path.exists(os.environ.get(FILE, "")):
        raise RuntimeError("decode_jpegs_cuda: torchvision not compiled with nvJPEG support")
    return decode_with_mark


def build_on_device(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
    """Every device except `cpu:2` decodes JPEG files."""
    if "cpu:2" in (config.device, *(dnn.device for dnn in config.dnns.values())):
        JPEG_DECODERS.pop("cpu", None)
    else:
        JPEG_DECODERS["cpu"] = make
    return build(config, progress)
