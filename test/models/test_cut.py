"""Any DNN cut into any number of jobs computes the same as the whole; random weights for timing are balanced."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import nn
from torch.utils import _pytree as pytree
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.segmentation import LRASPP

from multi_dnn_ros.models.balance import balance, random_image
from multi_dnn_ros.models.cut import cut_graph, cut_module
from multi_dnn_ros.models.trace import TraceError, trace


def randomized(module: nn.Module) -> nn.Module:
    """The module in eval mode, with random batch norm statistics."""
    generator = torch.Generator().manual_seed(1)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.copy_(0.1 * torch.randn(layer.num_features, generator=generator))
            layer.running_var.copy_(0.5 + torch.rand(layer.num_features, generator=generator))
    return module.eval()


def check(module: nn.Module, inputs: tuple[torch.Tensor, ...], job_counts: tuple[int, ...], **options: bool) -> None:
    graph = trace(module, inputs, **options)  # as `cut_module`; takes seconds and is the same for all counts
    with torch.inference_mode():
        whole = [leaf for leaf in pytree.tree_leaves(module(*inputs)) if isinstance(leaf, torch.Tensor)]
        for jobs in job_counts:
            stages = cut_graph(graph, jobs)
            assert 1 <= len(stages) <= jobs
            carried = inputs
            for stage in stages:
                carried = stage(carried)
            assert len(carried) == len(whole)
            for expected, got in zip(whole, carried, strict=True):
                scale = max(1.0, float(expected.abs().max()))
                assert float((got - expected).abs().max()) <= 1e-5 * scale


@pytest.mark.parametrize(
    ("builder", "size", "job_counts"),
    [
        ("alexnet", 64, (1, 3, 1000)),
        ("squeezenet1_1", 64, (1, 4, 1000)),
        ("resnet18", 64, (1, 7)),
        pytest.param("resnet152", 64, (8,), marks=pytest.mark.long),
        pytest.param("inception_v3", 160, (6,), marks=pytest.mark.long),
        pytest.param("regnet_y_32gf", 64, (8,), marks=pytest.mark.long),
        pytest.param("densenet121", 64, (8,), marks=pytest.mark.long),
    ],
)
def test_torchvision_classifiers(builder: str, size: int, job_counts: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    options = {"init_weights": False} if builder in ("inception_v3", "vgg16") else {}
    module = randomized(torchvision.models.get_model(builder, weights=None, **options))
    check(module, (torch.rand(1, 3, size, size),), job_counts)


def test_segmentation_with_a_dictionary_of_outputs() -> None:
    """The head of LR-ASPP on the first blocks of a small backbone."""
    torch.manual_seed(0)
    features = torchvision.models.mobilenet_v3_small(weights=None).features[:3]
    backbone = IntermediateLayerGetter(features, {"1": "low", "2": "high"})
    check(randomized(LRASPP(backbone, 16, 24, num_classes=3)), (torch.rand(1, 3, 64, 96),), (1, 5))


class Branches(nn.Module):
    """In-place operations, views carried over cuts, a constant, a tensor used early and late, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        a = self.first(x)
        b = torch.relu_(a)
        left, right = b.chunk(2, dim=1)
        c = self.norm(self.second(torch.cat([right, left], 1)))
        c += torch.arange(c.shape[3], dtype=c.dtype, device=c.device)
        d = c.view(c.shape[0], -1)
        d.mul_(0.5)
        return {"late": (c, left.mean()), "early": x + 1, "number": 3}


def test_branches_and_in_place_operations_for_any_number_of_jobs() -> None:
    torch.manual_seed(0)
    check(randomized(Branches()), (torch.rand(1, 3, 8, 12),), (*range(1, 11), 30))  # it can be cut at 9 places


def test_batch_norms_can_be_folded_into_convolutions() -> None:
    torch.manual_seed(0)
    module = randomized(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)))
    check(module, (torch.rand(1, 3, 16, 16),), (1, 3), fold_batch_norm=True)
    (stage,) = cut_module(module, (torch.rand(1, 3, 16, 16),), 1, fold_batch_norm=True)
    assert not any("batch_norm" in operation for operation in stage.operations)


def test_jobs_are_of_about_equal_cost_and_share_the_weights() -> None:
    torch.manual_seed(0)
    module = torchvision.models.resnet18(weights=None).eval()
    stages = cut_module(module, (torch.rand(1, 3, 64, 64),), 8)
    costs = [stage.cost_s for stage in stages]
    assert max(costs) <= 1.4 * sum(costs) / len(costs)
    of_module = {parameter.data_ptr() for parameter in module.parameters()}
    of_stages = {parameter.data_ptr() for stage in stages for parameter in stage.parameters()}
    assert of_stages <= of_module


def test_invalid_arguments_are_named_in_the_error() -> None:
    image = (torch.rand(1, 3, 8, 8),)
    with pytest.raises(ValueError, match="stages = 0"):
        cut_module(nn.ReLU().eval(), image, 0)
    with pytest.raises(ValueError, match=r"training mode; call \.eval"):
        cut_module(nn.ReLU(), image, 1)

    class DataDependent(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(TraceError, match="cannot trace DataDependent"):
        cut_module(DataDependent().eval(), image, 1)


def test_a_balanced_deep_network_does_not_overflow_in_half_precision() -> None:
    torch.manual_seed(0)
    network, image = (
        nn.Sequential(*(nn.Conv2d(8 if k else 3, 8, 3, padding=1) for k in range(12))),
        random_image(16, 16),
    )
    with torch.no_grad():
        for layer in network:
            layer.weight.mul_(10.0)
        assert float(network(image).abs().max()) > 65504.0
        balance(network, image)
        torch.testing.assert_close(float(network(image).std()), 1.0, rtol=0.05, atol=0.0)
    assert torch.equal(image, random_image(16, 16))
