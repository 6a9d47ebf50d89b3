"""The states of the node, in the order that ROS 2 allows and in every other one; its end."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

import numpy as np
import pytest
from harness import Client, NodeProcess
from vision_msgs.msg import Detection2DArray

IMAGE = np.zeros((60, 80, 3), np.uint8)
TRANSITIONS = ("configure", "activate", "deactivate", "cleanup")
#: State: the transitions that it allows, each with the next state.
ALLOWED = {
    "unconfigured": {"configure": "inactive"},
    "inactive": {"activate": "active", "cleanup": "unconfigured"},
    "active": {"deactivate": "inactive"},
    "finalized": {},
}
#: One way over each transition.
WAY = ("configure", "cleanup", "configure", "activate", "deactivate", "activate", "deactivate", "cleanup")


def engine_pids(client: Client, node: str) -> set[int]:
    """Processes that run the DNNs."""
    return {
        int(status.values["pid"])
        for name, status in client.statuses.items()
        if name.startswith(f"{node[1:]}: engine") and status.values.get("pid", "").isdecimal()
    }


def exists(pid: int) -> bool:
    """Whether the process has not ended; one that nobody has waited for has."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_every_order_of_transitions(client: Client, start_node: Callable[..., NodeProcess]) -> None:
    node = start_node({"autostart": False, "dnns": ["object"]}).name
    camera = client.camera("front/image_raw")
    state, processes = "unconfigured", set()
    for step in (*WAY, "shutdown"):
        assert client.state(node) == state
        for transition in TRANSITIONS:
            if transition not in ALLOWED[state]:
                assert not client.change_state(transition, node), f"{transition} in state {state}"
                assert client.state(node) == state
        assert client.change_state(step, node), f"{step} in state {state}"
        state = "finalized" if step == "shutdown" else ALLOWED[state][step]
        client.wait_for(
            lambda state=state: client.status("node", node).values.get("state") == state,
            f"state {state} in diagnostics",
        )
        if state == "active":  # it processes images, and did not keep those sent while it was inactive
            results = client.record(f"{node}/front/object/detections", Detection2DArray)
            client.connect(camera, IMAGE, results)
            processes |= engine_pids(client, node)
        else:
            camera.send(IMAGE)
    assert all(not client.change_state(transition, node) for transition in TRANSITIONS)
    client.wait_for(lambda: not any(map(exists, processes)), "the end of the engine processes")
    assert processes
    assert not client.node.get_publishers_info_by_topic(f"{node}/front/object/detections")


@pytest.fixture(scope="module")
def inactive(start_node: Callable[..., NodeProcess]) -> NodeProcess:
    """A node in a namespace, started by the other program."""
    return start_node({"autostart": False, "dnns": ["object"]}, name="/robot/multi_dnn", program="multi_dnn_node")


def test_cleanup_cancels_configuring(client: Client, inactive: NodeProcess) -> None:
    node = inactive.name
    configured = client.request_state("configure", node)
    client.wait_for(lambda: client.status("node", node).values.get("state") == "configuring", "configuring")
    assert not client.change_state("configure", node), "one transition at a time"
    assert client.change_state("cleanup", node)
    client.wait_for(configured.done, "the response to configure")
    assert not configured.result().success
    assert client.state(node) == "unconfigured"


def test_a_signal_ends_the_active_node_with_its_counts(client: Client, inactive: NodeProcess) -> None:
    node = inactive
    assert client.change_state("configure", node.name)
    assert client.change_state("activate", node.name)
    camera = client.camera("/robot/front/image_raw")
    results = client.record(node.topic("front/object/detections"), Detection2DArray)
    client.connect(camera, IMAGE, results)
    client.settled("object", node=node.name)
    processes = engine_pids(client, node.name)
    assert node.end(signal.SIGTERM) == 0
    published, offered = map(int, re.findall(r"object on front: (\d+) of (\d+) frames published", node.log)[-1])
    assert published == offered == len(results.messages)
    assert "Traceback" not in node.log
    assert processes
    assert not any(map(exists, processes))
    # Nothing of it is left on the graph, and nothing is published any more.
    nodes = client.node.get_node_names_and_namespaces
    client.wait_for(lambda: "/robot" not in dict(nodes()).values(), "the node to leave the graph")
    camera.send(IMAGE)
    client.spin(0.5)
    assert len(results.messages) == published
    for topic, _ in client.node.get_topic_names_and_types():
        publishers = client.node.get_publishers_info_by_topic(topic)
        assert "/robot" not in [publisher.node_namespace for publisher in publishers], topic


def test_a_signal_while_configuring_and_a_killed_node(client: Client, start_node: Callable[..., NodeProcess]) -> None:
    interrupted = start_node({"dnns": ["lane", "object"]}, name="/interrupted")
    killed = start_node({"dnns": ["object"]}, name="/killed")
    client.wait_for(lambda: client.status("node", "/interrupted").values.get("state") == "configuring", "configuring")
    client.wait_for(lambda: engine_pids(client, "/killed"), "the engine process")
    assert interrupted.end() == 0
    assert "Traceback" not in interrupted.log
    processes = engine_pids(client, "/killed")
    killed.kill()
    client.wait_for(lambda: not any(map(exists, processes)), "the end of the killed node's engine process")
