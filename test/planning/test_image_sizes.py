"""The fit check with the cameras' real image sizes, image decoding, and batched DNNs."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.engine import DnnTask, Engine
from multi_dnn_ros.pipeline.build import build
from multi_dnn_ros.pipeline.fit_check import ASSUMED_SIZE, measure_fit
from multi_dnn_ros.planning.fit import LIMIT, Decoding, Demand, check_fit
from multi_dnn_ros.planning.image_costs import decode_ms, preprocess_ms
from multi_dnn_ros.planning.image_sizes import CameraLoad, Fit, ObservedSizes, megapixels
from multi_dnn_ros.planning.service import measure_services
from multi_dnn_ros.settings.flat_parameters import to_config

CPU = torch.device("cpu")
VGA, HD, FULL_HD = (640, 480), (1280, 720), (1920, 1080)


def fit(*, hz: float = 10.0, gpu: bool = False, known: bool = False, **demand: float) -> Fit:
    """A DNN that takes 20 ms for VGA images plus 10 ms per additional megapixel; a JPEG takes 5 ms per megapixel."""
    return Fit(
        (Demand("lane", {"front": hz}, 20.0, 20.0, **demand),),  # type: ignore[arg-type]
        {"front": CameraLoad(hz, VGA, known, 5.0)},
        {"lane": 10.0},
        workers=2,
        cores=2,
        gpu=gpu,
    )


def test_changed_rates_scale_the_needs_and_the_decoding() -> None:
    observed = ObservedSizes(fit(hz=10.0))
    before, after = {"lane": {"front": 10.0}}, {"lane": {"front": 5.0}}
    half = observed.change_rates(before, after, {"front": 10.0})
    assert half.needs["lane"] == pytest.approx(0.1)
    assert half.decoding["front"] == pytest.approx(0.5 * fit().verdict().decoding["front"])
    assert observed.change_rates(after, before, {"front": 10.0}) == fit().verdict()


def test_larger_images_than_were_measured_take_longer() -> None:
    small, large = fit().verdict(), fit().verdict({"front": FULL_HD})
    more = 10.0 * (megapixels(FULL_HD) - megapixels(VGA))
    assert small.needs["lane"] == pytest.approx(0.2)
    assert large.needs["lane"] == pytest.approx((20.0 + more) * 10.0 / 1e3)
    assert large.decoding["front"] == pytest.approx(10.0 * 5.0 * megapixels(FULL_HD) / 1e3)


def test_assumed_sizes_are_named_until_an_image_arrives() -> None:
    assert fit().verdict().text.endswith("(images of camera front assumed to be 640 x 480)")
    assert "assumed to be" not in fit().verdict({"front": VGA}).text
    assert "assumed to be" not in fit(known=True).verdict().text


def test_decoding_beyond_one_core_does_not_fit() -> None:
    """5 ms per megapixel are 10.4 ms for 1080p: at most 91.6 Hz."""
    for gpu in (False, True):
        verdict = replace(fit(hz=100.0, gpu=gpu), demands=(Demand("lane", {"front": 100.0}, 1.0, 1.0),)).verdict(
            {"front": FULL_HD}
        )
        assert not verdict.fits
        assert verdict.overloaded == ("front",)
        assert "camera front: 10.4 ms to decode an image at 100 Hz, 104% of a core" in verdict.text
        assert "camera front: at most 91.6 Hz instead of 100, or smaller images" in verdict.advice


def test_decoding_takes_from_a_cpus_workers_and_not_from_a_gpus_streams() -> None:
    demands = [Demand("lane", {"front": 10.0}, 80.0, 80.0)]
    decoding = [Decoding("front", 10.0, 40.0)]
    cpu = check_fit(demands, 1, decoding=decoding, cores=1)
    assert not cpu.fits
    assert cpu.utilization == pytest.approx(1.2)
    assert cpu.most_hz["lane"] == pytest.approx((LIMIT - 0.4) / 80.0 * 1e3)
    gpu = check_fit(demands, 1, gpu=True, decoding=decoding, cores=1)
    assert gpu.fits
    assert gpu.utilization == pytest.approx(0.8)


def test_decoding_that_fills_the_cpu_is_named_and_not_a_dnn() -> None:
    demands = [Demand("lane", {"front": 10.0}, 2.0, 2.0)]
    verdict = check_fit(demands, 1, decoding=[Decoding(name, 10.0, 48.0) for name in ("front", "rear")], cores=1)
    assert (verdict.fits, verdict.breaks, verdict.overloaded) == (False, (), ())
    assert verdict.text == (
        "does not fit: 1 DNN needs 98% of 1 worker, including 96% for image decoding; because of image decoding: 96% "
        "of the workers"
    )
    assert verdict.advice == ("image decoding: lower rates of the cameras, or smaller images",)


def test_advice_counts_decoding_in_addition_to_the_other_dnns() -> None:
    demands = [Demand("lane", {"front": 10.0}, 30.0, 30.0), Demand("object", {"front": 10.0}, 25.0, 25.0, priority=1)]
    decoding = [Decoding("front", 10.0, 70.0)]
    verdict = check_fit(demands, 1, decoding=decoding, cores=1)
    assert verdict.breaks == ("lane",)
    assert verdict.advice == (
        "lane: no rate fits beside the others and image decoding, which need 95% of the workers",
        "image decoding: lower rates of the cameras, or smaller images",
    )
    alone = check_fit(demands[:1], 1, decoding=decoding, cores=1)
    assert "at most 8.33 Hz instead of 10" in alone.advice[0]
    assert len(alone.advice) == 1
    small = check_fit(demands[:1], 1, decoding=[Decoding("front", 10.0, 0.1)], cores=1)
    assert small.text == "fits: 1 DNN needs 30% of 1 worker"


def test_a_deadline_counts_from_the_arrival_and_for_the_whole_batch() -> None:
    assert fit(deadline_ms=30.0).verdict().fits
    assert not fit(deadline_ms=30.0).verdict({"front": FULL_HD}).fits  # 10.4 ms of decoding, 17.7 of preprocessing
    late = fit(deadline_ms=30.0, batch=2.0).verdict()
    assert late.breaks == ("lane",)
    assert "41.5 ms from arrival to result, deadline 30 ms" in late.text
    assert "lane: a deadline of at least 42 ms instead of 30" in late.advice[0]


@given(st.tuples(st.integers(1, 8000), st.integers(1, 8000)), st.floats(0.1, 60.0))
def test_a_verdict_follows_from_the_numbers_alone(size: tuple[int, int], hz: float) -> None:
    sent = pickle.loads(pickle.dumps(fit(hz=hz)))  # noqa: S301
    assert sent.verdict({"front": size}) == fit(hz=hz).verdict({"front": size})


def test_checking_the_fit_needs_no_pytorch() -> None:
    code = "import sys, multi_dnn_ros.planning.image_sizes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_first_image_of_a_camera_changes_the_verdict_and_smaller_ones_do_not() -> None:
    seen = ObservedSizes(fit())
    first = seen.observe("front", HD)
    assert first is not None
    assert "assumed to be" not in first.text
    assert [seen.observe("front", size) for size in (HD, VGA)] == [None, None]
    larger = seen.observe("front", FULL_HD)
    assert larger is not None
    assert larger.needs["lane"] > first.needs["lane"]
    assert seen.observe("another", HD) is None
    assert ObservedSizes(fit(known=True)).observe("front", VGA) is None


# -- measurements


def slow_stage(carried: Tensors) -> Tensors:
    time.sleep(0.02)
    return carried


def stage_for(images: int) -> Stage:
    return lambda carried: slow_stage(carried)


def sleeping(image: torch.Tensor) -> Tensors:
    """Take 20 ms per megapixel."""
    time.sleep(image.shape[0] * image.shape[1] / 1e6 * 0.02)
    return (torch.zeros(1, 3),)


def task(cameras: tuple[str, ...], batches: tuple[int, ...] = ()) -> DnnTask:
    return DnnTask(
        "lane", cameras, sleeping, (slow_stage,), lambda outputs, size: None,
        batches={images: (stage_for(images),) for images in batches},
    )  # fmt: skip


def engine(tasks, on_result) -> Engine:
    return Engine(tasks, on_result=on_result, workers=1)


#: Number of attempts at a measurement, because a preempted process can spoil one or two.
_ATTEMPTS = 5


def test_a_dnn_that_batches_is_measured_with_batches() -> None:
    tiny = np.zeros((4, 4, 3), np.uint8)

    def batches_take_less() -> bool:
        alone = measure_services([task(("front", "rear"))], engine, tiny, 1, frames=5)["lane"]
        together = measure_services([task(("front", "rear"), (2,))], engine, tiny, 1, frames=5)["lane"]
        assert alone.batch == 1.0
        return together.batch > 1.5 and together.alone_ms < 0.8 * alone.alone_ms

    assert any(batches_take_less() for _ in range(_ATTEMPTS))


def test_each_camera_has_images_of_its_own_size() -> None:
    sizes = {"front": (4, 4), "rear": (1000, 1000)}
    images = {camera: np.zeros((height, width, 3), np.uint8) for camera, (width, height) in sizes.items()}

    def half_of_the_frames_take_longer() -> bool:  # by 20 ms
        small = measure_services([task(("front",))], engine, images, 1, frames=5)["lane"]
        both = measure_services([task(("front", "rear"))], engine, images, 1, frames=5)["lane"]
        assert small.alone_ms >= 20.0
        return both.alone_ms >= small.alone_ms + 5.0

    assert any(half_of_the_frames_take_longer() for _ in range(_ATTEMPTS))


def test_costs_per_megapixel(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def preprocess(image: torch.Tensor) -> Tensors:
        """Advance a fake clock by 1 ms plus 20 ms per megapixel."""
        nonlocal now_s
        now_s += 1e-3 + 0.02 * megapixels((image.shape[1], image.shape[0]))
        return (torch.zeros(1, 3),)

    with monkeypatch.context() as patch:
        patch.setattr("multi_dnn_ros.planning.image_costs.time", SimpleNamespace(perf_counter=lambda: now_s))
        assert preprocess_ms(replace(task(("front",)), preprocess=preprocess), CPU) == pytest.approx(20.0)
    assert 0.0 < decode_ms("raw") < decode_ms("compressed")


def test_a_configuration_is_measured_for_the_sizes_that_are_known() -> None:
    flat = {"device": "cpu", "cameras": ["front", "rear"], "dnns": ["lane"], "camera.rear.transport": "compressed"}
    flat |= {"camera.front.rate_hz": 1.0, "camera.rear.rate_hz": 2.0, "dnn.lane.max_rate_hz": 1.5}
    config = to_config(flat)
    found = measure_fit(config, build(config), {"rear": FULL_HD}, {"front": 1.0, "rear": 2.0})
    front, rear = found.cameras["front"], found.cameras["rear"]
    assert (front.size, front.known, rear.size, rear.known) == (ASSUMED_SIZE, False, FULL_HD, True)
    assert rear.decode_ms > front.decode_ms
    assert (front.hz, rear.hz) == (1.0, 1.5)  # images that no DNN gets are not decoded
    assert found.verdict().fits
    assert "images of camera front assumed to be 640 x 480" in found.verdict().text
