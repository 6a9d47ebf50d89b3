"""Extensions that work unless a test sets FAULT to the name of a fault."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from multi_dnn_ros.backends import Backend, Shared, Tensors
from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.backends.registry import BackendRequest, BackendSpec
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.registry import ModelRequest, ModelSource
from multi_dnn_ros.vision.decoders.base import Decoder
from multi_dnn_ros.vision.decoders.layout import Difference, Layout
from multi_dnn_ros.vision.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.result_kind import ResultKind, Topic
from multi_dnn_ros.vision.results import OutputError

FAULT = ""


def fail(fault: str) -> None:
    """Raise RuntimeError if FAULT is `fault`, and call sys.exit() if it is `fault` with "_exit" appended."""
    if fault == FAULT:
        raise RuntimeError("broken")
    if f"{fault}_exit" == FAULT:
        sys.exit(2)


@dataclass(frozen=True)
class Level:
    value: Any


class LevelDecoder(Decoder):
    """(1, 1) -> Level."""

    name = "faulty_decoder"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        fail("factory")
        super().__init__(*arguments, **options)

    def check(self, outputs: Sequence[torch.Tensor]) -> None:
        fail("check")
        self.expect_outputs(outputs, 1)
        if tuple(outputs[0].shape) != (1, 1):
            raise OutputError(f"output of shape {tuple(outputs[0].shape)}; decoder faulty_decoder reads (1, 1)")

    def decode(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Any:
        fail("decode")
        results = {
            "decode_none": lambda: None,
            "decode_number": lambda: 5,
            "decode_tensor": lambda: Level([outputs[0]]),
            "decode_lock": lambda: Level(threading.Lock()),
        }
        return results.get(FAULT, lambda: Level(float(outputs[0])))()


def recognize(layout: Layout) -> Any:
    fail("recognize")
    return {"recognize_none": None, "recognize_text": "yes"}.get(FAULT, Difference("other shapes", 9))


class FaultyBackend:
    def prepare(
        self, stages: Sequence[nn.Module], inputs: Tensors, device: torch.device, shared: Shared | None = None
    ) -> Any:
        fail("prepare")
        ready = Eager().prepare(stages, inputs, device, shared)
        if FAULT == "prepare_none":
            return None
        return tuple(map(_faulty_stage, ready[1:] if FAULT == "prepare_too_few" else ready))


def _faulty_stage(stage: Callable[[Tensors], Tensors]) -> Callable[[Tensors], Any]:
    def run(carried: Tensors) -> Any:
        fail("stage")
        outputs = stage(carried)
        if FAULT == "stage_tensor":
            return outputs[0]
        return tuple(tensor.numpy() for tensor in outputs) if FAULT == "stage_arrays" else outputs

    return run


def make(request: BackendRequest) -> Backend:
    fail("make")
    backend: Any = None if FAULT == "make_none" else FaultyBackend()
    return backend


def finish() -> None:
    fail("finish")


def version() -> Any:
    fail("version")
    return 3 if FAULT == "version_number" else "faulty 0.4"


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 2, 8, stride=8), nn.Conv2d(2, 1, 1)
        self.requires_grad_(False)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        level = self.second(self.first(image).relu()).mean((2, 3))
        if FAULT == "untraceable":
            return level * 2 if level.sum() > 0 else level
        return level


def load(request: ModelRequest) -> Any:
    fail("load")
    if FAULT == "load_none":
        return None
    network = Network().eval()
    if FAULT == "load_meta":
        network = network.to("meta")
    if FAULT == "load_training":
        network.train()
    size: Any = {"load_size_0": (0, 0), "load_size_3": (3, 48, 64)}.get(FAULT, (64, 48))
    preprocess: Any = {"load_preprocess": {"colour": "bgr"}}.get(FAULT, {})
    decoder = "no_such_decoder" if FAULT == "load_decoder" else "faulty_decoder"
    return Source(network, size, decoder, labels=("level",), preprocess=preprocess, fixed_size=True, classes=1)


def file_of(name: str) -> Path:
    fail("file")
    return Path(__file__)


#: As in the decoders of this package, without the check of mypy.
_WRONG: Any = [1]

DECODER = DecoderSpec(
    "faulty_decoder", LevelDecoder, signature="(1, 1)", result_kind="faulty_kind", recognize=recognize
)
KIND = ResultKind("faulty_kind", Level, (Topic("level", "std_msgs/msg/Header", "no_such_module:message"),))
BACKEND = BackendSpec("faulty_backend", make, precisions={"cpu": ("auto", "fp32")}, finish=finish, version=version)
SOURCE = ModelSource("faulty_zoo", load, form="faulty_zoo:net", file=file_of)


def __getattr__(name: str) -> Any:
    """Specifications whose creation fails."""
    if name == "EXIT":
        sys.exit(3)
    if name == "WRONG_PREPROCESS":
        return DecoderSpec("wrong_preprocess", LevelDecoder, signature="", preprocess=_WRONG)
    if name == "WRONG_MEAN":
        return DecoderSpec("wrong_mean", LevelDecoder, signature="", preprocess={"mean": 3})
    if name == "WRONG_PRECISIONS":
        return BackendSpec("wrong_precisions", make, precisions=_WRONG)
    if name == "WRONG_NAMES":
        wrong: Any = {"cpu": "auto"}
        return BackendSpec("wrong_names", make, precisions=wrong)
    raise AttributeError(name)
