"""What all rooms share: every test begins with the same number of PyTorch threads; properties look at no clock."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from multi_dnn_ros.common.processes import reserved_domain

# What an example takes says more about the computer than about the code.
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")

if not torch.cuda.is_available():
    # Networks of tests are small: a second thread makes none faster, and its waiting takes a core from the processes
    # beside it.
    torch.set_num_threads(1)
# Tests and the processes that they start get the socket buffers of an ordinary kernel, whatever this one grants.
os.environ["MULTI_DNN_ROS_RECEIVE_BUFFER"] = "212992"

#: Part of what a device is called in constants of modules.
_THREADS = torch.get_num_threads()


@pytest.fixture(autouse=True)
def _as_many_threads() -> None:
    """Whatever a test or the pipeline that it builds has set, for the whole process, the next test begins the same."""
    torch.set_num_threads(_THREADS)


@pytest.fixture
def domain() -> Iterator[int]:
    """A ROS domain of the test's own."""
    with reserved_domain() as domain:
        yield domain
