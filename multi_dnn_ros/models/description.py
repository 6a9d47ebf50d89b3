"""The description stored in a file of `multi-dnn decompose` or `retrain`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Strict, model_validator
from typing_extensions import TypedDict

from multi_dnn_ros.models.decomposed import LayerPlan, _Strict

FORMAT: Literal["multi_dnn_ros network 1"] = "multi_dnn_ros network 1"
_Side = Annotated[int, Field(ge=1, le=16_384)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class PreprocessOptions(TypedDict, total=False):
    """Keyword arguments of Preprocess, except width and height."""

    fit: Literal["stretch", "letterbox"]
    bgr: bool
    mean: Annotated[tuple[_Finite, _Finite, _Finite], Strict(False)]  # or a list
    std: Annotated[tuple[_Positive, _Positive, _Positive], Strict(False)]
    antialias: bool
    centered: bool
    pad: _Finite | None


class Description(_Strict):
    """How the network of an artifact was made.

    model: the original: `builtin:<name>`, `torchvision:<builder>`, or for a .pt2 artifact the file's name. num_classes:
    argument of a torchvision builder; 0: its default. input_size: (width, height) of its input. labels: class names by
    index; empty: the original's. preprocess, decoder: as in Source, for a .pt2 artifact; empty: not stated by the
    original. plan: the decomposed layers; empty for a network that was only retrained. provenance: source hash, data,
    seeds, versions and scores, as JSON.
    """

    format: Literal["multi_dnn_ros network 1"] = FORMAT
    model: str = Field(min_length=1, max_length=4096)
    num_classes: int = Field(0, ge=0, le=10_000)
    input_size: tuple[_Side, _Side]
    labels: tuple[str, ...] = Field((), max_length=10_000)
    preprocess: PreprocessOptions = Field(default_factory=PreprocessOptions)
    decoder: str = Field("", max_length=256)
    plan: dict[str, LayerPlan] = Field(default_factory=dict)
    provenance: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _labels_fit(self) -> Description:
        if self.labels and self.num_classes and len(self.labels) != self.num_classes:
            raise ValueError(f"labels has {len(self.labels)} names, num_classes is {self.num_classes}")
        return self
