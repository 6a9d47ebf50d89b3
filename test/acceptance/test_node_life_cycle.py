"""The states of the node, in the order that ROS 2 allows and in every other one; its end."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

import psutil
from harness import Camera, Client, DnnOnCamera, Node

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


def exists(pid: int) -> bool:
    """Whether the process has not ended; one that nobody has waited for has."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def has_state(node: Node, state: str) -> Callable[[], bool]:
    """A condition: the diagnostics say so."""
    return lambda: node.status("node").values.get("state") == state


def test_every_order_of_transitions(client: Client, start_node: Callable[..., Node]) -> None:
    node = start_node({"autostart": False, "dnns": ["object"]})
    camera = Camera(client, "front/image_raw")
    state, processes = "unconfigured", set()
    for step in (*WAY, "shutdown"):
        assert node.state() == state
        for transition in TRANSITIONS:
            if transition not in ALLOWED[state]:
                assert not node.change_state(transition), f"{transition} in state {state}"
                assert node.state() == state
        assert node.change_state(step), f"{step} in state {state}"
        state = ALLOWED[state].get(step, "finalized")
        client.wait_for(has_state(node, state), f"state {state}")
        if state == "active":
            DnnOnCamera(node, camera=camera).connect()
            processes.add(node.engine_pid)
        else:
            camera.send()  # is not processed later
    assert not any(node.change_state(transition) for transition in TRANSITIONS)
    client.wait_for(lambda: not any(map(exists, processes)), "the end of the engine processes")
    assert not client.node.get_publishers_info_by_topic(node.topic("front/object/detections"))


def test_the_node_responds_while_it_is_configured(client: Client, start_node: Callable[..., Node]) -> None:
    options = {"autostart": False, "dnns": ["object"]}
    inactive = start_node(options, name="/robot/multi_dnn")
    configured = inactive.request_state("configure")
    client.wait_for(has_state(inactive, "configuring"), "configuring")
    assert inactive.state() == "configuring"
    for transition in ("configure", "cleanup"):
        assert not inactive.change_state(transition), "one transition at a time"
    assert inactive.try_to_set("dnn.object.enable", False), "parameters are fixed while they are in use"
    client.wait_for(configured.done, "the response to configure")
    assert configured.result().success
    assert inactive.change_state("cleanup")
    assert inactive.state() == "unconfigured"


def test_a_signal_ends_the_active_node_with_its_counts(client: Client, start_node: Callable[..., Node]) -> None:
    node = start_node({"dnns": ["object"]}, name="/signalled/multi_dnn")
    dnn = DnnOnCamera(node).connect()
    client.wait_for(lambda: node.engine_pid, "an engine process")
    assert node.end(signal.SIGTERM) == 0
    published, offered = map(int, re.findall(r"object on front: (\d+) of (\d+) frames published", node.log)[-1])
    assert published <= offered
    client.wait_for(lambda: len(dnn.results.messages) == published, "every published result")
    assert "Traceback" not in node.log
    assert "unconfigured" not in node.log.split("received SIGTERM")[1]
    assert not exists(node.engine_pid)

    # A node's name and its publishers leave the graph one after the other.
    def remaining() -> bool:
        nodes = [namespace for _, namespace in client.node.get_node_names_and_namespaces()]
        return "/signalled" in nodes or bool(client.node.get_publishers_info_by_topic(dnn.results.topic))

    client.wait_for(lambda: not remaining(), "the node and its publishers to leave the graph")
    dnn.camera.send()
    client.spin(0.5)
    assert len(dnn.results.messages) == published


def test_the_engine_process_ends_with_a_killed_node(client: Client, start_node: Callable[..., Node]) -> None:
    killed = start_node({"dnns": ["object"]}, name="/killed")
    client.wait_for(lambda: killed.engine_pid, "the engine process")
    killed.end(signal.SIGKILL)
    client.wait_for(lambda: not exists(killed.engine_pid), "the end of the killed node's engine process")
