"""What the tests of profiling share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

#: As it was when the tests were collected: part of what a device is called in their constants.
_THREADS = torch.get_num_threads()


@pytest.fixture(autouse=True)
def as_many_threads() -> Iterator[None]:
    """Whoever builds a pipeline sets the number for the whole process."""
    torch.set_num_threads(_THREADS)
    yield
    torch.set_num_threads(_THREADS)


@pytest.fixture(scope="module")
def few_trees():
    """Enough for laws as simple as these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multi_dnn_ros.profiling.learn._TREES", 40)
        yield
