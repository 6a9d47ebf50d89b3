"""The node with its engine process on a GPU: after cleanup the GPU holds nothing of ours."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

import psutil

from multi_dnn_ros.serving.descriptions import build_pipeline

#: What the driver may keep for itself, MiB; a CUDA context alone takes several hundred.
SLACK_MIB = 32


def used_mib() -> int:
    """Memory of the GPU `cuda:0` that any process holds."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", f"--id={first}"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.split()[0])


def test_cleanup_leaves_nothing_on_the_gpu(bench: Any) -> None:
    before, children = used_mib(), set(psutil.Process().children(recursive=True))
    bench.node({"isolation": "process", "device": "cuda:0"}, build=build_pipeline)
    for _ in range(2):
        assert bench.change("configure")
        assert used_mib() > before + SLACK_MIB
        assert bench.change("cleanup")
        assert set(psutil.Process().children(recursive=True)) <= children
        deadline = time.monotonic() + 5.0
        while used_mib() > before + SLACK_MIB:
            assert time.monotonic() < deadline, f"{used_mib()} MiB in use, {before} MiB before"
            time.sleep(0.1)
