"""The extensions of another installed package are served and listed without a change to this package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
from fork_server import ForkServer
from geometry_msgs.msg import PointStamped
from sensor_msgs.msg import Image
from toy_node import ToyNode, environment, run_forked

#: Names of the toy package's extensions.
BACKEND, DECODER, KIND, SOURCE = "toy_backend", "toy_decoder", "toy_kind", "toy_zoo"
TOY_DNN = {
    "dnns": "[light]",
    "dnn.light.role": "traffic_light",
    "dnn.light.model": "toy_zoo:brightness",
    "dnn.light.decoder": DECODER,
    "dnn.light.backend": BACKEND,
}
SIZE = (96, 128)  # twice the network's input, (H, W)


def picture() -> np.ndarray:
    """Black, except for a white block with its centre at u = 90, v = 26."""
    pixels = np.zeros((*SIZE, 3), np.uint8)
    pixels[20:32, 84:96] = 255
    return pixels


def python(code: str, *folders: Path, succeeds: bool = True) -> str:
    """The output of a process that finds the packages in `folders`."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment(*folders))
    assert not succeeds or done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_node_serves_another_packages_extensions(domain: int, tmp_path: Path, toy: Path, broken: Path) -> None:
    node = ToyNode(domain, tmp_path / "log", TOY_DNN, toy, broken)
    try:
        spots = node.listen("/multi_dnn/front/light/spot", PointStamped)
        overlays = node.listen("/multi_dnn/front/overlay", Image)
        node.until(lambda: spots and overlays, "a result and a picture of it", lambda: node.send(picture(), 7))
        spot = spots[0]
        assert (spot.header.stamp.sec, spot.header.frame_id) == (7, "camera")
        assert abs(spot.point.x - 90) <= 4
        assert abs(spot.point.y - 26) <= 4
        assert spot.point.z > 0.9  # white, except for edges that the resize blurs
        drawn = np.frombuffer(bytes(overlays[0].data), np.uint8).reshape(*SIZE, 3)
        assert tuple(drawn[round(spot.point.y), round(spot.point.x)]) == (255, 0, 255)
        assert re.search(r"toy backend prepares \d+ jobs of light on cpu", node.text())
        assert "libtorch" not in Path(f"/proc/{node.process.pid}/maps").read_text()
        for what in BROKEN:
            assert f"{what} of broken-extension" in node.text(), what
    finally:
        node.close()


#: What cannot be used of package `broken-extension`.
BROKEN = (
    "decoder 'yolo'", "decoder 'absent'", "decoder 'number'", "backend 'nameless'",
    "result kind 'other_name'",
)  # fmt: skip


def test_inspect_shows_what_another_packages_decoder_finds_in_one_line(toy: Path, tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "spot.png"), picture())
    code = f"""
import os
from multi_dnn_ros.cli.main import main
os.chdir({str(tmp_path)!r})
main(["inspect", "toy_zoo:brightness", "--decoder", "toy_decoder", "--image", "spot.png"])
main(["inspect", "toy_zoo:brightness", "--decoder", "toy_decoder", "--labels", "a,b", "--decoder", "lane"])
"""
    lines = python(code, toy).splitlines()
    (found,) = [line for line in lines if line.startswith("found ")]
    assert re.fullmatch(r"found +Spot: u 9\d\.\d+, v 2\d\.\d+, score 0\.9\d+", found), found
    assert not [line for line in lines if "dnn.model" in line]


def test_the_schema_its_errors_and_the_tables_list_them_without_pytorch(toy: Path) -> None:
    code = """
import sys
from multi_dnn_ros.settings.flat_parameters import to_config
from multi_dnn_ros.settings.parameter_fields import ParameterError
from multi_dnn_ros.settings.parameter_table import default_yaml, markdown
try:
    to_config({"dnn.lane.decoder": "sofa", "dnn.lane.backend": "sofa", "dnn.lane.model": ""})
except ParameterError as error:
    print(error)
print("====")
print(markdown())
print("====")
print(default_yaml())
print("torch" in sys.modules)
"""
    errors, table, yaml = python(code, toy).split("====")
    for text in (errors, table, yaml):
        for name in (DECODER, BACKEND, f"{SOURCE}:<name>"):
            assert name in text.replace("&lt;", "<")
    assert yaml.strip().endswith("False")
    assert "toy" not in python(code)


def test_a_model_source_is_loaded_and_errors_beyond_single_values_list_them(toy: Path, fork_server: ForkServer) -> None:
    """A decomposed network is written as an exported program if its source does not rebuild networks."""
    code = """
import torch
from multi_dnn_ros.models.artifact import suffix_of
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.load import check_dnn, load_dnn
from multi_dnn_ros.pipeline.choices import ConfigError, backend_name
from multi_dnn_ros.settings.schema import DnnConfig
for look, settings in ((check_dnn, {"model": "sofa"}), (check_dnn, {"model": "toy_zoo:sofa"}),
                       # Its outputs are known only after a run.
                       (load_dnn, {"model": "toy_zoo:brightness", "labels": ["spot"]}),
                       (check_dnn, {"model": "toy_zoo:brightness", "labels": ["spot"], "decoder": "lane",
                                    "role": "object"})):
    try:
        look("x", DnnConfig(**{"role": "traffic_light", **settings}))
    except ModelError as error:
        print(error)
try:
    backend_name("toy_backend", torch.device("cuda:0"))
except ConfigError as error:
    print(error)
print(suffix_of("toy_zoo:brightness"), suffix_of("builtin:lane"), suffix_of("a.onnx"))
dnn = load_dnn("light", DnnConfig(role="traffic_light", model="toy_zoo:brightness", decoder="toy_decoder"))
print(dnn.role, dnn.result_kind, dnn.labels, dnn.decoder.score_threshold)
"""
    lines = run_forked(fork_server, code, toy).splitlines()
    assert len(lines) == 7, "\n".join(lines)
    source, name, decoder, role, backend, suffixes, dnn = lines
    assert source.startswith("parameter dnn.x.model is 'sofa'; allowed: builtin:lane")
    assert "toy_zoo:brightness" in source
    assert name == "parameter dnn.x.model is 'toy_zoo:sofa'; allowed: toy_zoo:brightness"
    assert "dnn.x.decoder is 'auto', but toy_zoo:brightness does not say what its outputs mean" in decoder
    assert "their shapes do not decide it: outputs (1, 1, 12, 16) are read as 'lane': a map per class" in decoder
    assert "allowed: yolo, grid, segmentation, lane, " in decoder
    assert decoder.endswith(", toy_decoder")
    assert role.startswith("parameter dnn.x.role is 'object', but toy_zoo:brightness is decoded as 'lane': ")
    assert role.endswith(": lanes instead of detections")
    assert "dnn.<dnn>.backend is 'toy_backend', but the device is cuda:0" in backend
    assert suffixes == ".pt2 .safetensors .pt2"
    assert dnn == "traffic_light toy_kind ('spot',) 0.4"
