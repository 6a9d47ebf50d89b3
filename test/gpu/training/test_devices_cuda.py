"""`multi-dnn devices` on a GPU. CPU twin: test/profiling/test_devices.py."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from multi_dnn_ros.cli.main import main


def test_every_gpu_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "devices.json"
    assert main(["devices", "--json", str(file)]) == 0
    content = json.loads(file.read_text())
    gpus = [device for device in content["devices"] if device["id"] != "cpu"]
    assert [gpu["id"] for gpu in gpus] == [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    for gpu in gpus:
        properties = torch.cuda.get_device_properties(gpu["id"])
        assert (gpu["name"], gpu["cores_or_sms"]) == (properties.name, properties.multi_processor_count)
        assert all(not backend["problem"] for backend in gpu["backends"] if backend["name"] == "cuda_graph")
