"""The thread of an engine that decodes JPEG files: order, newest images, stopping, failures. Decoders are fakes."""

from __future__ import annotations

import logging
import os
import threading
import time

import jpeg_pipelines
import numpy as np
import pytest
import torch
from engine_fakes import WAIT, Gate, Recorder, task
from jpeg_files import SETTINGS, damaged, jpeg
from jpeg_pipelines import FAILING_WIDTH
from waiting import until

from multi_dnn_ros.backends import jpeg_decoding
from multi_dnn_ros.backends.jpeg_decoding import JpegDecoder
from multi_dnn_ros.common.jpeg_file import JpegFile
from multi_dnn_ros.engine import DropReason, Engine, Frame
from multi_dnn_ros.engine.image_thread import ImageThread
from multi_dnn_ros.engine.observer import NullObserver
from multi_dnn_ros.engine.policies import make_policy
from multi_dnn_ros.engine.queue import JobQueue
from multi_dnn_ros.serving.engine_state import EngineState, JobObserver, create_state_memory
from multi_dnn_ros.vision.image_decoding import jpeg_for_device

CPU = torch.device("cpu")


def _ignore(error: BaseException) -> None:
    pass


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
    until(lambda: recorder.results, "a result of the other camera, which is not delayed", WAIT)
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
    until(lambda: not engine.running_threads(), "the end of the threads", WAIT)
    assert len(recorder.drops) == 4  # nothing is counted twice
    engine.offer(Frame("front", 2, jpeg(), 2))
    assert [drop.reason for drop in recorder.drops[4:]] == [DropReason.SHUTDOWN] * 2
    assert not recorder.results


def image_thread(queue: JobQueue, passed: list[Frame]) -> ImageThread:
    return ImageThread(
        CPU, queue, NullObserver(), time.monotonic_ns, lambda frame, dnns: passed.append(frame), lambda *lost: None
    )


def test_nothing_is_decoded_while_the_queue_is_paused() -> None:
    """CUDA graphs are captured meanwhile."""
    queue, decode = JobQueue(make_policy("fifo", 0), time.monotonic_ns), Waiting()
    passed: list[Frame] = []
    frame = Frame("front", 0, jpeg(), jpeg_decoder=JpegDecoder(decode))
    thread = image_thread(queue, passed)
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
    queue, decode = JobQueue(make_policy("fifo", 0), time.monotonic_ns), Waiting()
    passed: list[Frame] = []
    frame = Frame("front", 0, jpeg(), jpeg_decoder=JpegDecoder(decode))
    thread = image_thread(queue, passed)
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


def shared_status() -> EngineState:
    """The state of an engine with one DNN, a."""
    memory = create_state_memory(("a",))
    status = EngineState(("a",), memory)
    os.close(memory)
    return status


def test_images_that_arrive_do_not_hide_a_dnn_that_hangs() -> None:
    """Decoding images of its camera must not count as progress of the DNN, or as a job of it."""
    status = shared_status()
    gate = Gate()
    jpeg_pipelines.decoded.clear()
    engine = Engine([task("a", jobs=1, on_job=lambda index: gate())], on_result=lambda result: None,
                    observer=JobObserver(status, _ignore))  # fmt: skip
    engine.start()
    decoder = JpegDecoder(jpeg_pipelines.decode_with_mark)
    assert status.running_jobs() == {}
    engine.offer(Frame("front", 0, jpeg(), 0, jpeg_decoder=decoder))
    gate.wait_for_job()
    since = status.running_jobs()["a"]
    for number in range(1, 6):
        engine.offer(Frame("front", number, jpeg(), number, jpeg_decoder=decoder))
    until(lambda: len(jpeg_pipelines.decoded) >= 2 and not status.image_ns(), "decoded images", WAIT)
    assert status.running_jobs() == {"a": since}
    gate.open()
    engine.stop(WAIT)


def test_a_decoder_that_hangs_is_noticed() -> None:
    status = shared_status()
    decode = Waiting()
    engine = Engine([task("a")], on_result=lambda result: None, observer=JobObserver(status, _ignore))
    engine.start()
    engine.offer(Frame("front", 0, jpeg(), jpeg_decoder=JpegDecoder(decode)))
    assert decode.begun.wait(WAIT)
    assert status.image_ns()  # the hang detector compares it with job_timeout_s
    assert status.running_jobs() == {}  # no DNN is accused
    decode.go.set()
    engine.stop(WAIT, drain=True)
    assert not status.image_ns()


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
    bad = jpeg_for_device(damaged(), SETTINGS)
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
    for camera, file in (("front", jpeg(50)), ("rear", jpeg_for_device(damaged(), SETTINGS)), ("left", jpeg(90))):
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
