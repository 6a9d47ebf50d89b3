"""The engine on a fake GPU: launches run ahead, results arrive late, batches vary."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest
import torch
from engine_fakes import WAIT
from fake_gpu import DEVICE, FakeGpu, Stream

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.engine import DnnTask, Engine, Failure, Frame, Result
from multi_dnn_ros.engine.job import Inference, Item, Job

IMAGE = np.zeros((2, 2, 3), np.uint8)
JOBS, FRAMES = 4, 150


class OnDevice(Frame):
    def tensor(self, device: torch.device) -> torch.Tensor:
        return torch.tensor([[float(self.stamp_ns)]])


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


def make_task(gpu: FakeGpu, name: str, cameras: list[str], job_s: float, single_launch: bool) -> DnnTask:
    def stage(adds: int, seconds: float) -> Stage:
        def run(carried: Tensors) -> Tensors:
            gpu.launch(seconds)
            return (carried[0] + adds,)

        return run

    sizes = {1, len(cameras)}
    chains = {size: tuple(stage(1, job_s * size) for _ in range(JOBS)) for size in sizes}
    whole = {size: stage(JOBS, JOBS * job_s * size) for size in sizes}
    single = chains.pop(1)
    return DnnTask(
        name,
        tuple(cameras),
        lambda image: (image,),
        single,
        lambda outputs, size: float(outputs[0]),
        priority=len(cameras),
        batches=chains,
        batch_delay_ns=1_000_000,
        single_launch=whole if single_launch else {},
    )


@pytest.mark.parametrize("policy", ["fifo", "priority"])
@pytest.mark.parametrize("single_launch", [False, True])
def test_every_frame_of_every_camera_has_a_result(gpu: FakeGpu, policy: str, single_launch: bool) -> None:
    """In a closed loop with several DNNs and cameras: no frame is lost or mixed up, no event is read too early."""
    cameras = [f"camera{number}" for number in range(6)]
    tasks = [
        make_task(gpu, "three", cameras[:3], 5e-5, single_launch),
        make_task(gpu, "one", cameras[3:4], 2e-4, single_launch),
        make_task(gpu, "two", cameras[4:], 1e-4, single_launch),
    ]
    results: dict[str, list[Result]] = {camera: [] for camera in cameras}
    failures: list[Failure] = []
    finished = threading.Semaphore(0)

    def offer(camera: str, number: int) -> None:
        engine.offer(OnDevice(camera, number, IMAGE))

    def on_result(result: Result) -> None:
        mine = results[result.frame.camera]
        mine.append(result)
        if len(mine) < FRAMES:
            offer(result.frame.camera, len(mine))
        else:
            finished.release()

    engine = Engine(tasks, workers=1, device=DEVICE, policy=policy, on_result=on_result, on_failure=failures.append)
    engine.start()
    for camera in cameras:
        offer(camera, 0)
    assert all(finished.acquire(timeout=WAIT) for _ in cameras)
    assert engine.wait_idle(WAIT)
    assert engine.stop(WAIT) == []
    assert failures == []
    for mine in results.values():
        assert [result.frame.stamp_ns for result in mine] == list(range(FRAMES))
        assert [result.output for result in mine] == [float(number + JOBS) for number in range(FRAMES)]
        assert all(result.timing.compute_ns > 0 for result in mine)
    assert {result.timing.batch for result in results["camera0"]} - {1, 2, 3} == set()
    assert {result.timing.batch for result in results["camera3"]} == {1}


def test_an_inference_on_another_stream_waits_for_one_that_failed_half_way(gpu: FakeGpu) -> None:
    """Both use the memory of the stages."""

    def run(carried: Tensors) -> Tensors:
        gpu.launch(10.0)
        if int(carried[0]) == 0:
            raise ValueError("after its launch")
        return carried

    task = DnnTask("a", ("front",), lambda image: (image,), (run,), lambda outputs, size: None)
    before = Stream()
    ready: torch.cuda.Event | None = torch.cuda.Event()
    ends = []
    for number, stream in enumerate((before, Stream())):
        inference = Inference(
            task, (Item(OnDevice("front", number, IMAGE)),), 0, None, 0, lambda inference: None, ready=ready,
            stream=before,
        )  # fmt: skip
        torch.cuda.set_stream(stream)
        with contextlib.nullcontext() if number else pytest.raises(ValueError, match="after its launch"):
            Job(inference, 0).run(DEVICE, stream)
        ready = inference.ready
        ends.append(stream.until)
    assert ends[1] >= ends[0] + 10.0
