"""A GPU runs out of memory during configuration, simulated by a fake backend."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from multi_dnn_ros.backends import Stage
from multi_dnn_ros.backends.onnxruntime_backend import OnnxRuntime
from multi_dnn_ros.serving.build import build
from multi_dnn_ros.serving.choices import ConfigError
from multi_dnn_ros.settings.flat_parameters import to_config


class Full(OnnxRuntime):
    """A backend with memory for one DNN only."""

    dnns = 0

    def prepare_graph(self, *arguments: Any) -> tuple[Stage, ...]:
        Full.dnns += 1
        if Full.dnns > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a capacity of ...")
        return super().prepare_graph(*arguments)


def test_out_of_memory_names_the_dnn_and_the_request_and_fewer_dnns_can_be_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("multi_dnn_ros.serving.build.choose_backend", lambda *args, **kwargs: Full())
    flat = {"device": "cpu", "dnns": ["lane", "object"]}
    with pytest.raises(ConfigError) as raised:
        build(to_config(flat))
    message = str(raised.value)
    assert message.startswith("dnn.object: builtin:object does not fit into the memory of cpu: a request for 1.50 GiB")
    assert "parameter dnns" in message
    assert raised.value.__context__ is None  # its traceback would keep the memory allocated
    Full.dnns = 0
    assert [task.name for task in build(to_config({**flat, "dnns": ["lane"]})).tasks] == ["lane"]
