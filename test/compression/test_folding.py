"""VGG with batch normalization and the plain VGG made from it compute the same, decomposed or not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torchvision.models.vgg import make_layers

from multi_dnn_ros.compression import folding
from multi_dnn_ros.compression.folding import fold_batch_norm, has_plain_form
from multi_dnn_ros.models.decomposed import Plan, SvdPlan, TuckerPlan, apply_plan
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.sources import load_network


class SmallVgg(nn.Module):
    """Like torchvision's VGG, with fewer channels."""

    def __init__(self, batch_norm: bool) -> None:
        super().__init__()
        self.features = make_layers([8, "M", 12, 12, "M"], batch_norm=batch_norm)
        self.classifier = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 3))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(image).mean((2, 3)))


def small(model: str, **options: object) -> SimpleNamespace:
    return SimpleNamespace(module=SmallVgg(model.endswith("_bn")))


def trained(plan: Plan) -> nn.Module:
    """A network whose statistics and scales differ from those of a new network."""
    torch.manual_seed(0)
    network = SmallVgg(True)
    apply_plan(network, plan, "test")
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 2.0)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return network.eval()


PLANS: list[Plan] = [
    {},
    {
        "features.4": TuckerPlan(in_rank=4, out_rank=6),
        "features.7": TuckerPlan(in_rank=4, out_rank=None),
        "classifier.0": SvdPlan(rank=4),
    },
]


@pytest.mark.parametrize("plan", PLANS)
def test_batch_normalization_is_removed_without_changing_the_outputs(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "load_network", small)
    network = trained(plan)
    plain, name, renamed = fold_batch_norm(network, "torchvision:vgg11_bn", 3, plan)
    assert name == "torchvision:vgg11"
    assert list(renamed) == [{"features.4": "features.3", "features.7": "features.5"}.get(key, key) for key in plan]
    assert not any(isinstance(module, nn.BatchNorm2d) for module in plain.modules())
    rebuilt = SmallVgg(False)
    apply_plan(rebuilt, renamed, "test")
    rebuilt.load_state_dict(plain.state_dict())
    image = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(rebuilt.eval()(image), network(image), rtol=1e-4, atol=1e-5)


def test_what_cannot_be_folded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "load_network", small)
    assert has_plain_form("torchvision:vgg16_bn")
    for model in ("torchvision:vgg16", "torchvision:resnet152", "builtin:vgg_bn"):
        assert not has_plain_form(model)
        with pytest.raises(ModelError, match="only torchvision's"):
            fold_batch_norm(trained({}), model, 3, {})
    # Statistics of each batch cannot become weights.
    with pytest.raises(ModelError, match="its outputs differ by"):
        fold_batch_norm(trained({}).train(), "torchvision:vgg11_bn", 3, {})


@pytest.mark.long  # small networks above
def test_torchvision_s_own_networks_are_folded() -> None:
    torch.manual_seed(0)
    network = load_network("torchvision:vgg11_bn", weights="random", num_classes=4).module
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    plain, name, _ = fold_batch_norm(network.eval(), "torchvision:vgg11_bn", 4, {})
    expected = load_network(name, weights="random", num_classes=4).module.state_dict()
    assert {key: value.shape for key, value in plain.state_dict().items()} == {
        key: value.shape for key, value in expected.items()
    }
