"""JPEG files in the slots: decoded once by the engine, on the device if it can; a fake decoder stands for the GPU's."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import jpeg_pipelines
import numpy as np
import pytest
import torch
from engine_fakes import WAIT
from engine_rig import Rig, same
from fake_host import Ends, FakeClock, FakeHost
from fake_pipelines import settings
from host_rig import HostRig
from host_traffic import HostTraffic
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from jpeg_files import SETTINGS, damaged, encoded, jpeg, message
from jpeg_pipelines import MARK, build_on_device
from waiting import until

from multi_dnn_ros.backends import jpeg_decoding
from multi_dnn_ros.backends.jpeg_decoding import JPEG_DECODERS, JpegUnavailable, make_jpeg_decoder
from multi_dnn_ros.engine import DropReason, Frame, Result
from multi_dnn_ros.serving import messages
from multi_dnn_ros.serving.camera_decoder import CameraDecoder
from multi_dnn_ros.serving.descriptions import ConfigureError
from multi_dnn_ros.serving.host import Host
from multi_dnn_ros.serving.ledger import DnnSettings, Ledger
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.image_decoding import decode_compressed, jpeg_for_device
from multi_dnn_ros.vision.jpeg_file import JpegFile

CPU = torch.device("cpu")


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
    jpeg_pipelines.decoded.clear()


# -- which devices can


def test_a_device_is_tried_with_a_small_file() -> None:
    assert make_jpeg_decoder(CPU)(jpeg(), "front") is not None
    JPEG_DECODERS["cpu"] = lambda device: jpeg_pipelines.decode_wrongly
    with pytest.raises(JpegUnavailable, match=r"differs from OpenCV's by \d+\.\d levels"):
        make_jpeg_decoder(CPU)
    del JPEG_DECODERS["cpu"]
    with pytest.raises(JpegUnavailable, match="device cpu cannot decode JPEG files"):
        make_jpeg_decoder(CPU)


@pytest.mark.parametrize(
    ("transport", "mode", "can", "used"),
    [
        ("compressed", "auto", True, True),
        ("compressed", "gpu", True, True),
        ("compressed", "cpu", True, False),
        ("raw", "auto", True, False),
        ("raw", "gpu", False, False),
        ("compressed", "auto", False, False),
    ],
)
def test_the_description_says_whether_the_engine_decodes_jpeg(transport: str, mode: str, can: bool, used: bool) -> None:
    config = compressed(settings("object"), mode)
    config.cameras["front"].transport = transport  # type: ignore[assignment]
    config.device = "cpu:1" if can else "cpu:2"
    config.isolation = "none"
    host = Host(build_on_device)
    assert host.configure(config, lambda progress: None).decodes_jpeg is used
    host.close()


def test_a_device_that_cannot_is_an_error_if_the_parameter_requires_it() -> None:
    config = compressed(settings("object"), "gpu")
    config.device, config.isolation = "cpu:2", "none"
    host = Host(build_on_device)
    with pytest.raises(
        ConfigureError, match=r"camera.front.jpeg_decoder is 'gpu'.*cpu.*allowed there: auto, cpu"
    ) as found:
        host.configure(config, lambda progress: None)
    assert found.value.expected
    host.close()


# -- the thread of the camera


class Camera:
    """A CameraDecoder of a fake host whose DNN `object` has a device that decodes."""

    def __init__(self) -> None:
        self.host, self.ends, self.bad = FakeHost(), Ends(), []  # type: ignore[var-annotated]
        dnns = {dnn: DnnSettings(("front",)) for dnn in ("object", "lane")}
        self.host.ledger = Ledger(dnns, self.ends.callbacks(), FakeClock())
        self.host.on_device = {"object", "lane"}
        self.decoder = CameraDecoder("front", self.host, self.host.ledger, self.bad.append)  # type: ignore[arg-type]
        self.decoder.start()

    def send(self, image: Any) -> Any:
        """The offered image; None if it could not be decoded."""
        offered, bad = len(self.host.offered), len(self.bad)
        self.decoder.arrived(
            Frame("front", 0),
            partial(decode_compressed, image, SETTINGS),
            read_jpeg=partial(jpeg_for_device, image, SETTINGS),
        )
        until(lambda: len(self.host.offered) > offered or len(self.bad) > bad, "what became of the image", WAIT)
        for dnn in ("object", "lane"):
            if len(self.host.offered) > offered:
                self.host.answer(dnn)
        return self.host.offered[-1][1].source if len(self.host.offered) > offered else None


@pytest.fixture
def camera() -> Iterator[Camera]:
    made = Camera()
    yield made
    made.decoder.close(WAIT)


def test_the_file_is_stored_if_every_dnn_has_a_device_that_decodes_it(camera: Camera) -> None:
    image = message()
    stored = camera.send(image)
    assert isinstance(stored, JpegFile)
    assert (stored.height, stored.width, stored.data.tobytes()) == (48, 64, image.data.tobytes())
    camera.host.on_device.discard("lane")
    np.testing.assert_array_equal(camera.send(image), decode_compressed(image, SETTINGS))


def test_png_and_files_that_are_too_large_are_decoded_here(camera: Camera) -> None:
    image = message(extension=".png")
    np.testing.assert_array_equal(camera.send(image), decode_compressed(image, SETTINGS))
    camera.host.file_bytes = 100
    assert isinstance(camera.send(message()), np.ndarray)


def test_a_truncated_file_is_found_before_it_is_stored(camera: Camera) -> None:
    image = message()
    image.data = image.data[:-40]
    assert camera.send(image) is None
    assert "truncated JPEG" in str(camera.bad[0])


# -- engine processes


@pytest.fixture
def cpu_engine() -> Iterator[Rig]:
    """An engine process without a decoder, serving."""
    rig = Rig(settings("object"), modules=("jpeg_pipelines",))
    yield rig.serve(jpeg_pipelines.build_with_sums)
    rig.close()


def test_a_process_without_a_decoder_gives_the_same_result_for_the_file_as_for_the_pixels(cpu_engine: Rig) -> None:
    @hypothesis_settings(max_examples=25, deadline=None)
    @given(
        height=st.integers(1, 80),
        width=st.integers(1, 80),
        seed=st.integers(0, 999),
        grey=st.booleans(),
        quality=st.integers(1, 100),
    )
    def check(height: int, width: int, seed: int, grey: bool, quality: int) -> None:
        shape = (height, width) if grey else (height, width, 3)
        values = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
        image = encoded(values, ".jpg", cv2.IMWRITE_JPEG_QUALITY, quality)
        file = jpeg_for_device(image, SETTINGS)
        assert file is not None
        from_pixels = cpu_engine.outcomes_of(decode_compressed(image, SETTINGS))["object"]
        from_file = cpu_engine.outcomes_of(file)["object"]
        assert same(from_file, from_pixels), (from_file, from_pixels)

    check()


def test_a_damaged_file_in_a_slot_is_a_counted_drop(cpu_engine: Rig) -> None:
    file = jpeg_for_device(damaged(), SETTINGS)
    assert file is not None
    dropped = cpu_engine.outcomes_of(file)["object"]
    assert dropped.reason is DropReason.BAD_IMAGE
    assert dropped.message.startswith("data cannot be decoded")
    assert not isinstance(cpu_engine.outcomes_of(jpeg())["object"], messages.FrameDropped)
    assert cpu_engine.failures() == []


class Traffic(HostTraffic):
    """Delivers JPEG files. scores: those of the results, as the first values of their images, by stream."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.values: dict[str, list[int]] = {}
        self.stored: list[bool] = []

    def _deliver(self, decoder: CameraDecoder, frame: Frame) -> None:
        image = message()
        decoder.arrived(
            frame,
            partial(decode_compressed, image, SETTINGS),
            read_jpeg=partial(jpeg_for_device, image, SETTINGS),
        )

    def _on_result(self, result: Result) -> None:
        self.values.setdefault(result.dnn, []).append(round(float(result.output.scores[0]) * 255))
        self.stored.append(isinstance(result.frame.source, JpegFile))
        super()._on_result(result)


class JpegRig(HostRig):
    traffic: Traffic

    def _new_traffic(self) -> Traffic:
        return Traffic(self.host, self.description, self.rates, self._picture, self.config.stop_timeout_s)

    def wait_value(self, dnn: str, value: int) -> None:
        self.until(lambda: self.traffic.values.get(dnn, [0])[-1] == value, f"value {value} from {dnn}")


@pytest.fixture
def make() -> Iterator[Callable[[NodeConfig], JpegRig]]:
    rigs: list[JpegRig] = []

    def make_rig(config: NodeConfig) -> JpegRig:
        rigs.append(JpegRig(compressed(config), build_on_device, restart_s=(0.0,)))
        return rigs[-1]

    yield make_rig
    for rig in rigs:
        rig.close()


def test_the_process_decodes_on_its_device(make: Callable[[NodeConfig], JpegRig]) -> None:
    rig = make(settings("object", "object2")).start()
    assert rig.description.decodes_jpeg
    assert set(rig.traffic.values["object"]) == set(rig.traffic.values["object2"]) == {MARK}
    assert all(rig.traffic.stored)


def test_a_frame_for_two_devices_is_stored_as_pixels_unless_both_decode(make: Callable[[NodeConfig], JpegRig]) -> None:
    config = settings("object", "object2", cameras=("front", "rear"))
    config.dnns["object"].device, config.dnns["object2"].device = "cpu:1", "cpu:2"
    config.dnns["object"].cameras, config.dnns["object2"].cameras = ["front", "rear"], ["rear"]
    rig = make(config).start()
    assert not rig.description.decodes_jpeg
    assert rig.host.decodes_jpeg(("object",))
    assert not rig.host.decodes_jpeg(("object", "object2"))
    rig.until(lambda: {200, MARK} <= set(rig.traffic.values["object"]), "results of both cameras")
    assert set(rig.traffic.values["object2"]) == {200}


def test_a_process_that_replaces_a_lost_one_may_have_no_decoder(
    make: Callable[[NodeConfig], JpegRig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "no_jpeg"
    monkeypatch.setenv(jpeg_pipelines.FILE, str(file))
    rig = make(settings("object", fault_window_s=1.0)).start()
    rig.wait_value("object", MARK)
    jpeg_pipelines.withdraw(file)
    os.kill(rig.pid(), signal.SIGKILL)
    rig.wait_value("object", 200)
    assert not rig.host.decodes_jpeg(("object",))
    file.unlink()
    rig.wait_results(count=45)  # for longer than fault_window_s
    os.kill(rig.pid(), signal.SIGKILL)
    rig.wait_value("object", MARK)
    reasons = {reason for counts in rig.traffic.seen.counted.values() for reason in counts}
    assert reasons <= {"published", "engine_lost", "overwritten"}
