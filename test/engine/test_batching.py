"""Frames of several cameras in one inference: which frames are batched, the wait for further ones, their results."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engine_fakes import WAIT, FakeClock, Gate, check_accounts, frame, task

from multi_dnn_ros.engine import DropReason, Engine

CAMERAS = ("front", "left", "rear", "right")


def start_and_queue(engine: Engine, gate: Gate, *cameras: str, first: str = "front") -> None:
    """Start an inference of `first`, and leave one frame of each of `cameras` waiting."""
    engine.offer(frame(first, 0))
    gate.wait_for_job()
    for value, camera in enumerate(cameras, start=1):
        engine.offer(frame(camera, value))


def batched(gate: Gate, **kwargs: object) -> object:
    return task(jobs=2, cameras=CAMERAS, on_job=lambda index: gate() if index == 0 else None, **kwargs)


def test_waiting_frames_share_one_inference_and_get_their_own_results(start, recorder):
    gate = Gate()
    engine = start(batched(gate, batches=(2, 4)), workers=2)
    start_and_queue(engine, gate, "left", "rear", "right")
    gate.open()
    recorder.wait(lambda: len(recorder.results) == 4)
    assert [(r.frame.camera, r.output[0], r.timing.batch) for r in recorder.results] == [
        ("front", 2.0, 1), ("left", 3.0, 3), ("rear", 4.0, 3), ("right", 5.0, 3),
    ]  # fmt: skip
    assert engine.wait_idle(WAIT)
    check_accounts(engine)


def test_batches_are_bounded_by_the_stages_and_round_robin_over_cameras(start, recorder):
    gate = Gate()
    engine = start(batched(gate, batches=(2,)), workers=1)
    start_and_queue(
        engine, gate, "front", "left", "rear", "front"
    )  # the second frame of front replaces the first that waits
    gate.open()
    recorder.wait(lambda: len(recorder.results) == 4)
    assert [r.frame.camera for r in recorder.results] == ["front", "left", "rear", "front"]
    assert [r.timing.batch for r in recorder.results] == [1, 2, 2, 1]
    assert [(d.frame.stamp_ns, d.reason) for d in recorder.drops] == [(1, DropReason.OVERWRITTEN)]


@pytest.mark.parametrize("bad", [("rear",), ("left", "rear", "right")])
def test_failing_preprocessing_loses_only_its_frames(start, recorder, bad):
    """Even if no frame of the batch is left."""
    values = {"left": 1, "rear": 2, "right": 3}

    def preprocess(image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if int(image[0, 0, 0]) in [values[camera] for camera in bad]:
            raise ValueError("no such image")
        return (image.float().mean().reshape(1),)

    gate = Gate()
    engine = start(replace(batched(gate, batches=(3,)), preprocess=preprocess), workers=1)
    start_and_queue(engine, gate, "left", "rear", "right")
    gate.open()
    recorder.wait(lambda: len(recorder.results) == 4 - len(bad) and len(recorder.failures) == len(bad))
    assert {(d.frame.camera, d.reason) for d in recorder.drops} == {(camera, DropReason.DNN_ERROR) for camera in bad}
    assert len(recorder.drops) == len(bad)
    assert all("job 1: ValueError: no such image" in failure.message for failure in recorder.failures)
    check_accounts(engine)


def test_a_failing_job_loses_the_whole_batch_as_one_failure(start, recorder):
    gate, broken = Gate(), []

    def on_job(index: int) -> None:
        if index == 0:
            gate()
        elif broken:
            raise RuntimeError("layer broke")

    engine = start(task(jobs=2, cameras=CAMERAS, on_job=on_job, batches=(3,)), workers=1, max_failures=2)
    start_and_queue(engine, gate, "left", "rear", "right")
    gate.let()
    recorder.wait(lambda: recorder.results)
    broken.append(True)
    gate.open()
    recorder.wait(lambda: recorder.failures)
    assert [(f.consecutive, f.disabled) for f in recorder.failures] == [(1, False)]
    assert {(d.frame.camera, d.reason) for d in recorder.drops} == {(c, DropReason.DNN_ERROR) for c in CAMERAS[1:]}
    check_accounts(engine)


@pytest.mark.parametrize("error", [ValueError("no such number"), SystemExit(1)])
def test_failing_decoding_or_callback_loses_only_that_frame(start, recorder, error):
    def decode(outputs: tuple, size: tuple[int, int]) -> float:
        if float(outputs[0]) == 4.0:
            raise error
        return float(outputs[0])

    def on_result(result) -> None:
        if result.frame.camera == "left":
            raise error
        recorder.callbacks()["on_result"](result)

    gate = Gate()
    engine = start(batched(gate, batches=(3,), decode=decode), workers=1, on_result=on_result)
    start_and_queue(engine, gate, "left", "rear", "right")
    gate.open()
    assert engine.wait_idle(WAIT)
    assert [r.frame.camera for r in recorder.results] == ["front", "right"]
    assert {(d.frame.camera, d.reason) for d in recorder.drops} == {
        ("left", DropReason.PUBLISH_ERROR), ("rear", DropReason.BAD_OUTPUT),
    }  # fmt: skip
    check_accounts(engine)


def test_frames_above_the_maximum_age_are_replaced_in_the_batch(start, recorder):
    clock, gate = FakeClock(), Gate()
    engine = start(batched(gate, batches=(2,), max_age_ns=100), workers=1, clock=clock)
    start_and_queue(engine, gate, "left")
    clock.now += 101
    for camera in ("rear", "right"):
        engine.offer(frame(camera, 5))
    gate.open()
    recorder.wait(lambda: len(recorder.results) == 3)
    assert [(d.frame.camera, d.reason) for d in recorder.drops] == [("left", DropReason.TOO_OLD)]
    assert [r.timing.batch for r in recorder.results] == [1, 2, 2]
    check_accounts(engine)


def test_batch_delay_ends_when_all_cameras_have_a_frame(start, recorder):
    """With a clock that stands still, no delay ever elapses."""
    engine = start(task(cameras=CAMERAS[:3], batches=(4,), batch_delay_ns=10**12), workers=1, clock=FakeClock())
    for value, camera in enumerate(("front", "front", "left", "rear")):
        engine.offer(frame(camera, value))
    recorder.wait(lambda: len(recorder.results) == 3)
    assert [(r.frame.stamp_ns, r.timing.batch) for r in recorder.results] == [(1, 3), (2, 3), (3, 3)]  # the newest
    check_accounts(engine)


def test_stopping_does_not_wait_for_the_batch_delay(start, recorder):
    engine = start(task(cameras=CAMERAS, batches=(4,), batch_delay_ns=10**12), workers=1, clock=FakeClock())
    for camera in CAMERAS[:2]:
        engine.offer(frame(camera, 1))
    assert engine.stop(WAIT) == []
    assert [d.reason for d in recorder.drops] == [DropReason.SHUTDOWN] * 2
    check_accounts(engine)
