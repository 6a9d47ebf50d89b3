"""What all rooms share: every test begins with one PyTorch thread."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread_on_a_cpu() -> None:
    """Networks of tests are small: a second thread makes none faster, and its waiting takes a core from the processes
    beside it. Whatever a test sets, the next one begins the same."""
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
