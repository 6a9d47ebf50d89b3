"""The node as a process with other packages on its path, and the means to exchange messages with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from builtin_interfaces.msg import Time
from fork_server import ForkServer
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from std_msgs.msg import Header

from multi_dnn_ros.common.processes import loopback_environment

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 120.0


def environment(*folders: Path) -> dict[str, str]:
    """The environment of a process that finds the packages in `folders`."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*folders, ROOT)))}


def run_forked(server: ForkServer, code: str, *folders: Path) -> str:
    """The output of a process that finds the packages in `folders` and has already imported PyTorch."""
    begin = f"""
import sys
sys.path[:0] = {list(map(str, folders))}
from multi_dnn_ros.backends import fused_convolution
for name in [name for name in sys.modules if name.partition(".")[0] == "multi_dnn_ros"]:
    del sys.modules[name]  # its parameters list the extensions that were installed when it was imported
sys.modules[fused_convolution.__name__] = fused_convolution  # PyTorch accepts no second definition of its operation
"""
    done = server.run([sys.executable, "-c", begin + code], timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


class ToyNode:
    """A running node. parameters: its parameters by name. folders: where other packages are installed."""

    def __init__(self, domain: int, log: Path, parameters: dict[str, Any], *folders: Path) -> None:
        self.log = log
        words = [word for name, value in parameters.items() for word in ("-p", f"{name}:={value}")]
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "multi_dnn_ros.cli.main", "run", "--ros-args", *words],
                stdout=file, stderr=subprocess.STDOUT, env={**environment(*folders), **loopback_environment(domain)},
            )  # fmt: skip
        self.context = Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.peer = rclpy.create_node("peer", context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.peer)
        self._camera = self.peer.create_publisher(Image, "/front/image_raw", QoSProfile(depth=10))

    def listen(self, topic: str, kind: type) -> list[Any]:
        messages: list[Any] = []
        self.peer.create_subscription(kind, topic, messages.append, QoSProfile(depth=10))
        return messages

    def until(self, condition: Callable[[], object], what: str, act: Callable[[], object] = lambda: None) -> None:
        """Spin until the condition holds; `act` is called about ten times per second."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert self.process.poll() is None, f"the node ended: {self.text()}"
            assert time.monotonic() < deadline, f"waited {WAIT_S:g} s for {what}: {self.text()}"
            act()
            self.executor.spin_once(timeout_sec=0.1)

    def send(self, pixels: np.ndarray, stamp: int = 1) -> None:
        """pixels: (H, W, 3) uint8 RGB."""
        height, width = pixels.shape[:2]
        header = Header(stamp=Time(sec=stamp), frame_id="camera")
        message = Image(header=header, height=height, width=width, encoding="rgb8", step=3 * width)
        message.data = pixels.tobytes()
        self._camera.publish(message)

    def text(self) -> str:
        return self.log.read_text()

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30.0)
        finally:
            self.process.kill()
            self.process.wait()
            self.executor.shutdown()
            self.peer.destroy_node()
            rclpy.shutdown(context=self.context)
