"""Graphs instantiated and launched by the driver API, with a fake driver. On a GPU: test/gpu/backends."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from multi_dnn_ros.backends import capture, cuda_driver
from multi_dnn_ros.backends.capture import StreamGraph
from multi_dnn_ros.backends.device_errors import is_device_failure, is_out_of_memory

CONTEXT, RAW, EXEC, STREAM, HANDLE = 11, 22, 33, 44, 55
GPU = torch.device("cuda", 0)


class Driver:
    """A fake driver. results: results of the launches, in order. calls: names and arguments of all calls."""

    def __init__(self) -> None:
        self.results: list[int] = []
        self.instantiated = 0
        self.calls: list[tuple[Any, ...]] = []

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = None  # of a thread that has not used CUDA before
        return 0

    def cuDeviceGet(self, handle: Any, index: int) -> int:
        handle._obj.value = index + HANDLE
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, handle: ctypes.c_int) -> int:
        assert handle.value == HANDLE
        context._obj.value = CONTEXT
        return 0

    def cuCtxSetCurrent(self, context: ctypes.c_void_p) -> int:
        self.calls.append(("context", context.value))
        return 0

    def cuGraphInstantiateWithFlags(self, graph: Any, raw: ctypes.c_void_p, flags: ctypes.c_ulonglong) -> int:
        self.calls.append(("instantiate", raw.value, flags.value))
        graph._obj.value = EXEC
        return self.instantiated

    def cuGraphLaunch(self, graph: int, stream: int) -> int:
        self.calls.append(("launch", graph, stream))
        return self.results.pop(0) if self.results else 0

    def cuGraphExecDestroy(self, graph: ctypes.c_void_p) -> int:
        self.calls.append(("destroy", graph.value))
        return 0

    def cuGetErrorString(self, result: int, text: Any) -> int:
        text._obj.value = b"an illegal memory access was encountered"
        return 0


GRAPH: Any = SimpleNamespace(raw_cuda_graph=lambda: RAW)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    fake = Driver()
    monkeypatch.setattr(capture, "driver", lambda: fake)
    monkeypatch.setattr(cuda_driver, "driver", lambda: fake)
    monkeypatch.setattr(cuda_driver, "_driver_with_gil", lambda: fake)
    monkeypatch.setattr(capture, "enqueue_on", cuda_driver.Enqueue)  # not cached
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM, raising=False)
    return fake


def test_a_graph_has_the_priority_of_the_launching_stream(driver: Driver) -> None:
    graph = StreamGraph(GRAPH, GPU)
    graph.replay()
    graph.replay()
    use_node_priority = 8
    assert driver.calls[0] == ("instantiate", RAW, 1)
    assert not driver.calls[0][2] & use_node_priority
    assert driver.calls[1:] == [("launch", EXEC, STREAM)] * 2
    del graph
    gc.collect()
    assert driver.calls[-1] == ("destroy", EXEC)


def test_a_thread_without_a_cuda_context_gets_one(driver: Driver) -> None:
    graph = StreamGraph(GRAPH, GPU)
    driver.results = [201]
    graph.replay()
    assert driver.calls[1:] == [("launch", EXEC, STREAM), ("context", CONTEXT), ("launch", EXEC, STREAM)]


def test_driver_errors_are_raised_as_by_pytorch(driver: Driver) -> None:
    graph = StreamGraph(GRAPH, GPU)
    driver.results = [700]
    with pytest.raises(RuntimeError, match="CUDA error: an illegal memory access") as raised:
        graph.replay()
    assert is_device_failure(raised.value)
    driver.instantiated = 2
    with pytest.raises(torch.OutOfMemoryError) as raised:
        StreamGraph(GRAPH, GPU)
    assert is_out_of_memory(raised.value)
