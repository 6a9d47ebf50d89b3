"""How engine processes end: the reported causes, and that nothing is left of them."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import fake_pipelines as fake
import psutil
import pytest
from engine_rig import Rig
from fake_pipelines import settings
from waiting import runs, until

from multi_dnn_ros.serving import engine_process, messages
from multi_dnn_ros.serving.engine_process import EngineProcess, oom_kills

WAIT_S = 30.0
Make = Callable[..., Rig]


@pytest.fixture(scope="module")
def spares() -> Iterator[list[Rig]]:
    """Engine processes for the tests that wait for the imports, all started at once."""
    config = settings("object", "rear_object", cameras=("front", "rear"))
    config.dnns["object"].cameras = ["front"]
    config.dnns["rear_object"].cameras = ["rear"]
    rigs = [Rig(config) for _ in range(6)]
    yield rigs.copy()
    for one in rigs:
        one.close()


def test_a_crash_while_configuring(spares: list[Rig]) -> None:
    engine = spares.pop()
    engine.ready()
    engine.process.send(messages.Configure(engine.config, engine.dnns, fake.build_crashing))
    end = engine.end()
    assert end.cause == "killed by SIGABRT"
    assert "build_crashing" in end.output_tail
    texts = [message.progress.text for message in engine.all(messages.Progressed)]
    assert texts[0] == "about to crash"  # delivered before the end
    children = [int(text.split()[1]) for text in texts[1:]]
    assert children
    until(lambda: not any(runs(child) for child in children), "end of the children")


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (fake.SEGFAULT, "killed by SIGSEGV"),
        (fake.TERMINATE, "CUDA error: device-side assert triggered (killed by SIGABRT)"),
        (fake.GPU_FAULT, "CUDA error: an illegal memory access was encountered"),
    ],
)
def test_a_dnn_ends_the_process(spares: list[Rig], value: int, cause: str) -> None:
    engine = spares.pop().serve()
    engine.offer(200, "rear")
    engine.until(lambda: engine.all(messages.FrameResult), "answer of the other DNN")
    engine.offer(value)
    assert engine.end().cause == cause
    assert set(engine.process.state.running_jobs()) == {"object"}


def test_a_native_call_that_never_returns(spares: list[Rig]) -> None:
    """It does not hold the GIL, so heartbeats continue, the job times out, and the end of the connection is noticed."""
    engine = spares.pop().serve()
    engine.offer(fake.BUSY)
    engine.offer(fake.BUSY, "rear")
    until(lambda: len(engine.process.state.running_jobs()) == 2, "jobs")
    job = min(engine.process.state.running_jobs().values())
    until(lambda: engine.process.state.heartbeat_ns() - job > 5 * 10**8, "heartbeats")
    engine.process._socket.shutdown(socket.SHUT_RDWR)
    assert "lost the connection" in engine.end().cause
    assert set(engine.process.state.running_jobs()) == {"object", "rear_object"}


def test_a_native_call_that_holds_the_gil(spares: list[Rig]) -> None:
    engine = spares.pop().serve()
    engine.offer(fake.HOLD_GIL)
    until(lambda: time.monotonic_ns() - engine.process.state.heartbeat_ns() > 10**9, "missing heartbeats")
    engine.process.kill("hung: no heartbeat for 1 s")
    engine.process.kill("another cause")
    assert engine.end().cause == "hung: no heartbeat for 1 s"


def test_a_process_that_receives_no_messages_is_killed(rig: Make) -> None:
    engine = rig("object")
    os.kill(engine.process.pid, signal.SIGSTOP)
    begin = time.monotonic()
    while not engine.ends:
        engine.process.send(messages.Update("object", "priority", 1))  # never raises
        assert time.monotonic() - begin < WAIT_S
    assert engine.end().cause == "hung: it received no message for 1 s"


def test_a_sigkill_of_the_kernel_is_distinguished_from_others(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = rig("object")
    os.kill(engine.process.pid, signal.SIGKILL)
    assert engine.end().cause == "killed by SIGKILL"
    other = rig("object")
    before = oom_kills()
    monkeypatch.setattr(engine_process, "oom_kills", lambda: before + 1)
    os.kill(other.process.pid, signal.SIGKILL)
    assert other.end().cause == "killed by the kernel's out-of-memory killer"


def test_an_earlier_oom_kill_of_another_process_is_not_the_cause(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = rig("object").serve()
    before = oom_kills()
    monkeypatch.setattr(engine_process, "oom_kills", lambda: before + 1)
    seen = len(engine.all(messages.Report))
    engine.until(lambda: len(engine.all(messages.Report)) > seen + 2, "reports of memory")
    os.kill(engine.process.pid, signal.SIGKILL)
    assert engine.end().cause == "killed by SIGKILL"


_NODE = """
import sys, time
sys.path.insert(0, sys.argv[1])
from engine_rig import Rig, build_after_tracing
from multi_dnn_ros.settings.schema import CameraConfig, DnnConfig, NodeConfig
from multi_dnn_ros.serving import default_build, messages
config = NodeConfig(device="cpu", cameras={"front": CameraConfig()}, dnns={
    name: DnnConfig(role=name, model=f"builtin:{name}_small", backend="eager", jobs=1) for name in ("object", "lane")})
engines = [Rig(config, "engine 0", modules=default_build.MODULES)]
served = engines[0].serve(build_after_tracing).outcomes(100, size=(480, 640))
reports = [message.progress for message in engines[0].all(messages.Progressed)]
assert reports[-1].ready == 2
(tracing,) = (progress.text for progress in reports if progress.text.startswith("tracing"))
engines += [Rig(config, f"engine {number}", modules=()) for number in (1, 2)]  # they end while they import
for engine in engines:
    while not engine.process.state.heartbeat_ns():
        time.sleep(0.01)
print("torch" in sys.modules, tracing, *(type(served[name]).__name__ for name in ("lane", "object")),
      *(engine.process.pid for engine in engines), flush=True)
time.sleep(600)
"""


def test_a_node_needs_no_pytorch_and_its_engine_processes_end_when_it_is_killed() -> None:
    """New interpreters show that tracing imports nothing in addition to the default modules."""
    with subprocess.Popen(
        [sys.executable, "-c", _NODE, str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True
    ) as node:
        try:
            assert node.stdout is not None
            torch, tracing, lane, detections, *numbers = node.stdout.readline().split()
            assert (torch, lane, detections) == ("False", "Lanes", "Detections")
            assert tracing == "tracing", "an engine process should have imported this before it is configured"
            pids = [int(number) for number in numbers]
            os.kill(pids[1], signal.SIGSTOP)  # it cannot notice the end of the node; the kernel kills it
        finally:
            node.kill()
    until(lambda: not any(runs(pid) for pid in pids), "end of the engine processes")


def test_nothing_is_left_of_many_processes(request: pytest.FixtureRequest) -> None:
    """Killed at once, during the imports, and after serving."""
    with contextlib.closing(Rig(settings("object"))) as first:
        first.serve().outcomes(200)
    del first
    request.getfixturevalue("new_interpreters")  # forks have imported all
    before = _held()
    for number in range(4):
        one = Rig(settings("object"))
        if number % 2:
            until(one.process.state.heartbeat_ns, "heartbeat")
        one.close()
        assert one.end().cause == "the test is over"
        del one
    until(lambda: _leaked(before) == {}, "state as before", told=lambda: _leaked(before))


def _held() -> dict[str, Counter[str]]:
    """Descriptors, threads, child processes and entries of /dev/shm of this process."""
    gc.collect()  # frees objects of the tests
    return {
        "descriptors": Counter(len(os.listdir("/proc/self/fd")) * ["descriptor"]),
        "threads": Counter(thread.name for thread in threading.enumerate()),
        "children": Counter(str(child.pid) for child in psutil.Process().children(recursive=True)),
        "shared memory": Counter(name for name in os.listdir("/dev/shm") if "multi_dnn" in name or "torch" in name),
    }


def _leaked(before: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    """Everything held in addition to `before`; threads of an earlier test may have ended since then."""
    return {kind: more for kind, now in _held().items() if (more := now - before[kind])}


def test_a_process_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _held()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(OSError, match=r"engine test cannot be started: .*/nowhere/python"):
        EngineProcess("engine test", ("object",), {}, lambda message: None)
    until(lambda: _leaked(before) == {}, "state as before", told=lambda: _leaked(before))
