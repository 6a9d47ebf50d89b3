"""The runs on black images during configuring: their size, and what they time."""

from __future__ import annotations

import torch

from multi_dnn_ros.pipeline.build import build
from multi_dnn_ros.planning.frame_times import time_on_black_ms
from multi_dnn_ros.serving.configure import warm_up
from multi_dnn_ros.settings.flat_parameters import to_config

CPU = torch.device("cpu")


def test_a_crop_that_ends_beyond_the_usual_black_image_is_run_and_timed() -> None:
    parameters = {"model": "builtin:object_small", "crop": [480, 200, 320, 192], "backend": "eager", "jobs": 1}
    config = to_config({"device": "cpu", "dnns": ["far"], "dnn.far.role": "object"} | {
        f"dnn.far.{name}": value for name, value in parameters.items()
    })  # fmt: skip
    tasks = build(config).tasks
    warm_up(tasks, CPU, lambda text: None)
    assert time_on_black_ms(tasks[0], CPU) > 0.0
