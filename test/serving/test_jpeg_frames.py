"""JPEG files in the slots: decoded once by the engine, on the device if it can; a fake decoder stands for the GPU's."""

from __future__ import annotations

import array
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import jpeg_pipelines
import numpy as np
import numpy.typing as npt
import pytest
import torch
from engine_fakes import WAIT, Gate, Recorder, task
from engine_rig import Rig, same
from fake_host import Ends, FakeClock, FakeHost
from fake_pipelines import settings
from host_rig import HostRig
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from jpeg_pipelines import FAILING_WIDTH, MARK, build_on_device

from multi_dnn_ros.backends import jpeg_decoding
from multi_dnn_ros.backends.jpeg_decoding import JPEG_DECODERS, JpegDecoder, JpegUnavailable, make_jpeg_decoder
from multi_dnn_ros.benchmark.host_traffic import HostTraffic
from multi_dnn_ros.common.jpeg_file import JpegFile
from multi_dnn_ros.engine import DropReason, Engine, Frame, Result
from multi_dnn_ros.engine.image_thread import ImageThread
from multi_dnn_ros.engine.observer import NullObserver
from multi_dnn_ros.engine.policies import make_policy
from multi_dnn_ros.engine.queue import JobQueue
from multi_dnn_ros.serving import wire
from multi_dnn_ros.serving.accounts import Accounts
from multi_dnn_ros.serving.camera_decoder import CameraDecoder
from multi_dnn_ros.serving.engine_reports import StatusObserver
from multi_dnn_ros.serving.host import ConfigureError
from multi_dnn_ros.serving.local_host import LocalHost
from multi_dnn_ros.serving.shared_status import SharedStatus, create_status_memory
from multi_dnn_ros.serving.supervision.hang_detector import HangDetector
from multi_dnn_ros.serving.supervision.states import Phase, ProcessState
from multi_dnn_ros.settings.schema import NodeConfig
from multi_dnn_ros.vision.image_decoding import decode_compressed, jpeg_for_device

CPU = torch.device("cpu")
MAX_PIXELS = 1280 * 720


def message(value: int = 200, size: tuple[int, int] = (48, 64), extension: str = ".jpg") -> Any:
    """A CompressedImage full of `value`."""
    return encoded(np.full((*size, 3), value, np.uint8), extension)


def encoded(pixels: npt.NDArray[np.uint8], extension: str = ".jpg", *options: int) -> Any:
    data = cv2.imencode(extension, pixels, options)[1]
    return SimpleNamespace(format=extension, data=array.array("B", data.tobytes()))


def damaged(size: tuple[int, int] = (48, 64)) -> Any:
    """A file that passes the checks of its header, and that no decoder can read: its Huffman tables are impossible."""
    whole = message(200, size)
    table = bytes(whole.data).index(b"\xff\xc4")
    whole.data[table + 5 : table + 21] = array.array("B", [255] * 16)
    return whole


def jpeg(*arguments: Any) -> JpegFile:
    file = jpeg_for_device(message(*arguments), MAX_PIXELS)
    assert file is not None
    return file


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


# -- one frame in the engine


class Waiting:
    """A decoder that waits for `go`, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, file: JpegFile) -> jpeg_decoding.Decoded:
        self.calls += 1
        self.begun.set()
        assert self.go.wait(WAIT)
        return torch.from_numpy(file.decode()), None


def test_frames_are_decoded_once_for_all_dnns_and_keep_their_order() -> None:
    decode, recorder = Waiting(), Recorder()
    decoder = JpegDecoder(decode)
    engine = Engine([task("a"), task("b", cameras=("front", "rear"))], **recorder.callbacks(), workers=2)
    engine.start()
    engine.offer(Frame("front", 0, jpeg(), 0, jpeg_decoder=decoder))
    assert decode.begun.wait(WAIT)
    pixels = np.zeros((48, 64, 3), np.uint8)
    engine.offer(Frame("front", 1, pixels, 1))  # needs no decoding, but must not overtake frame 0
    engine.offer(Frame("rear", 2, pixels, 2))
    deadline = time.monotonic() + WAIT
    while not recorder.results:  # the other camera is not delayed
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert not engine.wait_idle(0.0)
    decode.go.set()
    assert engine.stop(WAIT, drain=True) == []
    assert decode.calls == 1
    assert recorder.results[0].frame.context == 2
    ends = {(end.dnn, end.frame.context) for end in (*recorder.results, *recorder.drops)}
    assert ends == {("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)}
    for dnn in ("a", "b"):
        front = [
            result.frame.context for result in recorder.results if (result.dnn, result.frame.camera) == (dnn, "front")
        ]
        assert front == sorted(front)
        assert front[-1] == 1
    assert all(drop.reason is DropReason.OVERWRITTEN and drop.frame.context == 0 for drop in recorder.drops)


def test_the_time_of_decoding_is_counted() -> None:
    def slow(file: JpegFile) -> jpeg_decoding.Decoded:
        time.sleep(0.05)
        return torch.from_numpy(file.decode()), None

    recorder = Recorder()
    engine = Engine([task("a")], **recorder.callbacks())
    engine.start()
    engine.offer(Frame("front", 0, jpeg(), jpeg_decoder=JpegDecoder(slow)))
    engine.stop(WAIT, drain=True)
    (result,) = recorder.results
    assert result.timing.decode_ns >= 50_000_000
    assert result.timing.pre_ns < 50_000_000


def test_an_engine_stops_in_time_while_an_image_is_being_decoded() -> None:
    decode, recorder = Waiting(), Recorder()
    engine = Engine([task("a"), task("b")], **recorder.callbacks())
    engine.start()
    for number in range(2):
        engine.offer(Frame("front", number, jpeg(), number, jpeg_decoder=JpegDecoder(decode)))
    assert decode.begun.wait(WAIT)
    assert engine.stop(0.3, drain=True) == ["images"]
    expected = sorted((dnn, number, DropReason.SHUTDOWN) for dnn in "ab" for number in range(2))
    assert sorted((drop.dnn, drop.frame.context, drop.reason) for drop in recorder.drops) == expected
    decode.go.set()
    deadline = time.monotonic() + WAIT
    while engine.running_threads():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert len(recorder.drops) == 4  # nothing is counted twice
    engine.offer(Frame("front", 2, jpeg(), 2))
    assert [drop.reason for drop in recorder.drops[4:]] == [DropReason.SHUTDOWN] * 2
    assert not recorder.results


def test_nothing_is_decoded_while_the_queue_is_paused() -> None:
    """CUDA graphs are captured meanwhile."""
    queue = JobQueue(make_policy("fifo", 0), time.monotonic_ns)
    decode = Waiting()
    frame = Frame("front", 0, jpeg(), jpeg_decoder=JpegDecoder(decode))
    passed: list[Frame] = []
    thread = ImageThread(
        CPU, queue, NullObserver(), time.monotonic_ns, lambda frame, dnns: passed.append(frame), lambda *lost: None
    )
    with queue.paused(WAIT):
        thread.put(frame, ("a",))
        assert not decode.begun.wait(0.1)
    assert decode.begun.wait(WAIT)
    with pytest.raises(TimeoutError), queue.paused(0.05):
        pass
    decode.go.set()
    with queue.paused(WAIT):
        assert frame.is_decoded_for(CPU)
    assert thread.wait_idle(WAIT)
    assert passed == [frame]
    thread.close()
    thread.join(WAIT)
    assert not thread.is_alive()


def test_nothing_is_decoded_in_a_pause_that_the_engine_stops_in() -> None:
    queue = JobQueue(make_policy("fifo", 0), time.monotonic_ns)
    decode = Waiting()
    frame = Frame("front", 0, jpeg(), jpeg_decoder=JpegDecoder(decode))
    passed: list[Frame] = []
    thread = ImageThread(
        CPU, queue, NullObserver(), time.monotonic_ns, lambda frame, dnns: passed.append(frame), lambda *lost: None
    )
    with queue.paused(WAIT):
        thread.put(frame, ("a",))
        queue.close()
        assert thread.wait_idle(WAIT)
    assert decode.calls == 0
    assert passed == [frame]  # undecoded, to DNNs that are closed
    thread.close()
    thread.join(WAIT)


def test_of_each_camera_only_the_newest_image_waits_for_its_decoding() -> None:
    decode, recorder = Waiting(), Recorder()
    decoder = JpegDecoder(decode)
    cameras = ("front", "rear")
    engine = Engine([task("a", cameras=cameras), task("b", cameras=cameras)], **recorder.callbacks())
    engine.start()

    def offer(camera: str, number: int, dnns: tuple[str, ...] = ("a", "b")) -> None:
        engine.offer(Frame(camera, number, jpeg(), number, jpeg_decoder=decoder), dnns)

    offer("front", 0)
    assert decode.begun.wait(WAIT)
    offer("front", 1)
    offer("rear", 2)
    offer("front", 3, ("a",))  # 1 is left for b
    offer("front", 4)  # instead of 1 and 3
    assert [(drop.dnn, drop.frame.context, drop.reason) for drop in recorder.drops] == [
        ("a", 1, DropReason.OVERWRITTEN), ("b", 1, DropReason.OVERWRITTEN), ("a", 3, DropReason.OVERWRITTEN)
    ]  # fmt: skip
    decode.go.set()
    assert engine.stop(WAIT, drain=True) == []
    assert decode.calls == 3
    ends = sorted((end.dnn, end.frame.context) for end in (*recorder.results, *recorder.drops))
    assert ends == [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 0), ("b", 1), ("b", 2), ("b", 4)]


def test_images_that_arrive_do_not_hide_a_dnn_that_hangs() -> None:
    """Decoding images of its camera must not count as progress of the DNN, or as a job of it."""
    memory = create_status_memory(("a",))
    status = SharedStatus(("a",), memory)
    os.close(memory)
    gate = Gate()
    engine = Engine([task("a", jobs=1, on_job=lambda index: gate())], on_result=lambda result: None,
                    observer=StatusObserver(status, None))  # type: ignore[arg-type]  # fmt: skip
    engine.start()
    decoder = JpegDecoder(jpeg_pipelines.decode_with_mark)
    assert status.running_jobs() == {}
    engine.offer(Frame("front", 0, jpeg(), 0, jpeg_decoder=decoder))
    gate.wait_for_job()
    since = status.running_jobs()["a"]
    for number in range(1, 6):
        engine.offer(Frame("front", number, jpeg(), number, jpeg_decoder=decoder))
    deadline = time.monotonic() + WAIT
    while len(jpeg_pipelines.decoded) < 2 or status.image_since_ns() is not None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert status.running_jobs() == {"a": since}
    gate.open()
    engine.stop(WAIT)


def test_a_decoder_that_hangs_is_noticed() -> None:
    memory = create_status_memory(("a",))
    status = SharedStatus(("a",), memory)
    os.close(memory)
    decode = Waiting()
    engine = Engine([task("a")], on_result=lambda result: None, observer=StatusObserver(status, None))  # type: ignore[arg-type]
    engine.start()
    engine.offer(Frame("front", 0, jpeg(), jpeg_decoder=JpegDecoder(decode)))
    assert decode.begun.wait(WAIT)
    now = [time.monotonic_ns()]
    detector = HangDetector(5.0, 1e6, lambda: now[0])
    process = ProcessState(0, Phase.SERVING, now[0])
    assert detector.check(process, os.getpid(), status) is None
    for _ in range(10):
        now[0] += 600_000_000
        detector.tick()
    fault = detector.check(process, os.getpid(), status)
    assert fault is not None
    assert "decoding an image takes longer than 5 s" in fault.cause
    assert fault.running == ()  # no DNN is accused
    decode.go.set()
    engine.stop(WAIT, drain=True)
    assert detector.check(process, os.getpid(), status) is None


def test_errors_of_the_device_count_as_failures_of_the_dnn() -> None:
    def fault(file: JpegFile) -> jpeg_decoding.Decoded:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    recorder = Recorder()
    engine = Engine([task("a")], **recorder.callbacks(), max_failures=2)
    engine.start()
    for number in range(3):
        engine.offer(Frame("front", number, jpeg(), number, jpeg_decoder=JpegDecoder(fault)))
        assert engine.wait_idle(WAIT)
    engine.stop(WAIT)
    assert [failure.disabled for failure in recorder.failures] == [False, True]
    assert recorder.drops[0].reason is DropReason.DNN_ERROR
    assert "CUDA error" in recorder.drops[0].message
    assert recorder.drops[2].reason is not DropReason.OVERWRITTEN


@pytest.mark.parametrize("batch", [False, True])
def test_a_damaged_file_drops_its_frame_with_camera_and_reason(batch: bool) -> None:
    recorder = Recorder()
    cameras = ("front", "rear") if batch else ("front",)
    dnn = task("a", cameras=cameras, batches=(2,) if batch else (), batch_delay_ns=50_000_000 if batch else 0)
    engine = Engine([dnn], **recorder.callbacks(), max_failures=1)
    engine.start()
    bad = jpeg_for_device(damaged(), MAX_PIXELS)
    for camera in cameras:
        engine.offer(Frame(camera, 0, bad, 0, jpeg_decoder=JpegDecoder(jpeg_pipelines.decode_with_mark)))
    assert engine.wait_idle(WAIT)
    engine.offer(Frame("front", 1, jpeg(), 1, jpeg_decoder=JpegDecoder(jpeg_pipelines.decode_with_mark)))
    engine.stop(WAIT, drain=True)
    assert [(drop.frame.context, drop.reason) for drop in recorder.drops] == [(0, DropReason.BAD_IMAGE)] * len(cameras)
    assert recorder.drops[0].message.startswith("data cannot be decoded")
    assert [result.frame.context for result in recorder.results] == [1]  # not disabled: the DNN did not fail


def test_a_damaged_file_does_not_affect_the_other_images_of_its_batch() -> None:
    recorder = Recorder()
    dnn = task("a", cameras=("front", "rear", "left"), batches=(2, 4), batch_delay_ns=500_000_000)
    engine = Engine([dnn], **recorder.callbacks())
    engine.start()
    decoder = JpegDecoder(jpeg_pipelines.decode_with_mark)
    for camera, file in (("front", jpeg(50)), ("rear", jpeg_for_device(damaged(), MAX_PIXELS)), ("left", jpeg(90))):
        engine.offer(Frame(camera, 0, file, jpeg_decoder=decoder))
    engine.stop(WAIT, drain=True)
    assert [(drop.frame.camera, drop.reason) for drop in recorder.drops] == [("rear", DropReason.BAD_IMAGE)]
    values = {result.frame.camera: round(result.output[0]) for result in recorder.results}
    assert values == {"front": 52, "left": 92}  # each of the two jobs adds 1


def test_a_file_is_decoded_with_opencv_if_the_device_fails_which_is_logged_once_per_camera(
    caplog: pytest.LogCaptureFixture,
) -> None:
    decoder = JpegDecoder(jpeg_pipelines.decode_with_mark)
    for camera in ("front", "front", "rear"):
        file = jpeg(200, (48, FAILING_WIDTH))
        tensor = Frame(camera, 0, file, jpeg_decoder=decoder).tensor(CPU)
        np.testing.assert_array_equal(tensor.numpy(), file.decode())
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text.split(":")[0] for text in warnings] == ["camera front", "camera rear"]
    assert "nvJPEG status 5" in warnings[0]


def test_a_failure_of_the_device_is_not_hidden() -> None:
    def fault(file: JpegFile) -> jpeg_decoding.Decoded:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="CUDA error"):
        Frame("front", 0, jpeg(), jpeg_decoder=JpegDecoder(fault)).decode_for(CPU)


# -- which devices can


def test_a_device_is_tried_with_a_small_file() -> None:
    assert make_jpeg_decoder(CPU)(jpeg(), "front") is not None
    JPEG_DECODERS["cpu"] = lambda device: jpeg_pipelines.decode_wrongly
    with pytest.raises(JpegUnavailable, match=r"differs from OpenCV's by \d+\.\d levels"):
        make_jpeg_decoder(CPU)
    del JPEG_DECODERS["cpu"]
    with pytest.raises(JpegUnavailable, match="device cpu decodes no JPEG files"):
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
    host = LocalHost(build_on_device)
    assert host.configure(config, lambda progress: None).decodes_jpeg is used
    assert host.decodes_jpeg("front", ("object",)) is used
    host.close()


def test_a_device_that_cannot_is_an_error_if_the_parameter_requires_it() -> None:
    config = compressed(settings("object"), "gpu")
    config.device = "cpu:2"
    host = LocalHost(build_on_device)
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
        self.host.accounts = Accounts({"object": ("front",), "lane": ("front",)}, self.ends.callbacks(), FakeClock())
        self.host.on_device = {"object", "lane"}
        self.decoder = CameraDecoder("front", self.host, self.host.accounts, self.bad.append)  # type: ignore[arg-type]
        self.decoder.start()

    def send(self, image: Any) -> Any:
        """The offered image; None if it could not be decoded."""
        offered, bad = len(self.host.offered), len(self.bad)
        self.decoder.arrived(
            Frame("front", 0),
            partial(decode_compressed, image, MAX_PIXELS),
            read_jpeg=partial(jpeg_for_device, image, MAX_PIXELS),
        )
        deadline = time.monotonic() + WAIT
        while len(self.host.offered) == offered and len(self.bad) == bad:
            assert time.monotonic() < deadline
            time.sleep(0.001)
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
    np.testing.assert_array_equal(camera.send(image), decode_compressed(image, MAX_PIXELS))


def test_png_and_files_that_are_too_large_are_decoded_here(camera: Camera) -> None:
    image = message(extension=".png")
    np.testing.assert_array_equal(camera.send(image), decode_compressed(image, MAX_PIXELS))
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
        file = jpeg_for_device(image, MAX_PIXELS)
        assert file is not None
        from_pixels = cpu_engine.outcomes_of(decode_compressed(image, MAX_PIXELS))["object"]
        from_file = cpu_engine.outcomes_of(file)["object"]
        assert same(from_file, from_pixels), (from_file, from_pixels)

    check()


def test_a_damaged_file_in_a_slot_is_a_counted_drop(cpu_engine: Rig) -> None:
    file = jpeg_for_device(damaged(), MAX_PIXELS)
    assert file is not None
    dropped = cpu_engine.outcomes_of(file)["object"]
    assert dropped.reason is DropReason.BAD_IMAGE
    assert dropped.message.startswith("data cannot be decoded")
    assert not isinstance(cpu_engine.outcomes_of(jpeg())["object"], wire.FrameDropped)
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
            partial(decode_compressed, image, MAX_PIXELS),
            read_jpeg=partial(jpeg_for_device, image, MAX_PIXELS),
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
    config.dnns["object"].device, config.dnns["object2"].device = ["cpu:1"], ["cpu:2"]
    config.dnns["object"].cameras, config.dnns["object2"].cameras = ["front", "rear"], ["rear"]
    rig = make(config).start()
    assert not rig.description.decodes_jpeg
    assert rig.host.decodes_jpeg("front", ("object",))
    assert not rig.host.decodes_jpeg("rear", ("object", "object2"))
    assert rig.host.decodes_jpeg("rear", ("object",))
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
    assert not rig.host.decodes_jpeg("front", ("object",))
    file.unlink()
    rig.wait_results(count=45)  # for longer than fault_window_s
    os.kill(rig.pid(), signal.SIGKILL)
    rig.wait_value("object", MARK)
    reasons = {reason for counts in rig.traffic.seen.counted.values() for reason in counts}
    assert reasons <= {"published", "engine_lost", "overwritten"}
