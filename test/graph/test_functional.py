"""In-place operations: a traced DNN has none and computes the same; most DNNs need to be traced only once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import ExportedProgram

from multi_dnn_ros.graph.nodes import is_write
from multi_dnn_ros.graph.trace import trace

SHAPE = (2, 4, 6, 6)


class FunctionDnn(nn.Module):
    """A DNN that computes a function of an image and its convolution."""

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 4, 3, padding=1)
        self.function = function

    def forward(self, image: torch.Tensor) -> object:
        return self.function(image, self.convolution(image))


@pytest.fixture
def retraced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Has one entry per DNN that PyTorch had to trace again."""
    words: list[str] = []
    real = ExportedProgram.run_decompositions

    def noted(program: ExportedProgram, *args: object) -> ExportedProgram:
        words.append("again")
        return real(program, *args)

    monkeypatch.setattr(ExportedProgram, "run_decompositions", noted)
    return words


def check(module: nn.Module, image: torch.Tensor) -> None:
    """The traced DNN has the same results and no in-place operation."""
    with torch.no_grad():
        expected = module(image.clone())
        graph = trace(module, (torch.zeros_like(image),))
        results = graph(image.clone())
    torch.testing.assert_close(results, tuple(torch.utils._pytree.tree_leaves(expected)))
    assert not [node for node in graph.graph.nodes if is_write(node)]


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda image, x: x.relu_(), id="relu"),
        pytest.param(lambda image, x: (x.add_(image), x * 2), id="read by its old name"),
        pytest.param(lambda image, x: x.mul_(2.0).sigmoid_().add_(image, alpha=3), id="one after another"),
        pytest.param(lambda image, x: (torch.cat([x, image]), x.relu_()), id="used before"),
        pytest.param(lambda image, x: (x.relu_(), x.flatten(1)), id="view made afterwards"),
        pytest.param(lambda image, x: x.add_(x), id="with itself"),
        pytest.param(
            lambda image, x: nn.functional.dropout(x.relu_(), 0.5, False, inplace=True).add_(1.0), id="dropout"
        ),
        pytest.param(lambda image, x: x.to(torch.float32).add_(1.0) + x, id="a cast that does nothing"),
    ],
)
def test_in_place_operations_that_the_graph_resolves_are_traced_once(function: Callable, retraced: list[str]) -> None:
    torch.manual_seed(0)
    check(FunctionDnn(function).eval(), torch.randn(SHAPE))
    assert retraced == []


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda image, x: (x.flatten(1), x.relu_()), id="view made before"),
        pytest.param(lambda image, x: (x.split(2, 1)[0].relu_(), x), id="a part of it"),
        pytest.param(lambda image, x: (x[:, 1:3].mul_(2.0), x), id="a slice of it"),
        pytest.param(lambda image, x: (x.view(2, -1).add_(1.0), x), id="a view of it"),
        pytest.param(lambda image, x: x.sub_(image), id="unknown"),
        pytest.param(lambda image, x: x.half().add_(x), id="of another type"),
        pytest.param(lambda image, x: nn.functional.batch_norm(x, None, None, training=True), id="batch statistics"),
    ],
)
def test_possible_aliases_are_traced_again(function: Callable, retraced: list[str]) -> None:
    torch.manual_seed(0)
    check(FunctionDnn(function).eval(), torch.randn(SHAPE))
    assert retraced == ["again"]


@pytest.mark.parametrize(
    "builder", ["resnet18", "mobilenet_v3_small", "squeezenet1_1", pytest.param("googlenet", marks=pytest.mark.long)]
)
def test_classifiers_are_traced_once(builder: str, retraced: list[str]) -> None:
    options = {"init_weights": False} if builder == "googlenet" else {}
    module = torchvision.models.get_model(builder, weights=None, num_classes=3, **options).eval()
    check(module, torch.randn(1, 3, 64, 64))
    assert retraced == []


_STEPS: dict[str, Callable[[list[torch.Tensor], int, int], torch.Tensor]] = {
    "add": lambda made, a, b: made[a] + made[b],
    "add_": lambda made, a, b: made[a].add_(made[b]),
    "mul_": lambda made, a, b: made[a].mul_(0.5),
    "relu": lambda made, a, b: made[a].relu(),
    "relu_": lambda made, a, b: made[a].relu_(),
    "sigmoid_": lambda made, a, b: made[a].sigmoid_(),
    "cat": lambda made, a, b: torch.cat([made[a][:, :2], made[b][:, 2:]], 1),
    "view": lambda made, a, b: made[a].view(2, 4, 36).view(2, 4, 6, 6),
    "slice": lambda made, a, b: made[a][:, 0:4],
    "dropout_": lambda made, a, b: nn.functional.dropout(made[a], 0.5, False, inplace=True),
    "cast": lambda made, a, b: made[a].to(torch.float32),
}


@settings(max_examples=8)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(_STEPS)), st.integers(0, 2), st.integers(0, 2)), min_size=2, max_size=6)
)
def test_any_sequence_of_writes_and_views_computes_the_same(steps: list[tuple[str, int, int]]) -> None:
    """Creates tensors and views, reads them and writes into them; all are results."""

    def function(image: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        made = [x, image * 2]
        for name, a, b in steps:
            made.append(_STEPS[name](made, -1 - a % len(made), -1 - b % len(made)))  # of the last three
        return made

    torch.manual_seed(0)
    check(FunctionDnn(function).eval(), torch.randn(SHAPE))
