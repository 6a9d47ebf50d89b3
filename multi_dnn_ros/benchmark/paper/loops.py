"""Closed loops: each DNN starts its next inference on the result of the previous one.

All loops start at the same time and count within a window, so that the counted inferences run while all DNNs are warm.
This is the only module of the benchmarks that uses the engine itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from multi_dnn_ros.backends import Shared, Stage, Tensors, run_stages
from multi_dnn_ros.backends.captured_network import as_network
from multi_dnn_ros.backends.gates import Gate
from multi_dnn_ros.backends.static_stages import single_launches
from multi_dnn_ros.engine import DnnTask, Engine, Failure, Frame
from multi_dnn_ros.serving.choices import default_workers

_IMAGE = np.zeros((4, 4, 3), np.uint8)
_DRAIN_S = 60.0
#: In a closed loop all cameras have a frame once the previous batch is reported; the delay matters for the first only.
_BATCH_DELAY_NS = 5_000_000
_DEADLINE_NS = 33_000_000


@dataclass(frozen=True)
class Window:
    """The counted interval, on the monotonic clock, which all processes of a machine share."""

    begin_ns: int
    end_ns: int

    @classmethod
    def ahead(cls, run_in_s: float, seconds: float) -> Window:
        """A window of `seconds` that starts `run_in_s` from now, to give every DNN time to warm up."""
        begin_ns = time.monotonic_ns() + round(run_in_s * 1e9)
        return cls(begin_ns, begin_ns + round(seconds * 1e9))


@dataclass
class Tally:
    """Inferences of one DNN. latencies_ns: of those that start and end in the window; an inference that ends later
    counts if it is the only one, so that every DNN has a sample.
    """

    window: Window
    latencies_ns: list[int] = field(default_factory=list)

    def add(self, begin_ns: int, end_ns: int) -> None:
        """Record a finished inference."""
        if begin_ns >= self.window.begin_ns and (end_ns <= self.window.end_ns or not self.latencies_ns):
            self.latencies_ns.append(end_ns - begin_ns)

    def wants_more(self, now_ns: int) -> bool:
        """Whether the DNN has to continue."""
        return now_ns < self.window.end_ns or not self.latencies_ns


#: Runs prepared DNNs until the end of the window; returns one tally per DNN, and raises what an inference raises.
Loop = Callable[[Window], list[Tally]]


def one_dnn_loop(infer: Callable[[], object], mode: Callable[[], AbstractContextManager[None]]) -> Loop:
    """A process with a single DNN. infer: runs one inference to its end. mode: gradient mode of the thread."""

    def run(window: Window) -> list[Tally]:
        tally, now = Tally(window), time.monotonic_ns()
        with mode():
            while tally.wants_more(now):
                begun = now
                infer()
                now = time.monotonic_ns()
                tally.add(begun, now)
        return [tally]

    return run


# -- this package's engine


class _FrameOnDevice(Frame):
    """A frame whose input is on the device already, so that nothing is uploaded."""

    def tensor(self, device: torch.device) -> torch.Tensor:
        return torch.empty(0)


def dnn_state(device: torch.device) -> Shared:
    """For preparing one DNN of the engine: on a GPU with a gate, and without copying outputs to the host."""
    return Shared(gate=Gate(), reduce=_no_outputs) if device.type == "cuda" else Shared()


def make_task(
    name: str, cameras: Sequence[str], chains: Mapping[int, tuple[Stage, ...]], inputs: Tensors, state: Shared, *,
    sms: int = 0, important: bool = False,
) -> DnnTask:  # fmt: skip
    """A DNN whose input is already on the device. chains: stages by batch size, 1 included. state: of `dnn_state`.
    important: before others under the policies priority and edf.
    """
    task = DnnTask(
        name, tuple(cameras), lambda image: inputs, (), lambda outputs, size: None, sms=sms,
        priority=10 if important else 0, deadline_ns=_DEADLINE_NS if important else None,
        batch_delay_ns=_BATCH_DELAY_NS, gate=state.gate,
    )  # fmt: skip
    if inputs[0].is_cuda:
        networks = {size: as_network(chain, size, _no_outputs) for size, chain in chains.items()}
        memory = getattr(networks[1], "inputs", inputs)  # as if preprocessing had written there
        return replace(task, networks=networks, preprocess=lambda image: memory)
    return replace(
        task, stages=chains[1], batches={size: chain for size, chain in chains.items() if size > 1},
        single_launch=single_launches(chains),
    )  # fmt: skip


def bare_launch(chain: tuple[Stage, ...], inputs: Tensors) -> Callable[[], object]:
    """Launches what the engine would launch for a frame, on the current stream; on a CPU it computes the frame."""
    if inputs[0].is_cuda:
        network = as_network(chain, 1, _no_outputs)
        memory = getattr(network, "inputs", inputs)
        return lambda: network.launch(memory)
    whole = single_launches({1: chain}).get(1)
    return (lambda: run_stages(chain, inputs)) if whole is None else (lambda: whole(inputs))


def _no_outputs(outputs: Tensors) -> Tensors:
    """As in the other conditions, no output is copied to the host."""
    return ()


@contextmanager
def running_engine(
    tasks: Sequence[DnnTask], device: torch.device, on_result: Callable[[str, int], None], policy: str = "fifo"
) -> Iterator[Callable[[str], None]]:
    """Context with a running engine. Yields a function that offers a frame; its argument is the camera's name.

    on_result: called with the camera of a finished frame and the time of its offer. At the end the frames in progress
    are finished. Raises RuntimeError if a DNN failed.
    """
    failures: list[Failure] = []
    engine = Engine(
        tasks,
        workers=default_workers(device, len(tasks)),
        device=device,
        policy=policy,
        on_result=lambda result: on_result(result.frame.camera, result.frame.stamp_ns),
        on_failure=failures.append,
    )
    engine.start()
    try:
        yield lambda camera: engine.offer(_FrameOnDevice(camera, time.monotonic_ns(), _IMAGE))
        finished = engine.wait_idle(_DRAIN_S)
    finally:
        engine.stop(2.0)
    if failures:
        raise RuntimeError(f"{failures[0].dnn}: {failures[0].message}")
    if not finished:
        raise RuntimeError(f"the engine did not finish its frames within {_DRAIN_S:g} s after the end")


def engine_loop(tasks: Sequence[DnnTask], device: torch.device) -> Loop:
    """This package's engine. An inference's time is from offering the frame of a camera to the result."""

    def run(window: Window) -> list[Tally]:
        tallies = {camera: Tally(window) for task in tasks for camera in task.cameras}

        def on_result(camera: str, offered_ns: int) -> None:
            now = time.monotonic_ns()
            tallies[camera].add(offered_ns, now)
            if tallies[camera].wants_more(now):
                offer(camera)

        with running_engine(tasks, device, on_result) as offer:
            for camera in tallies:
                offer(camera)
            time.sleep(max(0.0, (window.end_ns - time.monotonic_ns()) / 1e9))
        return list(tallies.values())

    return run
