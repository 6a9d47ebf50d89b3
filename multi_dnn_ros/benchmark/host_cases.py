"""The cases of ``multi-dnn benchmark host``: what receives the images, and the cameras that send them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from multi_dnn_ros.benchmark.cameras import CameraPlan
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.common.resources import config_file
from multi_dnn_ros.settings.options import with_options
from multi_dnn_ros.settings.params_file import read_params_file
from multi_dnn_ros.settings.schema import DnnConfig, NodeConfig

#: The peers: programs that are compared with this package's node.
COUNTER, THREE_NODES = "counter", "three_nodes"
NULL = "null"
#: Encodings that the preset three_nodes can read; see :mod:`multi_dnn_ros.benchmark.peers.detector_node`.
_PEER_ENCODINGS = ("jpeg", "rgb8", "bgr8")
#: Preset to parameter file.
_FILES = {"builtin": "multi_dnn.yaml", "heavy_gpu": "heavy_gpu.yaml"}
PRESETS = (*_FILES, NULL, COUNTER, THREE_NODES)
_NULL_SIZE = 32


@dataclass(frozen=True)
class HostCase:
    """One case. size: (width, height) of each camera's images. encoding: that of raw images; empty: JPEG. jpeg_decoder:
    the parameter of the cameras; it is not part of the name, so that files with different values can be compared.
    """

    preset: str
    cameras: int
    size: tuple[int, int]
    encoding: str
    rate_hz: float
    repeat: int = field(default=0, compare=False)
    jpeg_decoder: str = "auto"

    @property
    def name(self) -> str:
        """Identifies the case, also across files."""
        width, height = self.size
        return f"{self.preset} {self.cameras}x{width}x{height}@{self.rate_hz:g} {self.encoding or 'jpeg'}"

    @property
    def plans(self) -> list[CameraPlan]:
        return [
            CameraPlan(f"camera{number}", self.size, self.encoding, self.rate_hz, jpeg_decoder=self.jpeg_decoder)
            for number in range(self.cameras)
        ]

    def described(self) -> dict[str, Any]:
        """For JSON."""
        return {"preset": self.preset, "cameras": self.cameras, "size": list(self.size),
                "encoding": self.encoding or "jpeg", "rate_hz": self.rate_hz,
                "jpeg_decoder": self.jpeg_decoder}  # fmt: skip


def matrix(
    presets: Sequence[str],
    cameras: Sequence[int],
    sizes: Sequence[tuple[int, int]],
    encodings: Sequence[str],
    rate_hz: float,
    repeats: int,
    jpeg_decoder: str = "auto",
) -> list[HostCase]:
    """Every combination; the repeats of a case are as far apart as possible.

    Raises UsageError for an unknown preset, and for an encoding that a preset cannot read.
    """
    for preset in presets:
        if preset not in PRESETS and not Path(preset).is_file():
            raise UsageError(f"--presets {preset}: no such file; allowed: {', '.join(PRESETS)}, or a parameter file")
    unread = [encoding for encoding in encodings if encoding not in _PEER_ENCODINGS]
    if THREE_NODES in presets and unread:
        raise UsageError(
            f"--encodings {', '.join(unread)}: allowed with preset {THREE_NODES}: {', '.join(_PEER_ENCODINGS)}"
        )
    return [
        HostCase(preset, count, size, "" if encoding == "jpeg" else encoding, rate_hz, repeat, jpeg_decoder)
        for repeat in range(repeats)
        for count in cameras
        for size in sizes
        for encoding in encodings
        for preset in presets
    ]


def config_of(preset: str, device: str | None, folder: Path) -> NodeConfig:
    """The node's parameters from a preset or a parameter file. device: replaces theirs, if given.

    folder: where the network of the preset `null` is written. A peer has the DNNs of `builtin`, so that its results
    have the same topics. Raises UsageError for heavy_gpu without a GPU, and for a device that is not allowed.
    """
    if preset == "heavy_gpu" and (device == "cpu" or not torch.cuda.is_available()):
        raise UsageError("--presets heavy_gpu needs a GPU; PyTorch finds none, or --device is cpu")
    path = Path(preset) if preset not in PRESETS else config_file(_FILES.get(preset, _FILES["builtin"]))
    config = read_params_file(path)
    if preset == NULL:
        network = folder / "null.pt2"
        _write_null_network(network)
        dnn = DnnConfig(role="object", model=str(network), decoder="yolo", labels=["nothing"], jobs=1, resize="stretch")
        config = config.model_copy(update={"dnns": {NULL: dnn}})
    return with_options(config, device=device) if device else config


class _Null(nn.Module):
    """A detector that finds nothing: five of its input's values, times zero."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image[:, 0, :5, :1] * 0.0


def _write_null_network(path: Path) -> None:
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    example = torch.zeros(1, 3, _NULL_SIZE, _NULL_SIZE)
    torch.export.save(torch.export.export(_Null().eval(), (example,)), path)
