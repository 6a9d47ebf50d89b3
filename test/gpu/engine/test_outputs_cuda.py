"""Several results and crops on a GPU: as on a CPU, with decoding divided between device and host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from two_heads import LABELS, exported, picture

from multi_dnn_ros.serving.build import build
from multi_dnn_ros.settings.flat_parameters import to_config

OUTPUTS = {
    "outputs": ["cars", "people", "free", "ground"],
    "output.cars.decoder": "yolo", "output.cars.raw_outputs": ["0"], "output.cars.keep": ["car"],
    "output.people.decoder": "yolo", "output.people.raw_outputs": ["0"], "output.people.keep": ["person"],
    "output.free.decoder": "drivable", "output.free.raw_outputs": ["1"],
    "output.ground.decoder": "segmentation", "output.ground.raw_outputs": ["1"],
    "output.ground.labels": ["wall", "road"],
}  # fmt: skip


@pytest.mark.parametrize("more", [{}, {"crop": [16, 32, 64, 48]}])
@pytest.mark.parametrize("backend", ["eager", "cuda_graph"])
def test_results_of_a_gpu_are_those_of_a_cpu(tmp_path: Any, backend: str, more: dict[str, Any]) -> None:
    file = exported(tmp_path)
    image = picture([(1, 1), (4, 2)], [(6, 3)], slice(3, 6))
    if more:  # it is the crop of a larger image
        image = np.pad(image, ((32, 20), (16, 40), (0, 0)))
    results = {}
    for device, used in (("cpu", "eager"), ("cuda", backend)):
        own = {"model": str(file), "role": "road", "labels": LABELS, "resize": "stretch", "backend": used, "jobs": 1,
               **OUTPUTS, **more}  # fmt: skip
        config = to_config({"device": device, "dnns": ["road"], **{f"dnn.road.{k}": v for k, v in own.items()}})
        (task,) = build(config).tasks
        with torch.inference_mode():
            outputs = task.outputs(task.preprocess(torch.from_numpy(image).to(device)))
            results[device] = task.decode(outputs, image.shape[:2]).by_output
    for name in ("cars", "people"):
        assert len(results["cpu"][name])
        np.testing.assert_allclose(results["cuda"][name].boxes, results["cpu"][name].boxes, atol=0.05)
    for name in ("free", "ground"):
        same = results["cuda"][name].pixels == results["cpu"][name].pixels
        assert same.mean() > 0.99
