"""`multi-dnn devices` on a GPU. CPU twin: test/profiling/test_devices.py."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.profiling.copies import measure_link


def test_every_gpu_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "devices.json"
    assert main(["devices", "--json", str(file)]) == 0
    content = json.loads(file.read_text())
    gpus = [device for device in content["devices"] if device["id"] != "cpu"]
    assert [gpu["id"] for gpu in gpus] == [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    for gpu in gpus:
        properties = torch.cuda.get_device_properties(gpu["id"])
        assert (gpu["name"], gpu["sms"]) == (properties.name, properties.multi_processor_count)
        assert gpu["backends"]["cuda_graph"]["problem"] == ""
        if gpu["not_measured"]:  # another process has the memory
            continue
        rates = gpu["ops_per_s"]
        assert set(rates) == set(gpu["backends"]["cuda_graph"]["precisions"]) - {"auto"}
        assert rates["fp16"] > rates["fp32"] > 1e11
        assert gpu["bytes_per_s"] > gpu["from_host_bytes_per_s"] > 1e8
        assert gpu["to_host_bytes_per_s"] > 1e8
    assert len(content["links"]) == len(gpus) * (len(gpus) - 1)
    assert all(link["bytes_per_s"] is None or link["bytes_per_s"] > 1e8 for link in content["links"])


def test_a_copy_within_one_gpu_takes_the_same_way() -> None:
    """Where there is one GPU: the measurement itself, from it to itself."""
    link = measure_link(0, 0)
    assert (link.source, link.target) == ("cuda:0", "cuda:0")
    assert link.bytes_per_s is not None
    assert link.bytes_per_s > 1e9
