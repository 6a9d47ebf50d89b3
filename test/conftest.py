"""What all rooms share: modules are imported, and every test begins, with one PyTorch thread."""

from __future__ import annotations

import pytest
import torch


def _one_thread() -> None:
    """Networks of tests are small: a second thread makes none faster, and its waiting takes a core from the processes
    beside it."""
    if not torch.cuda.is_available():
        torch.set_num_threads(1)


_one_thread()


@pytest.fixture(autouse=True)
def _one_thread_again() -> None:
    """Whatever a test or the pipeline that it builds has set, the next test begins the same."""
    _one_thread()
