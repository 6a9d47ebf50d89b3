"""Captured preprocessing, with a fake capture that calls the function. On a GPU: test/gpu."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch

from multi_dnn_ros.backends.preprocess_graph import MAX_SIZES, PreprocessGraph
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.preprocess_gpu import TensorPreprocess


class Captures:
    """Counts captures and replays."""

    def __init__(self, broken: bool = False) -> None:
        self.captures = 0
        self.replays = 0
        self._broken = broken

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            if not self._broken:
                run()

        return replay


def small() -> TensorPreprocess:
    return TensorPreprocess(Preprocess(4, 4))


def copy_from_host(target: torch.Tensor, address: int) -> None:
    ctypes.memmove(target.data_ptr(), address, target.nbytes)


def image(height: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()  # as in the workers
@pytest.mark.parametrize("fit", ["stretch", "letterbox"])
def test_a_captured_size_writes_the_same_input_to_the_memory_of_the_first_stage(fit: str) -> None:
    preprocess = TensorPreprocess(Preprocess(32, 24, fit=fit, bgr=True, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.2)))
    destination, captures = (torch.zeros(1, 3, 24, 32),), Captures()
    graph = PreprocessGraph(preprocess, destination, captures, torch.Tensor.copy_, copy_from_host)
    (before,) = graph(image(48, 64))
    assert before is not destination[0]
    graph.specialize((48, 64))
    graph.specialize((48, 64))
    assert captures.captures == 1
    assert captures.replays == 1
    for seed in (1, 2):
        (result,) = graph(image(48, 64, seed))
        assert result is destination[0]
        torch.testing.assert_close(result, preprocess(image(48, 64, seed))[0])
        assert graph.from_host(image(48, 64, seed).numpy()) is destination
        torch.testing.assert_close(result, preprocess(image(48, 64, seed))[0])
    assert graph.from_host(image(30, 40).numpy()) is None
    (other,) = graph(image(30, 40))
    torch.testing.assert_close(other, preprocess(image(30, 40))[0])
    assert captures.replays == 5


def test_a_graph_with_other_results_is_an_error_and_not_used() -> None:
    destination, preprocess = (torch.zeros(1, 3, 4, 4),), small()
    graph = PreprocessGraph(preprocess, destination, Captures(broken=True), torch.Tensor.copy_, copy_from_host)
    with pytest.raises(ValueError, match="result 0 is off by"):
        graph.specialize((8, 8))
    torch.testing.assert_close(graph(image(8, 8))[0], preprocess(image(8, 8))[0])


def test_the_number_of_captured_sizes_is_bounded() -> None:
    graph = PreprocessGraph(small(), (torch.zeros(1, 3, 4, 4),), Captures(), torch.Tensor.copy_, copy_from_host)
    for number in range(MAX_SIZES):
        graph.specialize((8, 8 + number))
    with pytest.raises(ValueError, match="captured already"):
        graph.specialize((9, 9))
