"""The description stored in a file of `multi-dnn decompose` or `retrain`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from multi_dnn_ros.models.decomposed import LayerPlan, _Strict

FORMAT: Literal["multi_dnn_ros network 1"] = "multi_dnn_ros network 1"
_Side = Annotated[int, Field(ge=1, le=16_384)]


class Description(_Strict):
    """How the network of an artifact was made.

    model: the original: `builtin:<name>`, `torchvision:<builder>`, or for a .pt2 artifact the file's name. num_classes:
    of a torchvision builder; 0: its default. input_size: (width, height) of its input. labels: class names by index;
    empty: the original's. plan: the decomposed layers; empty for a network that was only retrained.
    provenance: JSON: source hash, data, seeds, versions, scores.
    """

    format: Literal["multi_dnn_ros network 1"] = FORMAT
    model: str = Field(min_length=1, max_length=4096)
    num_classes: int = Field(0, ge=0, le=10_000)
    input_size: tuple[_Side, _Side]
    labels: tuple[str, ...] = Field((), max_length=10_000)
    plan: dict[str, LayerPlan] = Field(default_factory=dict)
    provenance: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _labels_fit(self) -> Description:
        if self.labels and self.num_classes and len(self.labels) != self.num_classes:
            raise ValueError(f"labels has {len(self.labels)} names, num_classes is {self.num_classes}")
        return self
