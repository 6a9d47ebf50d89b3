"""nvidia-smi's identifiers of PyTorch's GPUs, which CUDA numbers by speed unless the environment says otherwise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from multi_dnn_ros.common.reporting import nvidia_smi_id

UUIDS = ("8d1b1b1c-0000-4a4a-9c9c-000000000001", "8d1b1b1c-0000-4a4a-9c9c-000000000002")


def gpus(monkeypatch: pytest.MonkeyPatch, *properties: Any) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties[index])


@pytest.mark.parametrize("visible", [None, "1,0", "GPU-8d1b,GPU-9e2c"])
def test_gpus_are_identified_by_their_uuids(visible: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpus(monkeypatch, *(SimpleNamespace(uuid=uuid) for uuid in UUIDS))
    assert [nvidia_smi_id(index) for index in (0, 1)] == [f"GPU-{uuid}" for uuid in UUIDS]


@pytest.mark.parametrize(("visible", "expected"), [("", ["0", "1"]), ("3, 2", ["3", "2"]), ("5", ["5", "1"])])
def test_without_uuids_they_are_identified_by_their_indices(
    visible: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpus(monkeypatch, SimpleNamespace(), SimpleNamespace(uuid=""))
    assert [nvidia_smi_id(index) for index in (0, 1)] == expected


@pytest.mark.parametrize("error", [AssertionError("Torch not compiled with CUDA enabled"), RuntimeError("no driver")])
def test_without_cuda_they_are_identified_by_their_indices(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(index: int) -> Any:
        raise error

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", fail)
    assert nvidia_smi_id(1) == "1"


def test_a_part_of_a_gpu_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-77")
    gpus(monkeypatch, SimpleNamespace(uuid=UUIDS[0]))
    assert nvidia_smi_id() == "MIG-77"
