"""Scoring of the package's DNNs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from multi_dnn_ros.training.evaluate import Evaluator


def test_a_network_that_fails_leaves_the_number_of_threads_unchanged() -> None:
    used = []

    def fail(image: torch.Tensor) -> torch.Tensor:
        used.append(torch.get_num_threads())
        raise RuntimeError("no memory")

    dnn = SimpleNamespace(module=fail, example_inputs=lambda: (torch.zeros(1),), decoder=SimpleNamespace())
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError, match="no memory"):
            Evaluator(dict.fromkeys(("lane", "object", "pedestrian"), dnn)).costs()  # type: ignore[arg-type]
        assert (used, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)
