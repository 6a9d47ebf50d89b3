"""The node's process never imports PyTorch, which belongs to the engine's."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    ["ros.serving", "ros.inputs", "ros.overlay_publisher", "ros.outputs", "ros.diagnostics", "serving.camera_decoder"],
)
def test_no_torch(module: str) -> None:
    code = f"import sys, multi_dnn_ros.ros, multi_dnn_ros.{module}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr or "torch was imported"
