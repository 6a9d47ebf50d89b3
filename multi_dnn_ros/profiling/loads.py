"""Background load: threads on a CPU, streams on a GPU, each repeating one operation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import torch

from multi_dnn_ros.profiling.predictor import Load, ProfileError

#: Load `compute`: side of the matrices. Load `memory`: MiB copied per call, much more than the caches hold.
_SIDE, _MEBIBYTES = {"cpu": 512, "cuda": 2048}, {"cpu": 64, "cuda": 512}
#: Calls that are queued on a stream at once.
_QUEUED = 4
_TIMEOUT_S = 120.0


@contextmanager
def background_load(load: Load, device: torch.device, network: Callable[[], Callable[[], object]]) -> Iterator[None]:
    """Context in which `load.level` threads, on a GPU each with its own stream, run the load.

    network: makes one inference of load `dnn`; called on the caller's thread, once per background thread. The context
    begins once every thread has completed a call. Each computes with one PyTorch thread. Raises ProfileError if a
    thread fails.
    """
    stop, started = threading.Event(), threading.Barrier(load.level + 1, timeout=_TIMEOUT_S)
    works = [_work(load, device, network) for _ in range(load.level)]

    def repeat(work: Callable[[], object]) -> None:
        on_gpu = device.type == "cuda"
        stream = torch.cuda.Stream(device) if on_gpu else None
        torch.set_num_threads(1)
        torch.get_num_threads()  # the first call initializes this thread's number of threads
        waiting = True
        try:
            with torch.inference_mode(), torch.cuda.stream(stream):
                while not stop.is_set():
                    for _ in range(_QUEUED if on_gpu else 1):
                        work()
                    if stream is not None:
                        stream.synchronize()
                    if waiting:
                        with suppress(threading.BrokenBarrierError):  # another one has failed
                            started.wait()
                        waiting = False
        finally:
            started.abort()

    threads = torch.get_num_threads()
    with ThreadPoolExecutor(max(1, load.level), thread_name_prefix="load") as pool:
        running = [pool.submit(repeat, work) for work in works]
        try:
            with suppress(threading.BrokenBarrierError):
                started.wait()
            torch.set_num_threads(threads)  # that of the whole process; the background threads keep their own
            if not any(each.done() for each in running):
                yield
        finally:
            stop.set()
    for each in running:
        if (error := each.exception()) is not None:
            raise ProfileError(f"a background load failed: {error}") from error


def _work(load: Load, device: torch.device, network: Callable[[], Callable[[], object]]) -> Callable[[], object]:
    if load.kind == "compute":
        a, b, c = (torch.rand(_SIDE[device.type], _SIDE[device.type], device=device) for _ in range(3))
        return lambda: torch.mm(a, b, out=c)
    if load.kind == "memory":
        source = torch.ones(_MEBIBYTES[device.type] << 18, device=device)
        copy = torch.empty_like(source)
        return lambda: copy.copy_(source)
    return network()
