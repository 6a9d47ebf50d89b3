"""JPEG files in the slots: decoded once by the engine, on the device if it can; a fake decoder stands for the GPU's."""

from __future__ import annotations

import array
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import jpeg_pipelines
import numpy as np
import pytest
from fake_host import WAIT_S, Ends, FakeClock, FakeHost
from fake_pipelines import settings
from host_rig import HostRig, Traffic
from jpeg_pipelines import MARK, build_on_device
from waiting import until

from multi_dnn_ros.backends import jpeg_decoding
from multi_dnn_ros.backends.jpeg_decoding import JPEG_DECODERS
from multi_dnn_ros.engine import Frame, Result
from multi_dnn_ros.serving.camera_decoder import CameraDecoder
from multi_dnn_ros.serving.descriptions import ConfigureError
from multi_dnn_ros.serving.host import Host
from multi_dnn_ros.serving.ledger import DnnSettings, Ledger
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.image_decoding import ImageSettings, decode_compressed, jpeg_for_device
from multi_dnn_ros.vision.jpeg_file import JpegFile

SETTINGS = ImageSettings("front", 1280 * 720)


def message(extension: str = ".jpg") -> Any:
    """A CompressedImage full of 200."""
    data = cv2.imencode(extension, np.full((48, 64, 3), 200, np.uint8))[1]
    return SimpleNamespace(format=extension, data=array.array("B", data.tobytes()))


def compressed(config: NodeConfig, jpeg_decoder: str = "auto") -> NodeConfig:
    """The settings with all cameras compressed."""
    for camera in config.cameras.values():
        camera.transport, camera.jpeg_decoder = "compressed", jpeg_decoder  # type: ignore[assignment]
    return config


@pytest.fixture(autouse=True)
def decoders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' decoders are registered for one test."""
    monkeypatch.setattr(jpeg_decoding, "JPEG_DECODERS", JPEG_DECODERS)
    monkeypatch.setitem(JPEG_DECODERS, "cpu", jpeg_pipelines.make)


# -- which devices can


@pytest.mark.parametrize(
    ("transport", "mode", "can", "used"),
    [
        ("compressed", "auto", True, True),
        ("compressed", "gpu", True, True),
        ("compressed", "cpu", True, False),
        ("raw", "auto", True, False),
        ("raw", "gpu", False, False),
        ("compressed", "auto", False, False),
        ("compressed", "gpu", False, None),
    ],
)
def test_the_engine_decodes_jpeg_where_the_parameter_allows_it(
    transport: str, mode: str, can: bool, used: bool | None
) -> None:
    config = compressed(settings("object", isolation="none", device="cpu:1" if can else "cpu:2"), mode)
    config.cameras["front"].transport = transport  # type: ignore[assignment]
    host = Host(build_on_device)
    if used is None:
        with pytest.raises(ConfigureError, match=r"camera.front.jpeg_decoder is 'gpu'.*cpu.*allowed there: auto, cpu"):
            host.configure(config, lambda progress: None)
    else:
        assert host.configure(config, lambda progress: None).decodes_jpeg is used
    host.close()


# -- the thread of the camera


class Camera:
    """A CameraDecoder of a fake host with two DNNs whose devices decode."""

    def __init__(self) -> None:
        self.host, self.ends, self.bad = FakeHost(), Ends(), []  # type: ignore[var-annotated]
        dnns = {dnn: DnnSettings(("front",)) for dnn in ("object", "lane")}
        ledger = Ledger(dnns, self.ends.callbacks(), FakeClock())
        self.host.on_device = {"object", "lane"}
        self.decoder = CameraDecoder("front", self.host, ledger, self.bad.append)  # type: ignore[arg-type]
        self.decoder.start()

    def send(self, image: Any) -> Any:
        """The offered image; None if it could not be decoded."""
        offered, bad = len(self.host.offered), len(self.bad)
        read = partial(jpeg_for_device, image, SETTINGS)
        self.decoder.arrived(Frame("front", 0), partial(decode_compressed, image, SETTINGS), read_jpeg=read)
        until(lambda: len(self.host.offered) > offered or len(self.bad) > bad, "what became of the image", WAIT_S)
        for dnn in ("object", "lane"):
            if len(self.host.offered) > offered:
                self.host.answer(dnn)
        return self.host.offered[-1][1].source if len(self.host.offered) > offered else None


def test_the_file_is_stored_if_every_dnn_has_a_device_that_decodes_it() -> None:
    camera, image, png = Camera(), message(), message(extension=".png")
    stored = camera.send(image)
    assert isinstance(stored, JpegFile)
    assert (stored.height, stored.width, stored.data.tobytes()) == (48, 64, image.data.tobytes())
    np.testing.assert_array_equal(camera.send(png), decode_compressed(png, SETTINGS))
    camera.host.file_bytes = 100
    assert isinstance(camera.send(image), np.ndarray), "it is too large for the slot"
    camera.host.file_bytes = 1_000_000
    camera.host.on_device.discard("lane")
    np.testing.assert_array_equal(camera.send(image), decode_compressed(image, SETTINGS))
    camera.host.on_device.add("lane")
    image.data = image.data[:-40]
    assert camera.send(image) is None
    assert "truncated JPEG" in str(camera.bad[0])
    camera.decoder.close(WAIT_S)


# -- engine processes


class JpegTraffic(Traffic):
    """Delivers JPEG files. stored: whether the images of the results were handed over as files."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.stored: list[bool] = []

    def _deliver(self, decoder: CameraDecoder, frame: Frame) -> None:
        image = message()
        read = partial(jpeg_for_device, image, SETTINGS)
        decoder.arrived(frame, partial(decode_compressed, image, SETTINGS), read_jpeg=read)

    def _on_result(self, result: Result) -> None:
        self.stored.append(isinstance(result.frame.source, JpegFile))
        super()._on_result(result)


class JpegRig(HostRig):
    traffic_type = JpegTraffic
    traffic: JpegTraffic

    def values_of(self, dnn: str) -> list[int]:
        """First values of the images, which are the scores of the results."""
        return [
            round(float(output.scores[0]) * 255)
            for (name, _), published in list(self.traffic.published.items())
            for _, output in list(published)
            if name == dnn
        ]


@pytest.fixture
def make() -> Iterator[Callable[[NodeConfig], JpegRig]]:
    rigs: list[JpegRig] = []

    def make_rig(config: NodeConfig) -> JpegRig:
        rigs.append(JpegRig(compressed(config), build_on_device, pauses_s=(0.0,)))
        return rigs[-1].start()

    yield make_rig
    for rig in rigs:
        rig.close()


def test_the_process_decodes_on_its_device_as_long_as_it_can(
    make: Callable[[NodeConfig], JpegRig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(jpeg_pipelines.FILE, str(tmp_path / "no_jpeg"))
    rig = make(settings("object", "object2", fault_window_s=1.0))
    assert rig.description.decodes_jpeg
    assert set(rig.values_of("object")) == set(rig.values_of("object2")) == {MARK}
    assert all(rig.traffic.stored)
    (tmp_path / "no_jpeg").touch()  # new processes have no decoder from now on
    os.kill(rig.pid(), signal.SIGKILL)
    rig.until(lambda: rig.values_of("object")[-1] == 200, "a result of the pixels")
    assert not rig.host.decodes_jpeg(("object",))
    reasons = {reason for counts in rig.traffic.seen.counted.values() for reason in counts}
    assert reasons <= {"published", "engine_lost", "overwritten"}


def test_a_frame_for_two_devices_is_stored_as_pixels_unless_both_decode(make: Callable[[NodeConfig], JpegRig]) -> None:
    config = settings("object", "object2", cameras=("front", "rear"))
    config.dnns["object"].device, config.dnns["object2"].device = "cpu:1", "cpu:2"
    config.dnns["object"].cameras, config.dnns["object2"].cameras = ["front", "rear"], ["rear"]
    rig = make(config)
    assert (rig.description.device, rig.description.decodes_jpeg) == ("cpu:1, cpu:2", False)
    assert {status.name for status in rig.host.statuses()} == {"engine cpu:1", "engine cpu:2"}
    assert rig.host.decodes_jpeg(("object",))
    assert not rig.host.decodes_jpeg(("object", "object2"))
    rig.until(lambda: {200, MARK} <= set(rig.values_of("object")), "results of both cameras")
    assert set(rig.values_of("object2")) == {200}
