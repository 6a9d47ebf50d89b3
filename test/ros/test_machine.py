"""Memory of the node in log lines."""

from __future__ import annotations

from multi_dnn_ros.ros.machine import memory_text


def test_memory_is_listed_by_kind_and_owner() -> None:
    mib = 1 << 20
    memory = {"resident memory (bytes)": 110 * mib, "engine processes resident memory (bytes)": 2895 * mib}
    assert memory_text(memory) == "resident memory: node 110 MiB, engine processes 2,895 MiB"
    memory["engine processes GPU reserved (bytes)"] = 3 * mib
    assert memory_text(memory).endswith("; GPU reserved: engine processes 3 MiB")
