"""Whether the DNNs fit the device at the rates of the cameras, in the log and in the diagnostics."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from node_bench import Bench, build

from multi_dnn_ros.serving.tasks import Pipeline
from multi_dnn_ros.settings.schema import NodeConfig

OK, WARN = 0, 1


def slow(config: NodeConfig, progress: Callable[[str], None]) -> Pipeline:
    """Each DNN needs at least 20 ms per frame."""

    def wait(carried: tuple) -> tuple:
        time.sleep(0.02)
        return carried

    pipeline = build(config, progress)
    tasks = tuple(replace(task, stages=(*task.stages, wait)) for task in pipeline.tasks)
    return replace(pipeline, tasks=tasks)


def test_rates_that_do_not_fit_are_a_warning_with_advice(bench: Bench) -> None:
    bench.node({"dnns": ["object", "lane"], "camera.front.rate_hz": 200.0}, build=slow)
    assert bench.change("configure")  # it is a warning: the node serves what it can
    bench.until(lambda: bench.status("capacity").level == WARN, "the verdict")
    status = bench.status("capacity")
    assert "does not fit: 2 DNNs need" in status.message
    assert "instead of 200" in status.by_key["advice 1"]
    assert 1.0 < float(status.by_key["object at most (Hz)"]) < 50.0
    assert bench.change("cleanup")
    reports = len(bench.reports)
    bench.until(lambda: len(bench.reports) > reports + 2, "reports of the unconfigured node")
    assert not any(status.name.endswith(": capacity") for status in bench.reports[-1].status)
    assert bench.set("camera.front.rate_hz", 0.5) == (True, "")
    assert bench.change("configure")
    bench.until(lambda: bench.status("capacity").level == OK, "the verdict of the next configuration")
    assert bench.status("capacity").message.startswith("fits: 2 DNNs need ")


def test_a_failed_capacity_check_does_not_prevent_serving(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise ValueError("sofa")

    monkeypatch.setattr("multi_dnn_ros.serving.configure.measure_fit", fails)
    bench.node({"camera.front.rate_hz": 10.0})
    assert bench.change("configure")
    assert bench.change("activate")
    assert bench.status("capacity").level == -1
