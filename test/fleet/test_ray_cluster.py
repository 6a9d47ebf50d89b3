"""Errors of Ray."""

from __future__ import annotations

import pytest

from multi_dnn_ros.fleet import ray_cluster


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
