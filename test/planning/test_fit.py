"""The check whether DNNs and rates fit, and measured frame times in the engine."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.engine import Engine
from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.pipeline.fit_check import make_demands
from multi_dnn_ros.planning.fit import LIMIT, Demand, check_fit, service_ms
from multi_dnn_ros.planning.profile import ProfileError
from multi_dnn_ros.planning.service import Service, lost_frames, measure_services, random_demands
from multi_dnn_ros.settings.flat_parameters import to_config

IMAGE = np.zeros((4, 4, 3), dtype=np.uint8)


def demand(name: str, hz: float, ms: float, **options) -> Demand:
    return Demand(name, {"front": hz}, ms, options.pop("crowded_ms", ms), **options)


def test_a_fitting_set_reports_its_utilization() -> None:
    verdict = check_fit([demand("lane", 10, 20), demand("object", 10, 50)], workers=2)
    assert verdict.fits
    assert verdict.utilization == pytest.approx(0.35)
    assert verdict.needs == {"lane": pytest.approx(0.2), "object": pytest.approx(0.5)}
    assert verdict.text == "fits: 2 DNNs need 35% of 2 workers"
    assert (verdict.breaks, verdict.advice) == ((), ())


def test_a_dnn_uses_at_most_one_worker() -> None:
    verdict = check_fit([demand("lane", 10, 20), demand("object", 30, 50)], workers=8)
    assert verdict.breaks == ("object",)
    assert verdict.text == (
        "does not fit: 2 DNNs need 21% of 8 workers; because of object: 50.0 ms per frame at 30 Hz, 150% of a worker"
    )
    assert verdict.advice == (
        "object: at most 19 Hz instead of 30, or 31.7 ms per frame instead of 50 "
        "(multi-dnn decompose, a smaller input)",
    )


def test_rates_of_more_than_three_digits_are_written_out() -> None:
    verdict = check_fit([demand("object", 1200, 0.9)], workers=8)
    assert "0.9 ms per frame at 1200 Hz" in verdict.text
    assert "at most 1056 Hz instead of 1200, or 0.792 ms per frame instead of 0.9" in verdict.advice[0]


def test_overload_is_attributed_to_the_heaviest_dnn_of_lowest_priority() -> None:
    crowd = [demand("lane", 10, 80), demand("object", 10, 70), demand("pedestrian", 10, 60)]
    assert check_fit(crowd, workers=2).breaks == ("lane",)
    crowd[0] = dataclasses.replace(crowd[0], priority=5)
    verdict = check_fit(crowd, workers=2, gpu=True)
    assert verdict.breaks == ("object",)
    assert verdict.most_hz["object"] == pytest.approx((2 * LIMIT - 1.4) / 0.07)
    assert "fp16" in verdict.advice[0]
    crowd[2] = dataclasses.replace(crowd[2], cameras={"front": 0.1}, priority=-1)  # reducing it would not help
    crowd.append(demand("sign", 10, 70, priority=5))
    assert check_fit(crowd, workers=2).breaks == ("object",)


def test_shared_resources_are_a_limit() -> None:
    """Two half-busy streams of a GPU behind one lock."""
    pair = [demand("lane", 100, 5, shared_ms=4.0), demand("object", 50, 10, shared_ms=12.0, priority=1)]
    verdict = check_fit(pair, workers=2, gpu=True)
    assert verdict.breaks == ("lane",)
    assert "together they need 100% of the shared resources" in verdict.text
    assert verdict.most_hz["lane"] == pytest.approx((LIMIT - 0.6) / 4e-3)
    assert "at most 87.5 Hz instead of 100" in verdict.advice[0]
    assert check_fit([pair[1]], workers=2).fits
    none_left = [demand("lane", 50, 4, shared_ms=4.0), demand("object", 50, 19, shared_ms=19.0, priority=1)]
    assert check_fit(none_left, workers=2).advice == (
        "lane: no rate fits beside the others, which need 95% of the shared resources",
    )


def test_no_remaining_capacity_is_reported() -> None:
    verdict = check_fit(
        [demand("lane", 10, 90, priority=1), demand("object", 10, 90, priority=1), demand("pedestrian", 10, 50)], 2,
        limit=0.9,
    )  # fmt: skip
    assert verdict.breaks == ("pedestrian",)
    assert verdict.most_hz == {}
    assert verdict.advice == (
        "pedestrian: no rate fits beside the others, which need 90% of the workers",
    )  # fmt: skip


def test_a_deadline_that_no_frame_meets() -> None:
    verdict = check_fit([demand("lane", 2, 80, deadline_ms=50.0)], workers=2)
    assert (verdict.fits, verdict.breaks) == (False, ("lane",))
    assert "deadline 50 ms" in verdict.text
    assert "a deadline of at least 80 ms instead of 50" in verdict.advice[0]
    assert check_fit([demand("lane", 2, 80, deadline_ms=90.0)], workers=2).fits


def test_frame_time_grows_with_the_load_of_the_others() -> None:
    def lane_ms(hz: float) -> float:
        return service_ms([demand("lane", 10, 20, crowded_ms=40), demand("object", hz, 50)], 2)["lane"]

    assert lane_ms(0.0) == 20.0
    assert lane_ms(10.0) == pytest.approx(30.0)
    assert lane_ms(100.0) == 40.0
    alone = [demand("lane", 10, 20, crowded_ms=40)]
    assert service_ms(alone, 1) == {"lane": 20.0}


def test_several_cameras_count_together() -> None:
    verdict = check_fit([Demand("lane", {"front": 10.0, "rear": 10.0}, 60, 60)], workers=4)
    assert not verdict.fits
    assert "Hz of its 2 cameras together instead of 20" in verdict.advice[0]


@pytest.mark.parametrize(
    ("demands", "workers", "message"),
    [
        ([], 1, "demands is empty"),
        ([demand("lane", 1, 1)], 0, "workers is 0"),
        ([demand("lane", 1, 1)] * 2, 1, "name a DNN twice: lane, lane"),
        ([demand("lane", -1, 1)], 1, "demand of lane: front is -1"),
        ([demand("lane", 1, float("nan"))], 1, "demand of lane: alone_ms is nan"),
    ],
)
def test_bad_demands_are_named(demands, workers: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_fit(demands, workers)


@given(
    st.lists(
        st.tuples(
            st.floats(0.5, 60.0), st.floats(0.5, 200.0), st.floats(1.0, 2.0), st.integers(-1, 1), st.floats(0.0, 1.5)
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 4),
)
@example([(1.0, 1.0, 1.0, 0, 0.0), (1.0, 31.0, 1.0, 1, 0.0), (20.0, 46.0, 1.0, 1, 0.0)], 1)
def test_following_the_advice_on_rates_makes_it_fit(rows, workers: int) -> None:
    demands = [
        demand(f"dnn{number}", hz, ms, crowded_ms=ms * factor, priority=priority, shared_ms=ms * shared)
        for number, (hz, ms, factor, priority, shared) in enumerate(rows)
    ]
    verdict = check_fit(demands, workers)
    assert verdict.fits == (not verdict.breaks)
    for _ in range(3 * len(demands)):  # repeatedly, because the other DNNs alone may exceed the capacity
        if verdict.fits:
            break
        rates = {name: verdict.most_hz.get(name, 0.0) for name in verdict.breaks}
        demands = [
            dataclasses.replace(of, cameras={"front": rates[of.dnn] * 0.999}) if of.dnn in rates else of
            for of in demands
        ]
        verdict = check_fit(demands, workers)
    assert verdict.fits


def tasks(*names_ms: tuple[str, float]) -> list[DnnTask]:
    def stage_of(ms: float):
        def stage(carried):
            time.sleep(ms / 1e3)
            return carried

        return stage

    return [
        DnnTask(name, ("front",), lambda image: (image.float(),), (stage_of(ms),), lambda outputs, size: None)
        for name, ms in names_ms
    ]


def engine(of, on_result) -> Engine:
    return Engine(of, on_result=on_result, workers=2)


def test_services_are_measured_in_the_engine() -> None:

    def share_next_to_nothing() -> bool:  # two workers that sleep
        services = measure_services(tasks(("lane", 30.0), ("object", 60.0)), engine, IMAGE, 2, frames=5)
        assert services["lane"].alone_ms >= 30.0
        assert services["object"].alone_ms >= 60.0
        assert all(of.crowded_ms >= of.alone_ms for of in services.values())
        return all(of.shared_ms < of.alone_ms for of in services.values())

    def fill_two_workers() -> bool:  # that each wait 10 ms: at most 200 frames a second, all DNNs together
        crowded = measure_services(tasks(*((f"dnn{number}", 10.0) for number in range(3))), engine, IMAGE, 2, frames=5)
        return all(of.crowded_ms >= 9.0 for of in crowded.values())

    # A preempted process can spoil one or two measurements: repeat.
    assert any(share_next_to_nothing() for _ in range(5))
    assert any(fill_two_workers() for _ in range(5))

    def broken(carried):
        raise RuntimeError("sofa")

    (task,) = tasks(("lane", 0.0))
    failed = r"^DNN lane failed while it was measured: disabled after \d+ failures in a row, .*sofa$"
    with pytest.raises(ProfileError, match=failed):
        measure_services([dataclasses.replace(task, stages=(broken,))], engine, IMAGE, 2, frames=5)
    # Also while another DNN continues.
    pair = tasks(("lane", 0.0), ("object", 1.0))
    calls = iter(range(1000))

    def breaks_later(carried):
        return carried if next(calls) < 20 else broken(carried)

    pair[0] = dataclasses.replace(pair[0], stages=(breaks_later,))
    with pytest.raises(ProfileError, match=failed):
        measure_services(pair, engine, IMAGE, 2, frames=15)


def test_lost_frames_are_measured() -> None:
    wanted = {"lane": {"slow": 5.0}, "object": {"fast": 200.0}}
    lost = lost_frames(tasks(("lane", 1.0), ("object", 50.0)), wanted, engine, IMAGE, seconds=1.0)
    assert lost["object"] > 0.5
    assert lost["lane"] < lost["object"]


class CamerasThatWait:
    """Replaces `time`: sleep() returns when the engine has finished its frames."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.engine: Engine | None = None

    def make(self, tasks, on_result) -> Engine:
        self.engine = engine(tasks, on_result)
        return self.engine

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert self.engine is not None
        assert self.engine.wait_idle(30.0)
        self.now_s += seconds


def test_a_result_after_its_deadline_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multi_dnn_ros.planning.service.time", time := CamerasThatWait())
    (task,) = tasks(("lane", 20.0))
    tight = dataclasses.replace(task, deadline_ns=1_000_000)
    wanted = {"lane": {"front": 8.0}}
    assert lost_frames([tight], wanted, time.make, IMAGE, seconds=1.0) == {"lane": 0.0}
    assert lost_frames([tight], wanted, time.make, IMAGE, seconds=1.0, late=True)["lane"] > 0.8  # the last still runs


def test_dnns_of_a_camera_get_frames_at_their_own_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multi_dnn_ros.planning.service.time", time := CamerasThatWait())
    served = {"lane": 0, "object": 0}

    def counting(name: str):
        def stage(carried):
            served[name] += 1
            return carried

        return stage

    pair = [dataclasses.replace(task, stages=(counting(task.name),)) for task in tasks(("lane", 0.0), ("object", 0.0))]
    lost_frames(pair, {"lane": {"front": 4.0}, "object": {"front": 20.0}}, time.make, IMAGE, seconds=1.0)
    assert served["lane"] == pytest.approx(1.5 * 4.0, abs=1.5)
    assert served["object"] == pytest.approx(1.5 * 20.0, abs=1.5)


def test_a_dnn_needs_no_more_than_its_limited_rate() -> None:
    config = to_config(
        {"cameras": ["front", "rear"], "dnns": ["lane", "object"], "dnn.lane.max_rate_hz": 5.0,
         "dnn.object.enable": False}
    )  # fmt: skip
    both = [dataclasses.replace(of, cameras=("front", "rear")) for of in tasks(("lane", 0.0), ("object", 0.0))]
    services = dict.fromkeys(("lane", "object"), Service(10.0, 10.0))
    demands = make_demands(config, SimpleNamespace(tasks=both), services, {"front": 30.0, "rear": 2.0})
    # A DNN that is not enabled counts: it can be enabled at any time.
    assert [of.cameras for of in demands] == [{"front": 5.0, "rear": 2.0}, {"front": 30.0, "rear": 2.0}]


def test_random_demands_lie_below_and_above_the_capacity() -> None:
    services = {"lane": Service(10.0, 12.0), "object": Service(30.0, 45.0), "pedestrian": Service(20.0, 20.0)}
    cases = random_demands(services, 2, 10, seed=1)
    verdicts = [check_fit(demands, 2, limit=1.0) for demands in cases]
    assert [verdict.fits for verdict in verdicts] == [True] * 5 + [False] * 5
    assert cases == random_demands(services, 2, 10, seed=1)
    highest = [max(verdict.utilization, *verdict.needs.values()) for verdict in verdicts]
    assert highest[0] == pytest.approx(0.6, abs=0.25)
    assert highest[-1] == pytest.approx(1.4, abs=0.25)
    narrow = {name: dataclasses.replace(of, shared_ms=of.alone_ms) for name, of in services.items()}
    cases = random_demands(narrow, 3, 10, seed=1)
    assert [check_fit(demands, 3, limit=1.0).fits for demands in cases] == [True] * 5 + [False] * 5
    assert all(sum(of.hz * of.shared_ms for of in demands) <= 1.41e3 for demands in cases)


@pytest.fixture(scope="module")
def lanes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "lanes.pt2"
    network = torch.nn.Conv2d(3, 1, 3, padding=1).eval()
    torch.export.save(torch.export.export(network, (torch.zeros(1, 3, 16, 16),)), path)
    return path


def fit_of(lanes: Path, folder: Path, of_node: Sequence[str] = ("front",), **lane: object) -> list[str]:
    """The command for a DNN `lane` with these parameters. of_node: all cameras of the node."""
    own = {"role": "lane", "model": str(lanes), "decoder": "lane", "backend": "eager", "jobs": 1, **lane}
    params = {"cameras": [*of_node], "dnns": ["lane"], "dnn": {"lane": own}}
    path = folder / "fit_of.yaml"
    path.write_text(json.dumps({"/**": {"ros__parameters": params}}))
    return ["profile", "fit", "--params-file", str(path), "--device", "cpu", "--frames", "3"]


def test_the_verb_counts_decoding_as_the_node_does(
    lanes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("multi_dnn_ros.pipeline.fit_check.decode_ms", lambda transport: 1000.0)  # 307 ms at 640 x 480
    monkeypatch.setattr("multi_dnn_ros.planning.image_costs.decode_ms", lambda transport: 1000.0)
    assert main([*fit_of(lanes, tmp_path, deadline_ms=200.0), "--rate", "front=0.1"]) == 1
    assert "ms from arrival to result, deadline 200 ms" in capsys.readouterr().out
    # A camera that no DNN uses is not decoded.
    command = fit_of(lanes, tmp_path, ("front", "rear"), cameras=["front"], deadline_ms=600.0)
    assert main([*command, "--rate", "front=0.1", "--rate", "rear=50", "--verify", "0.1"]) == 0
    assert "fits: 1 DNN needs" in capsys.readouterr().out


def test_the_verb_measures_images_that_a_crop_needs(
    lanes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = fit_of(lanes, tmp_path, crop=[0.0, 0.0, 1280.0, 720.0])
    assert main([*command, "--rate", "front=0.1"]) == 0
    printed = capsys.readouterr().out
    assert "camera front: images of 1280 x 720; its DNNs need at least this size" in printed
    assert "fits: 1 DNN needs" in printed
    assert main([*command, "--mixes", "1", "--verify", "0.1"]) == 0
    assert "mix 0:" in capsys.readouterr().out


def test_frames_that_are_not_served_outweigh_the_prediction(
    lanes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("multi_dnn_ros.planning.service.lost_frames", lambda *given, **options: {"lane": 0.5})
    command = [*fit_of(lanes, tmp_path), "--rate", "front=0.1"]
    assert main([*command, "--verify", "0.1"]) == 1
    printed = capsys.readouterr().out
    assert "fits: 1 DNN needs" in printed
    assert "not served, lost lane 50.0%" in printed
    assert main([*command, "--verify", "0.1", "--mixes", "1"]) == 0
    assert main(command) == 0


def test_an_interrupted_verification_keeps_the_cases_before(
    lanes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = iter([{"lane": 0.5}])

    def next_lost(*given: object, **options: object) -> dict[str, float]:
        try:
            return next(lost)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr("multi_dnn_ros.planning.service.lost_frames", next_lost)
    out = tmp_path / "fit.json"
    assert main([*fit_of(lanes, tmp_path), "--verify", "0.1", "--mixes", "3", "--output", str(out)]) == 130
    content = json.loads(out.read_text())
    assert [case["served"] for case in content["cases"]] == [False]
    assert content["verified"]["of"] == 1


def test_the_verb(lanes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    params = tmp_path / "params.yaml"
    params.write_text(
        "/**:\n  ros__parameters:\n    cameras: [front]\n    dnns: [lane]\n"
        f"    dnn: {{lane: {{role: lane, model: {lanes}, decoder: lane, backend: eager, jobs: 1}}}}\n"
    )
    arguments = ["profile", "fit", "--params-file", str(params), "--device", "cpu", "--frames", "3"]
    out = tmp_path / "fit.json"
    assert main([*arguments, "--rate", "front=0.1", "--verify", "0.2", "--output", str(out)]) == 0
    text = capsys.readouterr().out
    assert "fits: 1 DNN needs" in text
    content = json.loads(out.read_text())
    assert content["cases"][0]["fits"]
    assert content["services_ms"]["lane"]["alone_ms"] > 0.0
    params.write_text(f"{params.read_text()}    camera: {{front: {{rate_hz: 1000.0}}}}\n")
    assert main([*arguments, "--output", str(out)]) in (0, 1)
    assert json.loads(out.read_text())["cases"][0]["hz"] == {"lane": {"front": 1000.0}}
    assert main([*arguments, "--rate", "front=0.1"]) == 0
    assert main([*arguments, "--rate", "front=100000"]) == 1
    assert "because of lane" in capsys.readouterr().out
    assert main([*arguments, "--rate", "rear=10"]) == 2
    assert "--rate names camera 'rear'; the parameters have front" in capsys.readouterr().err
    assert main([*arguments, "--predictor", str(tmp_path / "none.json")]) == 1
