"""Connections to a Ray cluster that does not answer."""

from __future__ import annotations

import socket

import pytest

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.fleet import ray_cluster


def test_a_port_that_never_answers_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """ray.init alone tries for more than two minutes."""
    monkeypatch.setattr(ray_cluster, "_ANSWER_S", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with (
            pytest.raises(CommandError, match=r"no Ray cluster answered within 0\.5 s"),
            ray_cluster.connected(address),
        ):
            raise AssertionError("connected")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "The actor died because of an error raised in its creation task, ray::UnitAgent.__init__() (pid=7)\n"
            "  File \"worker.py\", line 1\nModuleNotFoundError: No module named 'multi_dnn_ros'\n",
            "ModuleNotFoundError: No module named 'multi_dnn_ros'",
        ),
        (
            "The actor died unexpectedly before finishing this task.\n\tclass_name: UnitAgent\n\tactor_id: 1\n"
            "The actor's node has died.",
            "The actor's node has died.",
        ),
        ("", "RuntimeError"),
    ],
)
def test_the_reason_for_an_error_of_ray_is_its_last_line(text: str, reason: str) -> None:
    assert ray_cluster.ray_reason(RuntimeError(text)) == reason
