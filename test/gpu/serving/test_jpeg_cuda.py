"""JPEG files decoded by nvJPEG: pixels, order of streams, captured preprocessing, damaged files, the node.

On a CPU: test/serving/test_jpeg_frames.py, with a fake decoder.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import torch
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.backends.agreement import check_agreement
from multi_dnn_ros.backends.jpeg_decoding import JpegDecoder, JpegUnavailable, NvJpeg, make_jpeg_decoder
from multi_dnn_ros.common.errors import FrameError
from multi_dnn_ros.engine import DropReason, Engine, Frame
from multi_dnn_ros.serving import build as build_module
from multi_dnn_ros.serving.build import build
from multi_dnn_ros.serving.descriptions import build_pipeline
from multi_dnn_ros.serving.tasks import Pipeline
from multi_dnn_ros.settings.flat_parameters import to_config
from multi_dnn_ros.vision.image_decoding import ImageSettings, jpeg_for_device
from multi_dnn_ros.vision.jpeg_file import FrameImage, JpegFile

GPU = torch.device("cuda", 0)
WAIT_S = 60.0
PHOTOS = sorted((Path(build_module.__file__).parents[1] / "calibration_images").glob("*.jpg"))
SAMPLING = cv2.IMWRITE_JPEG_SAMPLING_FACTOR
#: Maximum mean difference from OpenCV's pixels, in levels. nvJPEG repeats chroma where OpenCV interpolates it.
DIFFERENCE = 3.0


def checked(data: bytes) -> JpegFile:
    file = jpeg_for_device(SimpleNamespace(format="jpeg", data=data), ImageSettings("front", 1 << 24))
    assert file is not None
    return file.copy()  # in writable memory, as in a slot


def encoded(pixels: npt.NDArray[np.uint8], *options: int) -> JpegFile:
    return checked(cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 92, *options])[1].tobytes())


def picture(height: int, width: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """A smooth image with a little noise; values change by a level per pixel on average."""
    rng = np.random.default_rng(seed)
    rows, columns = height // 48 + 2, width // 48 + 2
    low = rng.integers(40, 216, (rows, columns, 3), dtype=np.uint8)
    enlarged = cv2.resize(low, (48 * columns, 48 * rows), interpolation=cv2.INTER_LINEAR)
    smooth = enlarged[24 : 24 + height, 24 : 24 + width].astype(np.int64)
    return np.clip(smooth + rng.integers(-3, 4, smooth.shape), 0, 255).astype(np.uint8)


def on_host(decoder: JpegDecoder, file: JpegFile) -> npt.NDArray[np.uint8]:
    decoded = decoder(file, "front")
    assert decoded is not None
    image, complete = decoded
    assert (image.device, image.dtype, image.shape) == (GPU, torch.uint8, (file.height, file.width, 3))
    assert image.is_contiguous()
    assert complete is not None
    complete.synchronize()
    pixels: npt.NDArray[np.uint8] = image.cpu().numpy()
    return pixels


def difference(decoder: JpegDecoder, file: JpegFile) -> float:
    return float(np.abs(on_host(decoder, file).astype(np.float32) - file.decode()).mean())


@pytest.fixture(scope="module")
def decoder() -> JpegDecoder:
    try:
        return make_jpeg_decoder(GPU)
    except JpegUnavailable as error:
        pytest.skip(f"JPEG files cannot be decoded on this GPU: {error}")


@pytest.mark.parametrize(
    "options",
    [
        *[(SAMPLING, factor) for factor in (0x111111, 0x121111, 0x211111, 0x221111, 0x411111)],
        (cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
        (cv2.IMWRITE_JPEG_RST_INTERVAL, 4),
        (cv2.IMWRITE_JPEG_OPTIMIZE, 1),
    ],
)
@pytest.mark.parametrize("size", [(480, 640), (361, 479), (33, 17), (720, 1280)])
def test_pixels_are_those_of_opencv(decoder: JpegDecoder, options: tuple[int, int], size: tuple[int, int]) -> None:
    assert difference(decoder, encoded(picture(*size), *options)) < DIFFERENCE


@pytest.mark.parametrize("size", [(480, 640), (101, 77)])
def test_grey_images_have_three_equal_channels(decoder: JpegDecoder, size: tuple[int, int]) -> None:
    file = encoded(picture(*size)[:, :, 1].copy())
    pixels = on_host(decoder, file)
    np.testing.assert_array_equal(pixels[:, :, 0], pixels[:, :, 1])
    np.testing.assert_array_equal(pixels[:, :, 0], pixels[:, :, 2])
    assert difference(decoder, file) < 1.0


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (7, 1), (8, 8)])
def test_tiny_images_are_decoded_or_left_to_opencv(decoder: JpegDecoder, size: tuple[int, int]) -> None:
    file = encoded(np.full((*size, 3), 90, np.uint8))
    tensor = Frame("front", 0, file, jpeg_decoder=decoder).tensor(GPU)
    np.testing.assert_allclose(tensor.cpu().numpy().astype(int), file.decode().astype(int), atol=3)


def test_road_photos(decoder: JpegDecoder) -> None:
    assert len(PHOTOS) >= 8
    differences = [difference(decoder, checked(photo.read_bytes())) for photo in PHOTOS]
    assert max(differences) < DIFFERENCE
    assert np.mean(differences) < 2.0


def test_streams_wait_for_the_image_and_its_memory_is_not_used_too_early(decoder: JpegDecoder) -> None:
    """Two threads decode, and read each image late on a stream of their own, when it is referenced no more."""
    files = [encoded(picture(360, 480, seed)) for seed in range(4)]
    expected = [torch.from_numpy(on_host(decoder, file)) for file in files]
    torch.cuda.synchronize(GPU)
    found: dict[tuple[int, int], torch.Tensor] = {}
    errors: list[BaseException] = []

    def read(thread: int) -> None:
        try:
            stream = torch.cuda.Stream(GPU)
            with torch.cuda.stream(stream):
                for number in range(60):
                    frame = Frame("front", 0, files[(thread + number) % 4], jpeg_decoder=decoder)
                    frame.decode_for(GPU)
                    torch.cuda._sleep(1_000_000)
                    found[thread, number] = frame.tensor(GPU).clone()
                    del frame
            stream.synchronize()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(thread,)) for thread in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT_S)
    assert errors == []
    assert len(found) == 120
    for (thread, number), image in found.items():
        torch.testing.assert_close(image.cpu(), expected[(thread + number) % 4], rtol=0, atol=0)


def test_decoding_does_not_take_more_and_more_memory(decoder: JpegDecoder) -> None:
    files = [encoded(picture(720, 1280, seed)) for seed in range(4)]

    def decode(count: int) -> int:
        for number in range(count):
            Frame("front", 0, files[number % 4], jpeg_decoder=decoder).tensor(GPU)
        torch.cuda.synchronize(GPU)
        free, _ = torch.cuda.mem_get_info(GPU)
        return free

    before = decode(20)
    assert decode(200) > before - (64 << 20)
    assert torch.cuda.memory_reserved(GPU) < 2 << 30


def test_damaged_files_do_not_harm_later_ones(decoder: JpegDecoder) -> None:
    whole = encoded(picture(240, 320))
    good = on_host(decoder, whole)
    rng = np.random.default_rng(1)
    scan = whole.data.tobytes().index(b"\xff\xda") + 14
    for number in range(60):
        data = whole.data.copy()
        for at in rng.integers(scan, len(data) - 2, 1 + number % 5):
            data[at] = rng.integers(0, 255)
        with contextlib.suppress(FrameError):
            Frame("front", 0, checked(data.tobytes()), jpeg_decoder=decoder).tensor(GPU)
        torch.cuda.synchronize(GPU)
    np.testing.assert_array_equal(on_host(decoder, whole), good)


def impossible() -> JpegFile:
    """A file whose Huffman tables no decoder accepts."""
    data = encoded(picture(240, 320)).data.copy()
    table = data.tobytes().index(b"\xff\xc4")
    data[table + 5 : table + 21] = 255
    return checked(data.tobytes())


@pytest.fixture(scope="module", params=[True, False], ids=["captured", "eager"])
def pipeline(request: pytest.FixtureRequest) -> Pipeline:
    """lane and object, with and without captured preprocessing; their results are the raw outputs."""
    flat = {"device": "cuda:0", "dnns": ["lane", "object"]}
    config = to_config(flat)
    for dnn in config.dnns.values():
        dnn.capture_preprocess = request.param
    built = build(config)
    tasks = [
        replace(task, decode=lambda outputs, size: tuple(output.clone() for output in outputs)) for task in built.tasks
    ]
    return replace(built, tasks=tuple(tasks))


def answers(pipeline: Pipeline, images: list[FrameImage], decoder: JpegDecoder) -> tuple[dict[Any, Tensors], list[Any]]:
    """Results by DNN and number of the image, and the drops."""
    results: dict[Any, Tensors] = {}
    drops: list[Any] = []
    engine = Engine(
        pipeline.tasks,
        workers=2,
        device=pipeline.device,
        on_result=lambda result: results.__setitem__((result.dnn, result.frame.stamp_ns), result.output),
        on_drop=drops.append,
    )
    engine.start()
    for number, image in enumerate(images):
        assert engine.submit(Frame("front", number, image, jpeg_decoder=decoder), WAIT_S)
    assert engine.wait_idle(WAIT_S)
    assert engine.stop(WAIT_S) == []
    return results, drops


def test_results_are_those_of_the_same_pixels(pipeline: Pipeline, decoder: JpegDecoder) -> None:
    files = [encoded(picture(*((240, 320), (360, 480))[number % 2], number % 5)) for number in range(30)]
    from_files, drops = answers(pipeline, list(files), decoder)
    from_pixels, _ = answers(pipeline, [on_host(decoder, file) for file in files], decoder)
    assert drops == []
    assert len(from_files) == 60
    for key, right in from_pixels.items():
        check_agreement(from_files[key], right, 1e-3)


def test_a_file_that_nobody_can_decode_is_a_counted_drop(pipeline: Pipeline, decoder: JpegDecoder) -> None:
    good = encoded(picture(240, 320))
    results, drops = answers(pipeline, [good, impossible(), good], decoder)
    assert sorted(number for _, number in results) == [0, 0, 2, 2]
    assert [drop.reason for drop in drops] == [DropReason.BAD_IMAGE] * 2
    assert drops[0].message.startswith("data cannot be decoded")


def test_a_file_that_nvjpeg_rejects_is_decoded_with_opencv(pipeline: Pipeline) -> None:
    decode = NvJpeg(GPU)
    good = encoded(picture(240, 320))

    def reject(file: JpegFile) -> Any:
        decode(good)
        raise RuntimeError("Failed to decode jpeg stream: 5")

    file = encoded(picture(240, 320, 3))
    from_file, _ = answers(pipeline, [file], JpegDecoder(reject))
    from_pixels, _ = answers(pipeline, [file.decode()], JpegDecoder(reject))
    for key, right in from_pixels.items():
        check_agreement(from_file[key], right, 1e-3)


def test_the_node(bench: Any, decoder: JpegDecoder) -> None:
    bench.node(
        {
            "isolation": "process",
            "device": "cuda:0",
            "camera.front.transport": "compressed",
            "camera.front.jpeg_decoder": "gpu",
        },
        build=build_pipeline,
    )
    assert bench.change("configure")
    assert bench.change("activate")
    heard = bench.listen("/multi_dnn/front/object/detections", Detection2DArray)
    camera = bench.camera("/front/image_raw/compressed", CompressedImage)
    for number, photo in enumerate(PHOTOS[:8], start=1):
        camera.publish(CompressedImage(header=_header(number), format="jpeg", data=photo.read_bytes()))
        bench.until(lambda number=number: len(heard) >= number, f"result {number}")
    assert [message.header.stamp.sec for message in heard] == list(range(1, 9))
    assert any(message.detections for message in heard)
    camera.publish(CompressedImage(header=_header(9), format="jpeg", data=impossible().data.tobytes()))
    bench.until(lambda: bench.status("object on front").by_key.get("dropped: bad_image") == "1", "the drop")
    camera.publish(CompressedImage(header=_header(10), format="jpeg", data=PHOTOS[0].read_bytes()))
    bench.until(lambda: len(heard) == 9, "the result after the drop")
    assert bench.change("deactivate")
    assert bench.change("cleanup")


def _header(stamp: int) -> Any:
    header = Header()
    header.stamp.sec = stamp
    return header
