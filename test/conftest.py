"""What all rooms share: every test begins with the same number of PyTorch threads; properties look at no clock."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest
from fork_server import ForkServer
from hypothesis import HealthCheck, settings

# What an example takes says more about the computer than about the code.
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples in every run: CI judges the change, and `make test` of everybody else looks for new examples.
settings.register_profile("ci", settings.get_profile("no clock"), derandomize=True)
settings.load_profile("no clock")
# Read when PyTorch is loaded, also in processes that tests start: a pipeline sets as many threads as there are cores,
# and threads that spin while they wait for one another take the cores from the tests beside them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


# Who starts pytest may ignore these, as a shell does for its background jobs. Children would inherit that.
for _number in (signal.SIGINT, signal.SIGTERM):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler)


def _set_threads() -> None:
    import torch

    if not torch.cuda.is_available():
        # Networks of tests are small: a second thread makes none faster, and its waiting takes a core from the
        # processes beside it.
        torch.set_num_threads(1)


# The process that starts pytest's workers runs no tests, and importing PyTorch would delay them by seconds.
_STARTS_WORKERS = "PYTEST_XDIST_WORKER" not in os.environ and any(
    word.startswith(("-n", "--numprocesses")) for word in sys.argv[1:]
)
if not _STARTS_WORKERS:
    _set_threads()  # before other modules are imported, which have the number of threads in their constants

_unfreeze = gc.unfreeze
#: Closing a pipeline calls gc.unfreeze (serving.process_settings). Only one in this many calls is carried out:
#: closed pipelines are collected now and then, and what is left is excluded again.
_RELEASES = 60
_releases = itertools.count(1)


def pytest_report_header() -> str:
    """CI names the distributions of ROS 2 that it ran on."""
    distribution, middleware = (os.environ.get(name, "default") for name in ("ROS_DISTRO", "RMW_IMPLEMENTATION"))
    return f"ROS 2: {distribution}, middleware: {middleware}"


@pytest.fixture(scope="session")
def _threads_at_the_begin() -> int:
    """Part of what a device is called in constants of modules."""
    import torch

    if _STARTS_WORKERS:
        _set_threads()  # it runs tests after all: `-n 0`
    return torch.get_num_threads()


@pytest.fixture(autouse=True)
def _as_many_threads(_threads_at_the_begin: int) -> None:
    """Whatever a test or the pipeline that it builds has set, for the whole process, the next test begins the same."""
    import torch

    torch.set_num_threads(_threads_at_the_begin)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """No garbage collection meanwhile: next to nothing of what is imported and collected is garbage."""
    gc.disable()
    yield
    gc.enable()


def pytest_collection_finish() -> None:
    """Exclude all imported modules and collected tests from garbage collection: they stay until the end of the run.

    Configuring and closing a pipeline each run the collector. Over half a million objects that takes longer than the
    rest of most tests. Not on a GPU, where closed pipelines must free their memory.
    """
    import torch

    if torch.cuda.is_available():
        return

    def unfreeze() -> None:
        if next(_releases) % _RELEASES == 0:
            _unfreeze()
            gc.collect()
            gc.freeze()

    gc.unfreeze = unfreeze
    gc.collect()
    gc.freeze()


def pytest_runtest_setup() -> None:
    """Skip the test if the time in the environment variable TESTS_UNTIL (seconds since 1970) is over; see .ci/run."""
    until = os.environ.get("TESTS_UNTIL")
    if until and time.time() > float(until):
        pytest.skip("out of time: TESTS_UNTIL is over")


@pytest.fixture
def unfrozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is excluded from garbage collection but what the test freezes."""
    monkeypatch.setattr(gc, "unfreeze", _unfreeze)
    gc.unfreeze()
    yield
    gc.freeze()


_domains = itertools.count()


@pytest.fixture
def domain() -> Iterator[int]:
    """A ROS domain of the test's own."""
    if next(_domains) % 20 == 19:
        # The real rclpy keeps the ports of closed nodes until they are collected, and there are 80 domains. They may be
        # frozen: an engine in this process freezes all objects when it has been configured.
        _unfreeze()
        gc.collect()
        gc.freeze()
    from multi_dnn_ros.demo.children import reserved_domain

    with reserved_domain() as domain:
        yield domain


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Starts programs that need PyTorch in a tenth of a second; with a GPU, in new interpreters."""
    import torch

    server = ForkServer(forks=not torch.cuda.is_available())
    yield server
    server.close()


@pytest.fixture(scope="module")
def forked_children(fork_server: ForkServer) -> Iterator[None]:
    """Processes of demo.children.Child, and the engine processes of nodes among them, are forks."""
    from multi_dnn_ros.demo import children

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(children, "subprocess", fork_server.subprocess)
        yield


@pytest.fixture(scope="module")
def forked_engines(fork_server: ForkServer) -> Iterator[None]:
    """Engine processes of nodes in this process are forks."""
    from multi_dnn_ros.serving import engine_process

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_process, "subprocess", fork_server.subprocess)
        yield


@pytest.fixture(scope="module")
def forked_spawns(fork_server: ForkServer) -> Iterator[None]:
    """Processes that multiprocessing spawns are forks of the server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multiprocessing.util.spawnv_passfds", fork_server.spawn)
        yield
