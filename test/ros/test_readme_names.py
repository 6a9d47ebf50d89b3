"""README.md names every topic and service of a running node, so that a new one is not forgotten there."""

from __future__ import annotations

import re
from pathlib import Path

from node_bench import Bench

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("\n## Topics\n")[2].partition("\n## ")[0]
#: Topics and services that every node with parameters and a life cycle has.
OF_ROS = re.compile(
    r"/parameter_events|/rosout|.*/(change_state|get_state|transition_event|(get_)?available_(states|transitions)|"
    r"get_transition_graph|(describe|get|list|set)_parameter(s|_types)|set_parameters_atomically|"
    r"get_type_description)"
)


#: What stands for any DNN in the names of the section.
DNN = re.compile("<dnn>|object|pedestrian")


def documented() -> list[re.Pattern[str]]:
    """The names in the section, absolute."""
    names = re.findall(r"`(~?/?[\w/<>]+/[\w/]+|/diagnostics)`", SECTION)
    return [re.compile(DNN.sub(r"\\w+", "/" + name.replace("~", "multi_dnn").lstrip("/"))) for name in names]


def test_topics_and_services_are_in_the_readme(bench: Bench) -> None:
    node = bench.node({"dnns": ["object", "lane"]})
    assert bench.change("configure")
    assert bench.change("activate")
    bench.camera()
    names = {name for name, _ in (*node.get_topic_names_and_types(), *node.get_service_names_and_types())}
    own = sorted(name for name in names if not OF_ROS.fullmatch(name))
    assert {"/multi_dnn/object/enable", "/multi_dnn/front/object/detections"} <= set(own)
    missing = [name for name in own if not any(each.fullmatch(name) for each in documented())]
    assert not missing, f"README.md, section Topics: add {', '.join(missing)}"
