"""On a CPU a frame runs in one call if no other DNN has to wait for it, otherwise job by job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from engine_fakes import WAIT, Gate, WatchedPolicy, frame, task

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.backends.onnxruntime_sessions import SessionStage
from multi_dnn_ros.engine import DnnTask, Engine
from multi_dnn_ros.engine.policies import make_policy
from multi_dnn_ros.serving.build import build
from multi_dnn_ros.settings.flat_parameters import to_config

MS = 1_000_000


def with_whole(
    name: str, ran: list[str], hold: Callable[[], None] = lambda: None, jobs: int = 2, **kwargs: object
) -> DnnTask:
    """A DNN with single_launch; records which of its jobs run."""

    def whole(carried: Tensors) -> Tensors:
        ran.append(f"{name} whole")
        hold()
        return (carried[0] + jobs,)

    def job(index: int) -> None:
        ran.append(f"{name} {index}")
        hold()

    made = task(name, jobs, cameras=(name,), on_job=job, **kwargs)
    return replace(made, single_launch={1: whole})


def offer(engine: Engine, *cameras: str) -> None:
    for camera in cameras:
        engine.offer(frame(camera, 1))


def test_a_single_dnn_runs_in_one_call(start, recorder) -> None:
    ran: list[str] = []
    engine = start(with_whole("a", ran), workers=1, policy="edf")
    offer(engine, "a")
    assert engine.wait_idle(WAIT)
    assert ran == ["a whole"]
    assert recorder.results[0].output[0] == 3.0


def test_a_queued_job_prevents_running_in_one_call(start, recorder) -> None:
    """Three DNNs, one worker: while the first runs, two wait; the next one sees the other waiting."""
    gate, ran = Gate(), []
    policy = WatchedPolicy(make_policy("fifo"))
    engine = start(*(with_whole(name, ran, gate) for name in "abc"), workers=1, policy=policy)
    offer(engine, "a")
    policy.wait_for_jobs()
    gate.wait_for_job()
    offer(engine, "b", "c")
    policy.wait_for_jobs(2)
    gate.open()
    assert engine.wait_idle(WAIT)
    first, second = (name[0] for name in ran[1:3])
    assert {first, second} == {"b", "c"}
    assert ran[:2] == ["a whole", f"{first} 0"]
    # After its first job, it leaves the slot to the other one, which waits for it.
    assert ran.index(f"{second} 0") < ran.index(f"{first} 1")


@pytest.mark.parametrize(("workers", "expected"), [(1, ["low 0", "low 1"]), (2, ["low whole"])])
def test_a_less_important_dnn_runs_job_by_job_if_workers_are_short(start, recorder, workers, expected) -> None:
    ran: list[str] = []
    engine = start(with_whole("low", ran), with_whole("high", ran, priority=1), workers=workers, policy="priority")
    offer(engine, "low")
    assert engine.wait_idle(WAIT)
    assert ran == expected
    ran.clear()
    offer(engine, "high")
    assert engine.wait_idle(WAIT)
    assert ran == ["high whole"]


@pytest.mark.parametrize(
    ("current", "other", "overtakes"),
    [
        ((20, None), (30, None), False),
        ((20, None), (20, None), False),
        ((30, None), (20, None), True),
        ((None, None), (999, None), True),
        ((None, None), (None, None), False),
        ((20, None), (30, 15), True),  # it has 15 ms of slack when it comes
    ],
)
def test_under_edf_less_slack_may_overtake(current, other, overtakes) -> None:
    def dnn(deadline_ms: int | None, remaining_ms: int | None) -> DnnTask:
        remaining = None if remaining_ms is None else (remaining_ms * MS, 1)
        return task(deadline_ns=deadline_ms and deadline_ms * MS, remaining_ns=remaining)

    assert make_policy("edf").may_overtake(dnn(*other), dnn(*current)) is overtakes


@pytest.mark.parametrize(("blocking_ms", "workers", "whole"), [(0.0, 1, True), (1e-3, 1, False), (1e-3, 2, True)])
def test_built_dnns_have_single_launch_unless_jobs_are_bounded(blocking_ms, workers, whole, exported) -> None:
    """Every layer takes longer than the bound, so each is a job of its own."""
    flat = {"device": "cpu", "dnns": ["a", "b"], "workers": workers, "blocking_ms": blocking_ms}
    for name in flat["dnns"]:
        parameters = {"role": "object", "model": exported, "decoder": "yolo", "labels": ["car", "truck"], "jobs": 2}
        flat |= {f"dnn.{name}.{key}": value for key, value in parameters.items()}
    pipeline = build(to_config(flat))
    for each in pipeline.tasks:
        assert len(each.stages) > 1
        assert list(each.single_launch) == ([1] if whole else [])
        image = each.preprocess(torch.zeros(48, 64, 3, dtype=torch.uint8))
        if each.single_launch:
            assert isinstance(each.stages[0], SessionStage)
            carried = image
            with torch.inference_mode():
                for stage in each.stages:
                    carried = stage(carried)
                torch.testing.assert_close(each.single_launch[1](image), carried, rtol=1e-4, atol=1e-4)
