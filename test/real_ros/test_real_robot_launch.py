"""robot.launch.py with the real node: namespaced, remapped, active, ended by Ctrl-C. test/launch has its arguments."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ros_system import RosSystem

LAUNCH = Path(__file__).resolve().parents[2] / "launch" / "robot.launch.py"
PARAMETERS = """\
/**:
  ros__parameters:
    dnns: [lane]
    dnn: {lane: {backend: eager, jobs: 1}}  # ready soonest
    cpu_threads: 1
"""


def test_the_node_is_active_in_its_namespace_and_ctrl_c_ends_it(ros: RosSystem, tmp_path: Path) -> None:
    parameters = tmp_path / "parameters.yaml"
    parameters.write_text(PARAMETERS)
    launched = ros.start("ros2", "launch", str(LAUNCH), f"params_file:={parameters}", "namespace:=robot")
    ros.until(lambda: "]: active" in launched.text(), "the node to be active")
    topics = dict(ros.node.get_topic_names_and_types())
    assert topics["/robot/lane_points"] == ["sensor_msgs/msg/PointCloud2"], topics
    assert "/robot/multi_dnn/front/lane/ground_points" not in topics
    assert "/robot/front/image_raw" in topics
    code, text = ros.ros2("lifecycle", "get", "/robot/multi_dnn")
    assert code == 0, text
    assert text.startswith("active"), text
    node = launched.child("multi_dnn_node")
    os.killpg(launched.process.pid, signal.SIGINT)  # as a terminal does: to launch and to the node
    assert launched.process.wait(30.0) == 0, launched.text()
    assert not node.is_running()
    assert "Traceback" not in launched.text()
