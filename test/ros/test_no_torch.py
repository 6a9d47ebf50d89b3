"""The node's process never imports PyTorch."""

from __future__ import annotations

import subprocess
import sys

MODULES = (
    "ros",
    "ros.served_dnns",
    "ros.camera_input",
    "ros.overlay_publisher",
    "ros.result_publishers",
    "ros.diagnostics",
    "serving.camera_decoder",
)
PROGRAM = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(f"multi_dnn_ros.{name}")
    if "torch" in sys.modules:
        sys.exit(f"torch was imported by {name}")
"""


def test_no_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *MODULES], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
