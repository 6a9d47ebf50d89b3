"""A small classifier by the name of torchvision's SqueezeNet, for tests of commands that take a builder."""

from __future__ import annotations

from torch import Tensor, nn
from torchvision.models import squeezenet


class Narrow(nn.Module):
    """The first blocks of a SqueezeNet, with fewer channels and a batch normalization."""

    def __init__(self, version: str, num_classes: int = 1000) -> None:
        super().__init__()
        fires = (squeezenet.Fire(16, 32, 16, 64), squeezenet.Fire(80, 32, 16, 64))
        begin = (nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2))
        self.features = nn.Sequential(*begin, *fires)
        self.classifier = nn.Conv2d(80, num_classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier(self.features(image)).mean((2, 3))


def install() -> None:
    """For a process of its own; in the test's process, use monkeypatch."""
    squeezenet.SqueezeNet = Narrow  # type: ignore[misc]
