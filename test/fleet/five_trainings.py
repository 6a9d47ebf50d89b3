"""Step times of five trainings that were measured on an H100 (2026-11-27), and the jobs that were run with them."""

from __future__ import annotations

from multi_dnn_ros.fleet.contention import JobLoad
from multi_dnn_ros.fleet.simulator import SimulatedJob
from multi_dnn_ros.fleet.step_times import Interconnect, NetworkTimes, StepTime

LINK = Interconnect(latency_us=72.6, bandwidth_gb_s=292)
TIME_SLICE_S, CHANGE_S, PERIOD_S = 1.75e-3, 4.0, 12.0
#: By job: steps, bytes of the gradients, seconds until the first step, and for each batch (images, step ms, busy ms).
_MEASURED = {
    "densenet121": (
        452,
        27856424,
        6.5,
        ((12, 69.21, 13.34), (25, 80.99, 21.74), (64, 76.98, 44.59), (128, 103.86, 83.27)),
    ),
    "resnet50": (801, 94114088, 5.0, ((12, 33.85, 7.65), (25, 40.20, 13.17), (64, 34.41, 30.22), (128, 60.86, 59.05))),
    "alexnet": (1515, 228179240, 5.0, ((25, 8.90, 2.83), (51, 6.54, 3.55), (128, 8.35, 6.13), (256, 10.67, 10.47))),
    "resnext50": (806, 92001576, 5.2, ((12, 42.61, 8.69), (25, 41.32, 16.27), (64, 42.88, 36.57), (128, 71.80, 69.78))),
    "shufflenet": (
        507,
        5055416,
        4.6,
        ((25, 30.54, 6.09), (51, 39.33, 10.36), (128, 41.13, 22.48), (256, 56.68, 46.60)),
    ),
}


def five_jobs() -> list[SimulatedJob]:
    """All start at once; their batches are the largest that were measured."""
    jobs = []
    for name, (steps, gradient_bytes, start_s, rows) in _MEASURED.items():
        times = NetworkTimes(
            model=name, gradient_bytes=gradient_bytes,
            steps=tuple(StepTime(batch=batch, step_ms=step, busy_ms=busy, samples=5) for batch, step, busy in rows),
        )  # fmt: skip
        jobs.append(SimulatedJob(name, JobLoad(times, rows[-1][0]), steps, start_s=start_s))
    return jobs
