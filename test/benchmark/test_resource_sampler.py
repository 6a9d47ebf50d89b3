"""Resources are sampled beside the observation of results, which must not wait for it."""

from __future__ import annotations

import threading

import psutil
import pytest
from waiting import until

from multi_dnn_ros.benchmark.process_tree import TreeSample
from multi_dnn_ros.benchmark.resource_sampler import ResourceSampler, append_node_sample
from multi_dnn_ros.benchmark.samples import NodeSample


class SlowTree:
    """A process tree that takes as long to read as the test wants. cpu_s: 0.5 more in each sample."""

    def __init__(self) -> None:
        self.begun, self.answer = threading.Semaphore(0), threading.Semaphore(0)
        self.error: Exception | None = None
        self.cpu_s = 0.0

    def sample(self) -> TreeSample:
        self.begun.release()
        assert self.answer.acquire(timeout=10.0)
        if self.error is not None:
            raise self.error
        self.cpu_s += 0.5
        return TreeSample(memory_bytes=7 << 20, threads=3, files=4, cpu_s=self.cpu_s, processes=2)


@pytest.fixture
def sampled():
    tree, samples = SlowTree(), []
    sampler = ResourceSampler(lambda: append_node_sample(samples, tree.sample))
    yield tree, sampler, samples
    for _ in range(3):
        tree.answer.release()
    sampler.close()


def test_the_observer_does_not_wait_for_a_sample(sampled) -> None:
    tree, sampler, samples = sampled
    sampler.sample_if_due(0.0)  # would block here
    assert tree.begun.acquire(timeout=10.0)
    sampler.sample_if_due(0.0)  # one at a time
    assert not samples
    tree.answer.release()
    until(lambda: samples)
    assert not tree.begun.acquire(blocking=False)
    assert (samples[0].resident_bytes, samples[0].threads, samples[0].files) == (7 << 20, 3, 4)
    until(lambda: sampler.sample_if_due(0.0) or tree.begun.acquire(blocking=False))
    tree.answer.release()
    until(lambda: len(samples) == 2)
    assert samples[1].cpu == pytest.approx(0.5 / (samples[1].at_s - samples[0].at_s))


def test_no_sample_before_the_period_is_over(sampled) -> None:
    tree, sampler, samples = sampled
    tree.answer.release()
    sampler.sample_if_due(3600.0)
    until(lambda: samples)
    tree.answer.release()
    for _ in range(3):
        sampler.sample_if_due(3600.0)
    sampler.close()
    assert len(samples) == 1


def test_a_node_that_has_ended_is_ignored_and_other_errors_are_not(sampled) -> None:
    tree, sampler, samples = sampled
    tree.error = psutil.NoSuchProcess(1)
    tree.answer.release()
    sampler.sample_if_due(0.0)
    assert tree.begun.acquire(timeout=10.0)
    until(lambda: sampler.sample_if_due(0.0) or tree.begun.acquire(blocking=False))
    tree.error = OSError("no /proc")
    tree.answer.release()

    def raised() -> bool:
        try:
            sampler.sample_if_due(3600.0)
        except OSError:
            return True
        return False

    until(raised)
    assert not samples


def test_samples_go_on_after_those_of_others() -> None:
    samples = [NodeSample(1.0, 1, 1, 1)]
    tree = SlowTree()
    tree.answer.release()
    sampler = ResourceSampler(lambda: append_node_sample(samples, tree.sample))
    sampler.sample_if_due(0.0)
    sampler.close()
    assert len(samples) == 2
