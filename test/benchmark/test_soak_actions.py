"""The outcomes of a soak's actions."""

from __future__ import annotations

from typing import Any

import pytest
from rcl_interfaces.msg import SetParametersResult
from rcl_interfaces.srv import SetParameters

from multi_dnn_ros.benchmark.soak import plan as planned
from multi_dnn_ros.benchmark.soak.actions import Actions
from multi_dnn_ros.benchmark.soak.plan import Event
from multi_dnn_ros.common.resources import config_file
from multi_dnn_ros.settings.params_file import read_params_file
from multi_dnn_ros.settings.schema import NodeConfig


@pytest.fixture(scope="module")
def config() -> NodeConfig:
    return read_params_file(config_file("multi_dnn.yaml"))


class _FakeRig:
    """A node that answers each request at once, and whose diagnostics say what a test sets."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.observer = self
        self.statuses: dict[str, dict[str, str]] = {}
        self.answer = SetParametersResult(successful=True)
        self.models: list[str] = []

    def create_client(self, kind: type, name: str) -> _FakeRig:
        return self

    def call_async(self, request: SetParameters.Request) -> _FakeRig:
        self.models += [parameter.value.string_value for parameter in request.parameters]
        return self

    def add_done_callback(self, answered: Any) -> None:
        answered(self)

    def result(self) -> SetParameters.Response:
        return SetParameters.Response(results=[self.answer])

    def now(self) -> float:
        return 0.0

    def until(self, condition: Any, limit_s: float) -> bool:
        return bool(condition())

    def value(self, status: str, key: str) -> str | None:
        return self.statuses.get(status, {}).get(key)

    def report(self, model: str, message: str) -> None:
        self.statuses["model swap"] = {"settings": f"dnn.object.model = 'builtin:{model}'", "message": message}


def _swapping(config: NodeConfig) -> tuple[Any, Actions]:
    rig: Any = _FakeRig(config)
    return rig, Actions(rig, 0)


def _swap(actions: Actions, model: str) -> None:
    actions.perform(Event(0.0, planned.SWAP, "object", f"builtin:{model}"))


def test_a_swap_is_done_when_the_diagnostics_say_that_it_took_over(config: NodeConfig) -> None:
    rig, actions = _swapping(config)
    _swap(actions, "object_small")
    actions.finish()
    assert actions.counts()[planned.SWAP] == {"under way": 1}
    assert actions.failures() == ["swap object builtin:object_small: under way"]
    rig.report("object_small", "preparing object: 40 %")
    actions.observe()
    assert actions.counts()[planned.SWAP] == {"under way": 1}
    rig.report("object_small", "object took over after 6.7 s")
    actions.observe()
    assert actions.counts()[planned.SWAP] == {"done": 1}
    assert actions.outcomes[0].reason == "object took over after 6.7 s"
    _swap(actions, "object")
    actions.observe()  # the diagnostics still have the status of the first swap
    assert actions.counts()[planned.SWAP] == {"done": 1, "under way": 1}
    rig.report("object", "object took over after 6.7 s")
    actions.observe()
    assert actions.counts()[planned.SWAP] == {"done": 2}
    assert actions.failures() == []
    assert rig.models == ["builtin:object_small", "builtin:object"]


def test_a_swap_that_does_not_take_over_has_failed(config: NodeConfig) -> None:
    rig, actions = _swapping(config)
    failed = "failed, the previous settings stay in use: no memory"
    for number in (1, 2):
        _swap(actions, "object_small")
        actions.observe()  # in the second turn the diagnostics still have the status of the first one
        assert actions.counts()[planned.SWAP].get("under way") == 1
        rig.report("object_small", "preparing object")
        actions.observe()
        rig.report("object_small", failed)
        actions.observe()
        _swap(actions, "object")
        assert actions.counts()[planned.SWAP] == {"failed": number, "skipped": number}
    assert actions.failures()[:2] == [
        f"swap object builtin:object_small: failed {failed}",
        "swap object builtin:object: skipped the model was not swapped",
    ]


def test_a_swap_that_is_too_slow_or_refused_has_failed(config: NodeConfig) -> None:
    rig, actions = _swapping(config)
    _swap(actions, "object_small")
    _swap(actions, "object")
    assert [outcome.result for outcome in actions.outcomes] == ["failed", "skipped"]
    assert "had not taken over" in actions.outcomes[0].reason
    rig.answer = SetParametersResult(successful=False, reason="read-only while the node is configured")
    _swap(actions, "object_small")
    assert actions.outcomes[-1].result == "refused"
    assert actions.failures()[-1].endswith("refused read-only while the node is configured")
