"""Flat parameters, parameter files, and the documents generated from the schema."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.settings.flat_parameters import fields_of, parameter_fields, to_config
from multi_dnn_ros.settings.forms import ParameterError
from multi_dnn_ros.settings.parameter_table import PAGE, in_document
from multi_dnn_ros.settings.params_file import applies_to, read_params_file, require_parameters
from multi_dnn_ros.settings.schema import CameraConfig, DnnConfig, NodeConfig

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = "lidar:\n  ros__parameters: {rate: 10}\n"


def to_flat(config: NodeConfig) -> dict[str, Any]:
    """The inverse of to_config: every parameter with its value, by ROS name."""
    flat: dict[str, Any] = {name: getattr(config, name) for name in fields_of(NodeConfig)}
    flat.update(cameras=list(config.cameras), dnns=list(config.dnns))
    for kind, model, members in (("camera", CameraConfig, config.cameras), ("dnn", DnnConfig, config.dnns)):
        for member, section in members.items():
            flat.update({f"{kind}.{member}.{name}": getattr(section, name) for name in fields_of(model)})
    return flat


def test_flat_and_nested_parameters_are_equivalent() -> None:
    config = NodeConfig(
        cameras={"front": CameraConfig(), "rear": CameraConfig(transport="compressed", depth=3)},
        dnns={"cars": DnnConfig(role="object", model="a.onnx", mean=[0.5, 0.4, 0.3], keep=["car"], deadline_ms=80.0)},
        device="cuda:1",
        policy="edf",
    )
    flat = {name: list(value) if isinstance(value, Mapping) else value for name, value in to_flat(config).items()}
    assert to_config(flat) == config
    defaults = to_config({})
    assert list(defaults.cameras) == ["front"]
    assert [(name, dnn.role, dnn.model) for name, dnn in defaults.dnns.items()] == [
        (role, role, f"builtin:{role}") for role in ("lane", "object", "pedestrian")
    ]
    assert to_config({"dnns": ["cars"], "dnn.cars.role": "object"}).dnns["cars"].model == "builtin:object"
    assert to_config({"blocking_ms": 20, "dnn.lane.mean": [1, 2, 3]}).dnns["lane"].mean == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("flat", "words"),
    [
        ({"dnn.lane.score_threshold": 1.5}, ["dnn.lane.score_threshold is 1.5", "0 to 1"]),
        ({"dnn.lane.score_threshold": math.nan}, ["dnn.lane.score_threshold is nan"]),
        ({"dnn.lane.score_threshold": 10**400}, ["dnn.lane.score_threshold is 1000", "0 to 1"]),
        ({"dnn.lane.mean": [10**400]}, ["dnn.lane.mean is [1000", "list of finite numbers"]),
        ({"workers": 17}, ["workers is 17", "0 to 16"]),
        ({"workers": True}, ["workers is true", "int"]),
        ({"autostart": 1}, ["autostart is 1", "true, false"]),
        ({"device": "gpu"}, ["device is 'gpu'", "cuda:<number>"]),
        ({"policy": "none"}, ["policy is 'none'", "fifo, "]),
        ({"camera.front.pose": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]}, ["camera.front.pose is [0.0", "z above 0"]),
        ({"camera.front.pose": [1.0, 2.0]}, ["camera.front.pose is [1.0", "6 numbers"]),
        ({"dnn.lane.crop": [0.5, 0.0, 0.6, 1.0]}, ["dnn.lane.crop is [0.5", "at most 1"]),
        ({"dnn.lane.crop": [1.0]}, ["dnn.lane.crop is [1.0]", "4 numbers"]),
        ({"dnns": ["cars"], "dnn.cars.role": "cars"}, ["dnn.cars.model is ''", "not empty"]),
        ({"dnn.lane.labels": "car"}, ["dnn.lane.labels is 'car'", "list of strings"]),
        ({"dnns": ["cars"]}, ["dnn.cars.role is ''", "lane, object, pedestrian"]),
        ({"cameras": []}, ["cameras is []", "at least one"]),
        ({"cameras": ["front", "front"]}, ["cameras is ['front', 'front']", "all different"]),
        ({"cameras": ["Front-Left"]}, ["cameras is ['Front-Left']", "lower-case"]),
        ({"devise": "cpu"}, ["devise", "did you mean device?"]),
        ({"dnn.lane.scor_threshold": 0.5}, ["dnn.lane.scor_threshold", "did you mean dnn.lane.score_threshold?"]),
        ({"cameras.front.topic": "/a"}, ["cameras.front.topic", "did you mean camera.front.topic?"]),
        ({"camera.frnt.topic": "/a"}, ["'frnt' is not in cameras (front)", "did you mean front?"]),
        ({"camera.front.xyzzyqqqqqqqqqqq": 1}, ["camera.front.xyzzyqqqqqqqqqqq: no such parameter"]),
        ({"fault_windw_s": 1.0, "dnn.lane.outputs": ["A"]}, ["dnn.lane.outputs is ['A']", "lower-case"]),
    ],
)
def test_a_mistake_names_the_parameter_its_value_and_what_is_allowed(flat: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ParameterError) as error:
        to_config(flat)
    assert [word for word in words if word not in str(error.value)] == []


def test_every_mistake_is_reported_and_an_unused_section_is_none() -> None:
    with pytest.raises(ParameterError) as error:
        to_config({"workers": -1, "polcy": "fifo", "dnn.object.jobs": 0})
    assert [line.split()[1] for line in error.value.problems] == ["polcy:", "workers", "dnn.object.jobs"]
    flat = {"cameras": ["front_right"], "camera.front_right.depth": 2, "camera.front_left.depth": 2}
    assert list(to_config(flat).cameras) == ["front_right"]
    assert list(to_config({**to_flat(to_config({})), "cameras": ["other"], "dnns": ["object"]}).dnns) == ["object"]


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
names = st.sampled_from([*parameter_fields({"dnns": ["lane", "cars"]}), "camera.x.topic"])


@given(st.dictionaries(names | st.text(max_size=12), values | st.lists(st.text(max_size=4), max_size=3), max_size=6))
@settings(max_examples=100)
def test_any_parameters_give_a_configuration_or_a_parameter_error(flat: dict[str, Any]) -> None:
    try:
        config = to_config(flat)
    except ParameterError:
        return
    assert to_config({**to_flat(config), "dnn.lane.outputs": [], "dnn.cars.outputs": []}) == config


# -- files


def written(folder: Path, text: str, name: str = "params.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "key", ["multi_dnn", "/multi_dnn", "/**", "/*/multi_dnn", "/robot/multi_dnn", "robot:\n  multi_dnn"]
)
def test_every_form_of_section_name_that_ros_allows(tmp_path: Path, key: str) -> None:
    text = f"{key}: {{ros__parameters: {{workers: 3, use_sim_time: true, camera: {{front: {{depth: 2}}}}}}}}\n"
    config = read_params_file(written(tmp_path, text))
    assert (config.workers, config.cameras["front"].depth) == (3, 2)


def test_values_sections_and_unused_parameters(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(
        tmp_path,
        "/**: {ros__parameters: {workers: 1, blocking_ms: 1e2, zoom_level: 3, camera: {rear: {depth: 2}}}}\n"
        "other: {ros__parameters: {workers: 16}}\n"
        "/a/multi_dnn: {ros__parameters: {workers: 4}}\n"
        "multi_dnn: {ros__parameters: {workers: 3, autostart: no, cameras: ['on'], camera: {on: {depth: 2}}}}\n",
    )
    with caplog.at_level(logging.WARNING):
        config = read_params_file(path)
    assert (config.workers, config.blocking_ms, config.autostart, config.cameras["on"].depth) == (3, 100.0, False, 2)
    assert "camera 'rear' is not in cameras (on); not used" in caplog.text
    assert "zoom_level: not a parameter of this node, ignored" in caplog.text
    assert read_params_file(path, "/a/multi_dnn").workers == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("multi_dnn: {ros__parameters: {polcy: edf}}", ["did you mean policy?"]),
        ("multi_dnn: {ros__parameters: {use_sim_tme: true}}", ["did you mean use_sim_time?"]),
        ("multi_dnn: {ros__parameters: {workers: 99}}", ["workers is 99"]),
        ("multi_dnn:\n  ros__parameters: {workers: }", ["workers is not set"]),
        ("multi_dnn: {ros__parameters: 3}", ["ros__parameters is 3"]),
        ("multi_dnn: {parameters: {workers: 3}}", ["no parameters for node '/multi_dnn'"]),
        ("other: {ros__parameters: {workers: 3}}", ["no parameters for node '/multi_dnn'", "/other"]),
        (
            "/a/multi_dnn: {ros__parameters: {workers: 3}}\n/b/multi_dnn: {ros__parameters: {workers: 4}}",
            ["no parameters for node '/multi_dnn'", "/a/multi_dnn, /b/multi_dnn"],
        ),
        ("", ["the file is empty"]),
        ("multi_dnn: {ros__parameters: {workers: 1, workers: 2}}", ["'workers' is given twice"]),
        ("a: &a {ros__parameters: {workers: 1}}\nmulti_dnn: *a", ["aliases"]),
        ("multi_dnn: {ros__parameters: {[a]: 2}}", ["a key is not a string"]),
        ("multi_dnn: [", ["not a YAML file", "line 1"]),
        ("multi_dnn: !!python/object/apply:os.system [true]", ["not a YAML file"]),
        ("[" * 5000, ["not a YAML file"]),
    ],
)
def test_the_error_about_a_bad_file_names_file_and_reason(tmp_path: Path, text: str, words: list[str]) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ParameterError) as error:
        read_params_file(path)
    assert [word for word in (str(path), *words) if word not in str(error.value)] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["No such file"]),
        ("", ["the file is empty"]),
        ("/**: [\n", ["not a YAML file", "line 2"]),
        (FOREIGN, ["no parameters for node /multi_dnn; its sections are for /lidar"]),
        (f"{FOREIGN}multi_dnn:\n  ros__parameters: {{}}\n", ["node /multi_dnn; its section /multi_dnn is empty"]),
    ],
)
def test_a_node_does_not_start_with_a_file_that_is_not_for_it(
    tmp_path: Path, text: str | None, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """rclpy would run it with its defaults, without a message."""
    path = tmp_path / "robot.yaml" if text is None else written(tmp_path, text, "robot.yaml")
    assert main(["run", "--params-file", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"multi-dnn run: error: parameter file {path}")
    assert [word for word in words if word not in error] == []


def test_one_of_several_files_must_have_parameters_for_the_node(tmp_path: Path) -> None:
    own = written(tmp_path, "/**:\n  ros__parameters: {a: 1}\n", "own.yaml")
    foreign = written(tmp_path, FOREIGN, "lidar.yaml")
    assert require_parameters([], "/multi_dnn") == require_parameters([own], "/multi_dnn") == []
    (warning,) = require_parameters([foreign, own], "/multi_dnn")
    assert "lidar.yaml: no parameters for node /multi_dnn" in warning
    with pytest.raises(ParameterError, match=r"lidar.yaml: no parameters"):
        require_parameters([foreign], "/multi_dnn")
    foreign.write_text("/**: [")
    with pytest.raises(ParameterError, match=r"lidar.yaml: not a YAML file"):
        require_parameters([foreign, own], "/multi_dnn")


parts = st.lists(st.sampled_from(["a", "b", "multi_dnn", "*", "**"]), min_size=1, max_size=4)
nodes = st.lists(st.sampled_from(["a", "b", "multi_dnn"]), min_size=1, max_size=4)


@given(parts, nodes)
def test_sections_apply_as_in_rclpy(section: list[str], node: list[str]) -> None:
    """rclpy/src/rclpy/node.cpp (Jazzy) converts the name of a section into this expression."""
    name, full = "/" + "/".join(section), "/" + "/".join(node)
    assert applies_to(name, full) == bool(re.fullmatch(name.replace("/*", r"(/\w+)"), full))


# -- YAML, table and schema agree


def test_the_tables_are_generated_from_the_schema() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert in_document(page) == page, "run python -m multi_dnn_ros.settings.parameter_table"
    with pytest.raises(ValueError, match="markers"):
        in_document("no markers")


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda path: path.name)
def test_every_installed_yaml_is_valid(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = read_params_file(path)
    assert not caplog.text
    assert path.name != "multi_dnn.yaml" or config == to_config({"camera.front.topic": "front/image_raw"})


@pytest.mark.parametrize("model", [NodeConfig, CameraConfig, DnnConfig])
def test_the_description_of_a_parameter_explains_each_of_its_values(model: type[BaseModel]) -> None:
    """Except for names of registries, which docs/extending.md lists."""
    for name, field in fields_of(model).items():
        values = model.model_json_schema()["properties"][name].get("enum", ())
        if name not in ("backend", "decoder"):
            assert not set(values) - set(re.findall(r"\w+", field.description)), name


def test_files_and_folders_that_do_not_exist_are_named(tmp_path: Path) -> None:
    def missing(name: str, value: object) -> str:
        return parameter_fields({"dnns": ["object"]})[name].missing_file(name, value)

    file = tmp_path / "model.ONNX"
    where = f"parameter dnn.object.model is '{file}'"
    assert missing("dnn.object.model", str(file)) == f"{where}: there is no such file"
    file.touch()
    assert missing("dnn.object.model", str(file)) == ""
    assert "there is no such folder" in missing("dnn.object.calibration_images", str(file))
    assert "the home folder of this user is not known" in missing("dnn.object.model", "~nobody here/a.onnx")
    assert missing("dnn.object.calibration_images", 300 * "a").endswith(
        "the folder cannot be found: File name too long"
    )
    for name, value in (
        ("model", "builtin:object"),
        ("weights", "COCO_V1"),
        ("calibration_images", ""),
        ("labels", ["a"]),
    ):
        assert missing(f"dnn.object.{name}", value) == ""
