"""A GPU whose memory does not suffice while configuring; the device's part is played by a fake backend."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from multi_dnn_ros import pipeline
from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.choices import ConfigError
from multi_dnn_ros.flat_parameters import to_config
from multi_dnn_ros.pipeline import build


class Full(Eager):
    """Has room for one DNN."""

    dnns = 0

    def prepare(self, stages: Sequence[torch.nn.Module], inputs: Tensors, device: torch.device) -> tuple[Stage, ...]:
        Full.dnns += 1
        if Full.dnns > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a capacity of ...")
        return super().prepare(stages, inputs, device)


def test_the_error_names_the_dnn_and_what_was_wanted_and_fewer_dnns_still_configure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline, "choose_backend", lambda *args, **kwargs: Full())
    flat = {"device": "cpu", "dnns": ["lane", "object"]}
    with pytest.raises(ConfigError) as raised:
        build(to_config(flat))
    message = str(raised.value)
    assert message.startswith("dnn.object: builtin:object does not fit into the memory of cpu: a request for 1.50 GiB")
    assert "parameter dnns" in message
    assert raised.value.__context__ is None  # whose frames would keep the memory
    Full.dnns = 0
    assert [task.name for task in build(to_config({**flat, "dnns": ["lane"]})).tasks] == ["lane"]


def test_a_rebuilt_dnn_has_weights_of_its_own_and_keeps_its_settings() -> None:
    (task,) = build(to_config({"device": "cpu", "dnns": ["lane"], "dnn.lane.backend": "eager"})).tasks
    held: list[str] = []

    class Alone:
        def __enter__(self) -> None:
            held.append("begin")

        def __exit__(self, *error: object) -> None:
            held.append("end")

    assert task.rebuild is not None
    fresh = task.rebuild(Alone())
    assert held == ["begin", "end"]
    assert (fresh.name, fresh.cameras, fresh.decode) == (task.name, task.cameras, task.decode)
    image = torch.randint(0, 256, (48, 64, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    outputs = []
    with torch.inference_mode():
        for each in (task, fresh):
            carried = each.preprocess(image)
            for stage in each.stages:
                carried = stage(carried)
            outputs.append(carried)
    torch.testing.assert_close(outputs[0], outputs[1])
    pointers = [{p.data_ptr() for stage in each.stages for p in stage.parameters()} for each in (task, fresh)]
    assert pointers[0]
    assert not pointers[0] & pointers[1]
