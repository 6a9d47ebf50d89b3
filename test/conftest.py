"""What all rooms share: modules are imported, and every test begins, with the same number of PyTorch threads."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    # Networks of tests are small: a second thread makes none faster, and its waiting takes a core from the processes
    # beside it.
    torch.set_num_threads(1)
#: Part of what a device is called in constants of modules.
_THREADS = torch.get_num_threads()


@pytest.fixture(autouse=True)
def _as_many_threads() -> None:
    """Whatever a test or the pipeline that it builds has set, for the whole process, the next test begins the same."""
    torch.set_num_threads(_THREADS)
