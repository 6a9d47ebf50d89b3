"""The standalone runtime sends and receives on this machine only, unless configured otherwise."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys

import pytest
import rclpy

if rclpy.__spec__.origin != "multi_dnn_ros.standalone":
    pytest.skip("a real ROS 2 is in use", allow_module_level=True)

#: Prints the device that each receiving socket of the domain is bound to, as seen from a node that is up.
_NODE = """
import os, socket
import multi_dnn_ros.ros, rclpy
from multi_dnn_ros.standalone.loopback import domain_sockets
from std_msgs.msg import String
rclpy.init(args=[])
node = rclpy.create_node("talker")
node.create_publisher(String, "t", 1)
node.create_subscription(String, "t", print, 1)
sockets = domain_sockets(int(os.environ["ROS_DOMAIN_ID"]))
print([s.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\\0") for s in sockets])
node.destroy_node()
rclpy.shutdown()
"""


def node(domain: int, **environment: str) -> subprocess.CompletedProcess[str]:
    unset = ("ROS_AUTOMATIC_DISCOVERY_RANGE", "CYCLONEDDS_URI", "ROS_LOCALHOST_ONLY")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.run(
        [sys.executable, "-c", _NODE],
        env={**kept, "ROS_DOMAIN_ID": str(domain), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


@pytest.mark.skipif(not hasattr(socket, "SO_BINDTODEVICE"), reason="Linux only")
def test_by_default_nothing_is_received_from_another_machine(domain: int) -> None:
    done = node(domain)
    assert done.stdout.strip() == "[b'lo', b'lo']"
    opened_by = "set ROS_AUTOMATIC_DISCOVERY_RANGE=SUBNET to use the local network"
    assert f"ROS domain {domain}, network: loopback only (lo); {opened_by}" in done.stderr
    assert "firewall" not in done.stderr


def test_the_local_network_is_used_on_request_and_logged(domain: int) -> None:
    done = node(domain, ROS_AUTOMATIC_DISCOVERY_RANGE="SUBNET")
    assert "b'lo'" not in done.stdout
    assert f"ROS domain {domain}, network: loopback (lo) and the local network's interface" in done.stderr


def test_a_range_that_is_set_is_not_questioned(domain: int) -> None:
    assert f"ROS domain {domain}, network: loopback only (lo)\n" in (
        node(domain, ROS_AUTOMATIC_DISCOVERY_RANGE="LOCALHOST").stderr
    )


def test_sockets_that_cannot_be_bound_to_loopback_are_reported(
    domain: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CYCLONEDDS_URI", raising=False)
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    monkeypatch.setattr("multi_dnn_ros.standalone.loopback._DEVICE", b"no-such-device\0")
    context = rclpy.context.Context()
    rclpy.init(args=[], context=context, domain_id=domain)
    rclpy.shutdown(context=context)
    port = rf"{(7400 + 250 * domain) // 100}\d\d"
    assert re.search(rf"UDP ports {port}, {port} receive from other machines too", capfd.readouterr().err)
