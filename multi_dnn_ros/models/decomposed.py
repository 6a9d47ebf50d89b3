"""The structure of decomposed layers: which layers of a network became chains of smaller ones, and with which ranks.

A plan holds no weights. Applied to a newly built network, it gives the structure that a decomposed weights file fits;
the weights are computed by :mod:`multi_dnn_ros.compression`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict, model_validator
from torch import nn
from typing_extensions import TypedDict

from multi_dnn_ros.models.errors import ModelError

_Rank = Annotated[int, Field(ge=1, le=1_000_000)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TuckerPlan(_Strict):
    """A convolution as 1x1 (input factor) -> core with the original kernel -> 1x1 (output factor, bias).

    Tucker-2 of the weight on its two channel modes (Kim et al. 2016). Ranks are those of one group. None leaves a mode
    unchanged: the chain then has no 1x1 convolution for it.
    """

    kind: Literal["tucker2"] = "tucker2"
    in_rank: _Rank | None
    out_rank: _Rank | None


class SvdPlan(_Strict):
    """A fully connected layer as two: inputs -> rank -> outputs (bias)."""

    kind: Literal["svd"] = "svd"
    rank: _Rank


LayerPlan = Annotated[TuckerPlan | SvdPlan, Field(discriminator="kind")]
#: Plan by qualified name of a layer, as in named_modules() of the network before any replacement.
Plan = Mapping[str, TuckerPlan | SvdPlan]


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
    """How the network of a file of `multi-dnn decompose` or `retrain` was made; stored in the file.

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


class TuckerConv2d(nn.Sequential):
    """A convolution decomposed by a TuckerPlan, with the same inputs, outputs and geometry.

    Children: in_factor, core, out_factor.
    """

    core: nn.Conv2d

    def __init__(self, layer: nn.Conv2d, plan: TuckerPlan) -> None:
        """layer: defines channels, geometry, groups, bias, device and dtype; its weights are not used.

        Raises ValueError if a rank exceeds the channels of a group.
        """
        in_rank, out_rank = check_ranks(layer, plan)
        groups = layer.groups
        factory_kwargs: dict[str, Any] = {"device": layer.weight.device, "dtype": layer.weight.dtype}
        children: OrderedDict[str, nn.Module] = OrderedDict()
        if plan.in_rank is not None:
            children["in_factor"] = nn.Conv2d(
                layer.in_channels, in_rank * groups, 1, groups=groups, bias=False, **factory_kwargs
            )
        children["core"] = nn.Conv2d(
            in_rank * groups,
            out_rank * groups,
            layer.kernel_size,  # type: ignore[arg-type]
            layer.stride,  # type: ignore[arg-type]
            layer.padding,  # type: ignore[arg-type]
            layer.dilation,  # type: ignore[arg-type]
            groups,
            bias=layer.bias is not None and plan.out_rank is None,
            padding_mode=layer.padding_mode,
            **factory_kwargs,
        )
        if plan.out_rank is not None:
            children["out_factor"] = nn.Conv2d(
                out_rank * groups, layer.out_channels, 1, groups=groups, bias=layer.bias is not None, **factory_kwargs
            )
        super().__init__(children)


class SvdLinear(nn.Sequential):
    """A fully connected layer decomposed by an SvdPlan. Children: in_factor, out_factor."""

    def __init__(self, layer: nn.Linear, plan: SvdPlan) -> None:
        """layer: defines sizes, bias, device and dtype. Raises ValueError if the rank exceeds one of the sizes."""
        max_rank = min(layer.in_features, layer.out_features)
        if plan.rank > max_rank:
            raise ValueError(f"rank {plan.rank}: the layer has {layer.in_features} inputs and {layer.out_features} "
                             f"outputs; allowed: 1 to {max_rank}")  # fmt: skip
        factory_kwargs: dict[str, Any] = {"device": layer.weight.device, "dtype": layer.weight.dtype}
        super().__init__(
            OrderedDict(
                in_factor=nn.Linear(layer.in_features, plan.rank, bias=False, **factory_kwargs),
                out_factor=nn.Linear(plan.rank, layer.out_features, bias=layer.bias is not None, **factory_kwargs),
            )
        )


def check_ranks(layer: nn.Conv2d, plan: TuckerPlan) -> tuple[int, int]:
    """(input, output) channels of one group's core. Raises ValueError if a rank exceeds the channels of a group."""
    channels_in, channels_out = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    for what, rank, channels in (("in_rank", plan.in_rank, channels_in), ("out_rank", plan.out_rank, channels_out)):
        if rank is not None and rank > channels:
            raise ValueError(f"{what} {rank}: the layer has {channels} channels per group; allowed: 1 to {channels}")
    return plan.in_rank or channels_in, plan.out_rank or channels_out


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether `layer` is exactly a `kind`: no subclass, parametrization or hook."""
    return type(layer) is kind and not (layer._forward_hooks or layer._forward_pre_hooks)


def empty_chain(layer: nn.Module, plan: TuckerPlan | SvdPlan) -> TuckerConv2d | SvdLinear:
    """The chain that replaces `layer` by `plan`, with PyTorch's initial weights.

    Raises ValueError if the plan does not fit the layer.
    """
    if isinstance(plan, TuckerPlan):
        if not is_plain(layer, nn.Conv2d):
            raise ValueError(f"is {type(layer).__name__}; tucker2 is for Conv2d")
        assert isinstance(layer, nn.Conv2d)
        return TuckerConv2d(layer, plan)
    if not is_plain(layer, nn.Linear):
        raise ValueError(f"is {type(layer).__name__}; svd is for Linear")
    assert isinstance(layer, nn.Linear)
    return SvdLinear(layer, plan)


def apply_plan(network: nn.Module, plan: Plan, source: str) -> None:
    """Replace, in place, the layers of `network` that `plan` names by chains with untrained weights.

    source: file or parameter of the plan. Raises ModelError, which names source, layer and what is expected.
    """
    layers = dict(network.named_modules())
    chains = {}
    for name, layer_plan in plan.items():
        if name not in layers:
            raise ModelError(f"{source}: plan names the layer '{name}', which {type(network).__name__} does not have")
        try:
            chains[name] = empty_chain(layers[name], layer_plan)
        except ValueError as error:
            raise ModelError(f"{source}: plan of layer '{name}': {error}") from None
    for name, chain in chains.items():
        replace_layer(network, layers[name], chain)


def replace_layer(network: nn.Module, layer: nn.Module, by: nn.Module) -> None:
    """Replace `layer` by `by` everywhere in `network`; a layer may be used in several places."""
    by.train(layer.training)
    for parent in list(network.modules()):
        for name, child in list(parent._modules.items()):
            if child is layer:
                setattr(parent, name, by)
