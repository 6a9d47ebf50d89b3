"""Errors of a failing device, and pausing a queue while CUDA graphs are captured."""

from __future__ import annotations

import threading

import pytest
import torch
from engine_fakes import WAIT, FakeClock, WatchedLock, frame, task

from multi_dnn_ros.backends.device_errors import is_device_failure, is_out_of_memory, memory_shortage
from multi_dnn_ros.engine import queue
from multi_dnn_ros.engine.job import Inference, Item, Job
from multi_dnn_ros.engine.policies import Fifo
from multi_dnn_ros.engine.queue import JobQueue

ILLEGAL = "CUDA error: an illegal memory access was encountered"


def test_pausing_the_queue_times_out_on_a_hanging_job():
    queue = JobQueue(Fifo(), FakeClock())
    queue.put(Job(Inference(task(), (Item(frame()),), 0, None, 0, lambda inference: None), 0))
    assert queue.get() is not None
    with pytest.raises(TimeoutError, match=r"a job did not end within 0.01 s"), queue.paused(0.01):
        raise AssertionError
    queue.close()
    assert queue.get(job_done=True) is None
    with queue.paused(0.01), pytest.raises(TimeoutError, match="paused by another DNN"), queue.paused(0.01):
        raise AssertionError
    with queue.paused(0.01):
        pass


def test_queues_of_several_engines_are_paused_one_at_a_time(monkeypatch):
    """A stopped engine may still rebuild jobs while the next one does."""
    pause_lock = WatchedLock()
    monkeypatch.setattr(queue, "_pause_lock", pause_lock)
    before, after = (JobQueue(Fifo(), FakeClock()) for _ in range(2))
    entered = threading.Event()

    def hold() -> None:
        with after.paused(WAIT):
            entered.set()

    waiting = threading.Thread(target=hold)
    with before.paused(WAIT):
        waiting.start()
        assert pause_lock.waits.wait(WAIT)
        assert after.put(Job(Inference(task(), (Item(frame()),), 0, None, 0, lambda inference: None), 0))
        assert after.get() is not None  # waiting for a pause does not block the queue
        after._running -= 1
        assert not entered.is_set()
    assert entered.wait(WAIT)
    waiting.join(WAIT)
    assert not waiting.is_alive()


def test_device_errors_are_distinguished_from_layer_errors():
    assert is_device_failure(RuntimeError(f"{ILLEGAL}\nCUDA kernel errors might be reported later"))
    assert is_device_failure(RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"))
    assert not is_device_failure(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_device_failure(ValueError(ILLEGAL))
    memory = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has ...")
    assert is_out_of_memory(memory)
    assert not is_device_failure(memory)
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"))
    behind = RuntimeError("operation failed due to a previous error during capture")
    behind.__context__ = memory
    assert is_out_of_memory(behind)
    assert memory_shortage(memory, torch.device("cpu"), 0) == "a request for 20.00 MiB failed"


@pytest.mark.parametrize("connect", ["__cause__", "__context__"])
@pytest.mark.parametrize(
    ("first", "recognize"), [(RuntimeError(ILLEGAL), is_device_failure), (torch.OutOfMemoryError(), is_out_of_memory)]
)
def test_a_device_error_is_recognized_behind_another_error(first, recognize, connect):
    raised = ValueError("decoding failed")
    assert not recognize(raised)
    setattr(raised, connect, first)
    assert recognize(raised)
    raised.__suppress_context__ = True  # as by `from None`
    assert recognize(raised)
    first.__context__ = raised
    assert recognize(raised)
    first.__context__ = None
