"""Flat parameters, parameter files, and the documents generated from the schema; without ROS."""

from __future__ import annotations

import logging
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from multi_dnn_ros.settings.flat_parameters import to_config
from multi_dnn_ros.settings.parameter_fields import ParameterError, fields_of, parameter_fields
from multi_dnn_ros.settings.parameter_table import BEGIN, END, PAGE, default_yaml, in_document, markdown
from multi_dnn_ros.settings.params_file import read_params_file
from multi_dnn_ros.settings.schema import CameraConfig, DnnConfig, NodeConfig

ROOT = Path(__file__).resolve().parents[2]


def refusal(flat):
    with pytest.raises(ParameterError) as error:
        to_config(flat)
    return str(error.value)


def to_flat(config: NodeConfig) -> dict[str, Any]:
    """The inverse of to_config: every parameter with its value, by ROS name."""
    flat: dict[str, Any] = {name: getattr(config, name) for name in fields_of(NodeConfig)}
    flat.update(cameras=list(config.cameras), dnns=list(config.dnns))
    for kind, members in (("camera", config.cameras), ("dnn", config.dnns)):
        for member, section in members.items():
            flat.update({f"{kind}.{member}.{name}": value for name, value in section.model_dump().items()})
    return flat


def test_defaults_are_one_camera_and_the_three_built_in_dnns():
    config = to_config({})
    assert list(config.cameras) == ["front"]
    assert [(name, dnn.role, dnn.model) for name, dnn in config.dnns.items()] == [
        (role, role, f"builtin:{role}") for role in ("lane", "object", "pedestrian")
    ]


def test_flat_and_nested_parameters_are_equivalent():
    config = NodeConfig(
        cameras={"front": CameraConfig(), "rear": CameraConfig(transport="compressed", depth=3)},
        dnns={"cars": DnnConfig(role="object", model="a.onnx", mean=[0.5, 0.4, 0.3], keep=["car"], deadline_ms=80.0)},
        device="cuda:1",
        policy="edf",
    )
    assert to_config(to_flat(config)) == config


def test_a_dnn_of_another_name_has_the_model_of_its_role():
    config = to_config({"dnns": ["cars"], "dnn.cars.role": "object"})
    assert config.dnns["cars"].model == "builtin:object"


def test_an_integer_is_accepted_for_a_float():
    config = to_config({"aging_ms": 20, "dnn.lane.mean": [1, 2, 3]})
    assert config.aging_ms == 20.0
    assert config.dnns["lane"].mean == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("flat", "words"),
    [
        ({"dnn.lane.score_threshold": 1.5}, ["dnn.lane.score_threshold is 1.5", "0 to 1"]),
        ({"dnn.lane.score_threshold": math.nan}, ["dnn.lane.score_threshold is nan"]),
        ({"dnn.lane.score_threshold": "0.5"}, ["dnn.lane.score_threshold is '0.5'", "float"]),
        ({"dnn.lane.score_threshold": 10**400}, ["dnn.lane.score_threshold is 1000", "0 to 1"]),
        ({"dnn.lane.mean": [10**400]}, ["dnn.lane.mean is [1000", "list of finite numbers"]),
        ({"workers": 17}, ["workers is 17", "0 to 16"]),
        ({"workers": 1.0}, ["workers is 1.0", "int"]),
        ({"workers": True}, ["workers is true", "int"]),
        ({"autostart": 1}, ["autostart is 1", "true, false"]),
        ({"device": "gpu"}, ["device is 'gpu'", "cuda:<number>"]),
        ({"policy": "none"}, ["policy is 'none'", "fifo, priority"]),
        ({"aging_ms": 0.0}, ["aging_ms is 0.0", "more than 0"]),
        ({"camera.front.transport": "theora"}, ["camera.front.transport is 'theora'", "raw, compressed"]),
        ({"dnn.lane.model": ""}, ["dnn.lane.model is ''", "not empty"]),
        ({"dnn.lane.labels": "car"}, ["dnn.lane.labels is 'car'", "list of strings"]),
        ({"dnn.lane.keep": [1]}, ["dnn.lane.keep is [1]"]),
        ({"dnns": ["cars"]}, ["dnn.cars.role is ''", "lane, object, pedestrian"]),
        ({"cameras": []}, ["cameras is []", "at least one"]),
        ({"cameras": ["front", "front"]}, ["cameras", "'front' twice"]),
        ({"cameras": ["Front-Left"]}, ["cameras", "'Front-Left'", "lower-case"]),
        ({"cameras": "front"}, ["cameras is 'front'"]),
        ({"devise": "cpu"}, ["devise", "did you mean device?"]),
        ({"dnn.lane.scor_threshold": 0.5}, ["dnn.lane.scor_threshold", "did you mean dnn.lane.score_threshold?"]),
        ({"cameras.front.topic": "/a"}, ["cameras.front.topic", "did you mean camera.front.topic?"]),
        ({"camera.frnt.topic": "/a"}, ["'frnt' is not in cameras (front)", "did you mean camera.front.topic?"]),
        ({"camera.front.xyzzy": 1}, ["camera.front.xyzzy", "it has topic, transport"]),
        ({"camera.front": 1}, ["camera.front", "it has topic"]),
    ],
)
def test_a_mistake_names_the_parameter_its_value_and_what_is_allowed(flat, words):
    text = refusal(flat)
    for word in words:
        assert word in text


def test_every_mistake_is_reported():
    text = refusal({"workers": -1, "polcy": "fifo", "dnn.object.jobs": 0})
    assert [line.split()[1] for line in text.splitlines()] == ["polcy:", "workers", "dnn.object.jobs"]
    text = refusal({"cameras": ["front", "front"], "dnns": "lane"})
    assert [line.split()[1] for line in text.splitlines()] == ["cameras", "dnns"]
    text = refusal({"cameras": [], "dnn.lane.outputs": ["A"]})
    assert [line.split()[1] for line in text.splitlines()] == ["cameras", "dnn.lane.outputs"]


def test_an_unused_section_is_no_error():
    flat = {"cameras": ["front_right"], "camera.front_right.depth": 2, "camera.front_left.depth": 2}
    assert list(to_config(flat).cameras) == ["front_right"]
    assert list(to_config({**to_flat(to_config({})), "cameras": ["other"], "dnns": ["object"]}).dnns) == ["object"]


values = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.lists(st.text(max_size=4), max_size=3)
)
names = st.sampled_from([*parameter_fields(("front",), ("lane", "cars")), "cameras", "dnns", "camera.x.topic"])


@given(st.dictionaries(names | st.text(max_size=12), values, max_size=6))
@settings(max_examples=100)
def test_any_parameters_give_a_configuration_or_a_parameter_error(flat):
    try:
        config = to_config(flat)
    except ParameterError:
        return
    assert to_config(to_flat(config)) == config


# -- files


def write(tmp_path, text):
    path = tmp_path / "params.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "key", ["multi_dnn", "/multi_dnn", "/**", "/*/multi_dnn", "/robot/multi_dnn", "robot:\n  multi_dnn"]
)
def test_every_form_of_section_name_that_ros_allows(tmp_path, key):
    path = write(
        tmp_path, f"{key}: {{ros__parameters: {{workers: 3, use_sim_time: true, camera: {{front: {{depth: 2}}}}}}}}\n"
    )
    config = read_params_file(path)
    assert (config.workers, config.cameras["front"].depth) == (3, 2)


def test_later_sections_override_earlier_ones_and_other_nodes_are_ignored(tmp_path):
    path = write(
        tmp_path,
        "/**: {ros__parameters: {workers: 1, max_failures: 2}}\n"
        "other: {ros__parameters: {workers: 16}}\n"
        "multi_dnn: {ros__parameters: {workers: 3}}\n",
    )
    config = read_params_file(path)
    assert (config.workers, config.max_failures) == (3, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("multi_dnn: {ros__parameters: {polcy: edf}}", ["did you mean policy?"]),
        ("multi_dnn: {ros__parameters: {workers: 99}}", ["workers is 99"]),
        ("multi_dnn: {ros__parameters: 3}", ["ros__parameters is 3"]),
        ("multi_dnn: {parameters: {workers: 3}}", ["no parameters for node '/multi_dnn'"]),
        ("other: {ros__parameters: {workers: 3}}", ["no parameters for node '/multi_dnn'", "/other"]),
        ("/**: {ros__parameters: {}}", ["no parameters for node '/multi_dnn'", "section /** is empty"]),
        (
            "/a/multi_dnn: {ros__parameters: {workers: 3}}\n/b/multi_dnn: {ros__parameters: {workers: 4}}",
            ["no parameters for node '/multi_dnn', but for several others", "/a/multi_dnn, /b/multi_dnn"],
        ),
        ("multi_dnn: {ros__parameters: {use_sim_tme: true}}", ["use_sim_tme: no such", "did you mean use_sim_time?"]),
        ("multi_dnn: {ros__parameters: {use_sim_time_: true}}", ["did you mean use_sim_time?"]),
        ("", ["no parameters"]),
        ("multi_dnn: {ros__parameters: {workers: 1, workers: 2}}", ["'workers' is given twice"]),
        ("a: &a {ros__parameters: {workers: 1}}\nmulti_dnn: *a", ["aliases"]),
        ("multi_dnn: {ros__parameters: {[a]: 2}}", ["key ['a'] is not a string"]),
        ("multi_dnn: {ros__parameters: {workers: 1_0}}", ["parameter workers is '1_0'"]),
        ("multi_dnn: {ros__parameters: {workers: 1:30}}", ["parameter workers is '1:30'"]),
        ("multi_dnn:\n  ros__parameters: {workers: }", [": line 2: no value"]),
        (
            "multi_dnn: {ros__parameters: {dnn: {lane: {crop: [0, 0.4, 1, 0.6]}}}}",
            ["line 1: all elements of a list must have one type (", "found: float, int in [0, 0.4, 1, 0.6]"],
        ),
        ("multi_dnn: {ros__parameters: {cameras: [[a]]}}", ["line 1: a list must hold", "not a nested sequence"]),
        ("multi_dnn: [", ["not a YAML file", "line 1"]),
        ("multi_dnn: !!python/object/apply:os.system [true]", ["not a YAML file"]),
        ("[" * 5000, ["not a YAML file"]),
    ],
)
def test_the_error_about_a_bad_file_names_file_and_reason(tmp_path, text, words):
    path = write(tmp_path, text)
    with pytest.raises(ParameterError) as error:
        read_params_file(path)
    for word in [str(path), *words]:
        assert word in str(error.value)


def test_values_and_keys_are_read_as_rcl_reads_them(tmp_path):
    path = write(
        tmp_path,
        "multi_dnn:\n  ros__parameters:\n"
        "    {aging_ms: 1e2, workers: 010, autostart: y, cameras: ['on'], camera: {on: {depth: 2}},\n"
        "     dnn: {lane: {labels: [null, ~, 2001-01-01, 1:30], score_threshold: .5}}}\n",
    )
    config = read_params_file(path)
    assert (config.aging_ms, config.workers, config.autostart) == (100.0, 8, True)
    assert config.cameras["on"].depth == 2
    assert config.dnns["lane"].labels == ["null", "~", "2001-01-01", "1:30"]
    assert config.dnns["lane"].score_threshold == 0.5


def test_unused_parameters_are_warnings(tmp_path, caplog):
    path = write(tmp_path, "multi_dnn: {ros__parameters: {camera: {rear: {depth: 2}}, zoom_level: 3, threshold: 0.3}}")
    with caplog.at_level(logging.WARNING):
        read_params_file(path)
    assert "camera 'rear' is not in cameras (front); not used" in caplog.text
    assert "zoom_level: not a parameter of this node, ignored; the most similar name is " in caplog.text
    assert (
        "threshold: not a parameter of this node, ignored; the most similar name is dnn.lane.iou_threshold"
        in caplog.text
    )


def test_a_node_in_a_namespace_has_its_own_section(tmp_path):
    path = write(
        tmp_path, "/a/multi_dnn: {ros__parameters: {workers: 3}}\n/b/multi_dnn: {ros__parameters: {workers: 4}}"
    )
    assert read_params_file(path, "/b/multi_dnn").workers == 4


def test_a_huge_file_is_not_read(tmp_path):
    path = write(tmp_path, "#" * (1 << 20) + "\n")
    with pytest.raises(ParameterError, match="1048577 bytes"):
        read_params_file(path)


# -- YAML, table and schema agree


def test_the_installed_yaml_is_generated_from_the_schema():
    path = ROOT / "config" / "multi_dnn.yaml"
    assert path.read_text(encoding="utf-8") == default_yaml(), "run python -m multi_dnn_ros.settings.parameter_table"
    assert read_params_file(path) == to_config({})


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda path: path.name)
def test_every_installed_yaml_is_valid(path, caplog):
    with caplog.at_level(logging.WARNING):
        read_params_file(path)
    assert not caplog.text


def test_the_page_has_the_generated_tables():
    text = PAGE.read_text(encoding="utf-8")
    assert BEGIN in text
    assert in_document(text) == text, "run python -m multi_dnn_ros.settings.parameter_table"


@pytest.mark.parametrize("model", [NodeConfig, CameraConfig, DnnConfig])
def test_the_description_of_a_parameter_explains_each_of_its_values(model: type[BaseModel]):
    """Except for names of registries, which docs/extending.md lists."""
    for name, schema in model.model_json_schema()["properties"].items():
        if "enum" in schema and name not in ("backend", "decoder"):
            words = set(re.findall(r"\w+", schema["description"]))
            assert not set(schema["enum"]) - words, f"the description of {name} lacks {set(schema['enum']) - words}"


def test_the_table_has_every_parameter():
    rows = markdown().splitlines()
    for prefix, model in (("", NodeConfig), ("camera.<camera>.", CameraConfig), ("dnn.<dnn>.", DnnConfig)):
        for name, field in fields_of(model).items():
            cells = [f"**`{prefix}{name}`**"] if field.runtime else [f"`{prefix}{name}`", f"*`{prefix}{name}`*"]
            assert sum(row.startswith(f"| {cell} |") for row in rows for cell in cells) == 1


def test_the_tables_are_placed_between_the_markers():
    assert in_document(f"a\n{BEGIN}\nold\n{END}\nb") == f"a\n{BEGIN}\n\n{markdown()}\n\n{END}\nb"
    with pytest.raises(ValueError, match="markers"):
        in_document("no markers")
