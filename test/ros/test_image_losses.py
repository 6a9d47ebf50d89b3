"""Lost images: the estimate compared with the true number."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from multi_dnn_ros.engine.statistics import Statistics
from multi_dnn_ros.ros import stamp_gaps
from multi_dnn_ros.ros.camera_record import CameraRecord
from multi_dnn_ros.ros.diagnostics import OK, STALE, WARN, DiagnosticsReport
from multi_dnn_ros.ros.frame_period import period_of
from multi_dnn_ros.ros.loss_source import LossSource
from multi_dnn_ros.ros.losses import Losses, LossEstimator

SECOND = 1_000_000_000
LATENCY = 20_000_000


class Camera:
    """A camera on a fake clock, of which only some images arrive, and the estimator."""

    def __init__(self, rate_hz: float, jitter: float = 0.0, seed: int = 0, parameter_hz: float = 0.0) -> None:
        self.estimator = LossEstimator(parameter_hz)
        self.period = SECOND / rate_hz
        self.now = 1000.0 * SECOND
        self.stamp_offset = 0.0
        self.random = random.Random(seed)
        self.jitter = jitter
        self.sent = self.received = 0
        self.share = 0.0
        self._reported = self.now

    def run(self, seconds: float, loss: float = 0.0, *, numbered: bool = False, drops_per_image: int = 0) -> None:
        end = self.now + seconds * SECOND
        while self.now < end:
            self.sent += 1
            late = self.random.gauss(0.0, self.jitter) * self.period
            if self.random.random() >= loss:
                self.received += 1
                stamp = round(self.now + self.stamp_offset + late)
                self.estimator.add_image(round(self.now + late) + LATENCY, stamp, self.sent if numbered else None)
            else:
                self.estimator.add_dropped_datagrams(round(self.now) + LATENCY, drops_per_image)
            self.wait(self.period / SECOND)

    def wait(self, seconds: float) -> None:
        """Advance the clock and ask for the losses once a second, as the diagnostics do."""
        end = self.now + seconds * SECOND
        while self._reported + SECOND <= end:
            self._reported += SECOND
            self.share = self.estimator.losses(round(self._reported) + LATENCY, 2_764_800).share
        self.now = end

    def losses(self) -> object:
        return self.estimator.losses(round(self.now) + LATENCY, 2_764_800)


@settings(max_examples=40)
@given(
    rate=st.sampled_from([5.0, 10.0, 15.0, 29.97, 30.0, 60.0, 120.0]),
    loss=st.sampled_from([0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.78]),
    jitter=st.floats(0.0, 0.06),
    seed=st.integers(0, 1000),
)
@example(rate=30.0, loss=0.78, jitter=0.0586, seed=20)  # the first periods that were learnt were too short
@example(rate=60.0, loss=0.78, jitter=0.06, seed=20)
def test_the_share_is_within_5_points_of_the_true_one(rate: float, loss: float, jitter: float, seed: int) -> None:
    camera = Camera(rate, jitter, seed)
    seconds = max(40.0, 600 / rate)  # too few images say too little
    camera.run(seconds, loss, drops_per_image=100)  # without dropped datagrams, a long gap is a pause
    found = camera.losses()
    assert found.received == camera.received
    assert found.sent is not None
    assert abs(found.lost / found.sent - (1 - camera.received / camera.sent)) < 0.05
    assert abs(found.share - loss) < 0.25


@pytest.mark.parametrize("loss", [0.95, 0.99])
def test_dropped_datagrams_are_used_if_hardly_any_image_arrives(loss: float) -> None:
    camera = Camera(30.0, 0.1, 3)
    camera.run(40.0, loss, drops_per_image=160)
    found = camera.losses()
    assert abs(found.lost / found.sent - (1 - camera.received / camera.sent)) < 0.05


def test_all_images_count_as_lost_if_none_arrives_and_the_kernel_drops() -> None:
    camera = Camera(30.0)
    camera.run(3.0, loss=1.0, drops_per_image=160)
    found = camera.estimator.losses(round(camera.now))
    assert (found.received, found.lost, found.share) == (0, None, 1.0)
    assert found.dropped_datagrams == 160 * camera.sent


@given(loss=st.floats(0.0, 0.95), seed=st.integers(0, 100))
def test_sequence_numbers_are_exact(loss: float, seed: int) -> None:
    camera = Camera(30.0, 0.3, seed)
    camera.run(1.0, 0.0, numbered=True)
    camera.run(10.0, loss, numbered=True)
    camera.run(0.02, 0.0, numbered=True)
    found = camera.losses()
    assert (found.received, found.sent) == (camera.received, camera.sent)


def test_events_are_used_without_sequence_numbers() -> None:
    estimator = LossEstimator()
    for index in range(10):
        estimator.add_image(index * SECOND, index * SECOND)
        estimator.add_reported_losses(index * SECOND + 1, 9)
    found = estimator.losses(10 * SECOND)
    assert (found.lost, found.sent, found.source) == (90, 100, LossSource.EVENTS)
    assert found.share == pytest.approx(0.9)


def test_the_rate_parameter_overrides_the_learned_period() -> None:
    camera = Camera(15.0, parameter_hz=30.0)  # every second image missing, evenly: the stamps alone cannot tell
    camera.run(20.0)
    assert camera.losses().share == pytest.approx(0.5, abs=0.02)
    assert camera.losses().source is LossSource.RATE


@pytest.mark.parametrize("slower", [15.0, 10.0, 20.0, 1.0])
def test_a_camera_that_slows_down_is_no_loss(slower: float) -> None:
    camera = Camera(30.0, 0.03)
    camera.run(20.0)
    camera.period = SECOND / slower
    camera.run(40.0)
    assert camera.losses().lost <= 10 * 29
    camera.run(25.0)
    assert camera.share == 0.0
    before = camera.losses().lost
    camera.run(60.0)
    assert camera.losses().lost == before


def test_a_camera_that_speeds_up_is_no_loss() -> None:
    camera = Camera(15.0, 0.03)
    camera.run(20.0)
    camera.period = SECOND / 30.0
    camera.run(40.0)
    assert camera.losses().lost <= 2


def test_loss_of_every_second_image_is_found_if_the_kernel_drops() -> None:
    camera = Camera(30.0, 0.02)
    camera.run(10.0)
    for _ in range(150):
        camera.run(0.01)
        camera.run(0.01, loss=1.0, drops_per_image=100)
    assert camera.share == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("jump", [-1000.0, -5.0, 100.0, 1e9])
def test_a_jump_of_the_stamps_is_no_loss(jump: float) -> None:
    camera = Camera(30.0, 0.02)
    camera.run(20.0)
    camera.stamp_offset = jump * SECOND  # simulated time starts again; a recording is played again
    camera.run(20.0)
    assert camera.losses().lost == 0


def test_a_pause_is_no_loss_and_a_gap_with_dropped_datagrams_is() -> None:
    camera = Camera(10.0)
    camera.run(20.0)
    camera.wait(60.0)
    camera.run(20.0)
    assert camera.losses().lost == 0
    camera.run(10.0, loss=1.0, drops_per_image=150)
    assert camera.losses().lost == pytest.approx(100, abs=2)  # counted while nothing arrives ...
    camera.run(1.0)
    assert camera.losses().lost == 100  # ... and exactly once something does


def test_drops_after_the_end_of_the_camera_are_not_counted() -> None:
    camera = Camera(30.0)
    camera.run(20.0, loss=0.5, drops_per_image=100)
    before = camera.estimator.losses(round(camera.now), 2_764_800, reliable=True).lost
    for _ in range(30):  # a reliable writer repeats data that no reader acknowledges
        camera.wait(1.0)
        camera.estimator.add_dropped_datagrams(round(camera.now), 100)
    assert camera.estimator.losses(round(camera.now), 2_764_800, reliable=True).lost == before


def test_constant_stamps_give_no_estimate() -> None:
    estimator = LossEstimator()
    for index in range(100):
        estimator.add_image(index * SECOND, 0)
    assert estimator.losses(100 * SECOND).lost is None
    assert estimator.losses(100 * SECOND).share == 0.0


def test_sequence_numbers_of_two_publishers_are_not_compared() -> None:
    estimator = LossEstimator()
    for number in (1, 2, 3):
        estimator.add_image(number, number, number)
    estimator.restart()
    for number in (500, 501):
        estimator.add_image(number, number, number)
    assert estimator.losses(600).lost == 0


def test_a_camera_that_is_delayed_and_catches_up_hides_no_loss() -> None:
    estimator, now_ms = LossEstimator(10.0), 0
    for index, gap_ms in enumerate([100] * 40 + [133, 148, 19, 200] * 20):  # one image in each group is lost
        now_ms += gap_ms
        estimator.add_image(now_ms * 1_000_000, now_ms * 1_000_000)
        if index % 8 == 7:
            estimator.losses(now_ms * 1_000_000)
    assert estimator.losses(now_ms * 1_000_000).lost == pytest.approx(20, abs=2)


def test_gaps_of_an_old_publisher_are_not_compared_with_the_period_of_the_next() -> None:
    camera = Camera(10.0)
    camera.run(20.3)  # the gaps since the last report are still to be compared
    camera.estimator.restart()
    camera.period = SECOND / 30.0
    camera.run(20.0)
    assert camera.losses().lost <= 1


@given(gaps=st.lists(st.integers(1, 10**10), max_size=80))
def test_any_gaps_have_a_plausible_period_or_none(gaps: list[int]) -> None:
    period = period_of(gaps)
    assert period is None or 0 < period <= 1.3 * max(gaps)


@pytest.mark.parametrize("source", ["datagrams", "events"])
def test_the_share_covers_10_s_if_nothing_was_lost_before(source: str) -> None:
    estimator, now = LossEstimator(), 0
    for _ in range(3600):  # of several publishers, so that no period is known
        now += SECOND
        estimator.add_image(now, now, single_publisher=False)
        assert estimator.losses(now, 1_000_000).share == 0.0
    if source == "events":
        estimator.add_reported_losses(now, 148)
    else:
        estimator.add_dropped_datagrams(now, 10_000)  # of 148 images
    found = estimator.losses(now, 1_000_000)
    assert (found.lost, found.share) == (148, pytest.approx(148 / 158, abs=0.01))


def test_losses_of_unknown_times_are_not_all_of_the_last_10_s() -> None:
    """All losses so far become known at once when a period is learned."""
    camera = Camera(1.0, seed=2)
    while camera.losses().lost is None:
        camera.run(1.0, 0.4)
    assert camera.sent > 15
    found = camera.losses()
    assert found.lost > 5
    assert found.share == pytest.approx(found.lost / found.sent)


def test_few_dropped_datagrams_are_no_loss_of_a_camera_without_images() -> None:
    estimator = LossEstimator()
    estimator.add_dropped_datagrams(SECOND, 1)
    assert estimator.losses(SECOND).share == 0.0
    estimator.add_dropped_datagrams(2 * SECOND, 100)
    assert estimator.losses(2 * SECOND).share == 1.0
    assert estimator.losses(20 * SECOND).share == 0.0  # of the last 10 s


@pytest.mark.parametrize(("raw", "connected"), [(False, True), (True, False)])
def test_datagrams_of_other_cameras_are_no_loss_of_a_camera_without_images(raw: bool, connected: bool) -> None:
    estimator = LossEstimator(raw=raw)
    estimator.add_dropped_datagrams(SECOND, 1000, connected=connected)
    found = estimator.losses(SECOND)
    assert (found.share, found.lost, found.dropped_datagrams) == (0.0, None, 1000)


def test_datagrams_of_other_cameras_are_no_loss_of_an_irregular_compressed_camera() -> None:
    estimator, now, random_ = LossEstimator(raw=False), 0, random.Random(1)
    for _ in range(196):
        now += random_.randint(SECOND // 100, SECOND // 5)
        estimator.add_image(now, now)
        estimator.add_dropped_datagrams(now, 34)
    assert estimator.losses(now, 60_000).lost is None


def test_gaps_between_images_of_two_publishers_give_no_estimate() -> None:
    estimator = LossEstimator()
    for index in range(400):  # two cameras of 10 Hz, 5 ms apart
        stamp = index // 2 * SECOND // 10 + index % 2 * 5_000_000
        estimator.add_image(stamp, stamp, single_publisher=False)
        if index % 20 == 19:
            assert estimator.losses(stamp, 60_000).lost is None


@pytest.mark.parametrize("numbered", [True, False])
def test_losses_before_a_change_of_the_publisher_are_kept(numbered: bool) -> None:
    camera = Camera(30.0, seed=4)
    camera.run(10.0)
    camera.run(20.0, 0.2, numbered=numbered, drops_per_image=100)
    camera.run(1.0, numbered=numbered)
    before = camera.losses()
    assert before.lost > 50
    camera.estimator.restart()
    assert camera.losses().lost == before.lost
    camera.sent = 0  # the new publisher starts its own numbers
    camera.run(10.0, numbered=numbered)
    camera.run(5.0, 0.5, numbered=numbered, drops_per_image=100)
    camera.run(0.1, numbered=numbered)
    assert camera.losses().lost == pytest.approx(before.lost + 75, abs=20)


def test_images_above_the_rate_do_not_hide_later_losses() -> None:
    camera = Camera(30.0, parameter_hz=15.0)
    camera.run(60.0)
    assert camera.losses().lost == 0
    camera.period = SECOND / 5.0
    camera.run(20.0)
    assert camera.losses().lost == pytest.approx(200, abs=25)


@pytest.mark.parametrize("numbered", [True, False])
def test_an_image_that_arrives_after_a_later_one_is_not_lost(numbered: bool) -> None:
    estimator = LossEstimator(10.0)
    for number in (5, 7, 6, 8, 10):
        stamp = number * SECOND // 10
        estimator.add_image(stamp, stamp, number if numbered else None, late=number == 6)
    assert estimator.losses(2 * SECOND).lost == 1  # 9


def test_sequence_numbers_that_restart_are_not_late() -> None:
    estimator = LossEstimator()
    for number in (5, 9, 1, 2, 4):
        estimator.add_image(number, number, number)
    assert estimator.losses(SECOND).lost == 4


def test_the_period_of_irregular_stamps_is_not_learned_at_each_report(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(gaps: list[int]) -> float | None:
        calls.append(len(gaps))
        return period_of(gaps)

    monkeypatch.setattr(stamp_gaps, "period_of", counted)
    estimator, now, random_ = LossEstimator(), 0, random.Random(1)
    for _ in range(64):
        now += random_.randint(SECOND // 100, SECOND)
        estimator.add_image(now, now)
    for _ in range(160):
        now += random_.randint(SECOND // 100, SECOND)
        estimator.add_image(now, now)
        estimator.losses(now)
    assert len(calls) <= 2 * (160 // 16 + 1)


def camera_level(record: CameraRecord, now_ns: int) -> tuple[bytes, str]:
    (status,) = DiagnosticsReport("n", "h", 2.0).cameras(Statistics({}, {}), {"front": record}, now_ns)
    return status.level, status.message


def test_the_status_of_a_camera_has_no_empty_cause() -> None:
    record = CameraRecord("front", "/front/image_raw", 0, max_loss=0.2)
    assert camera_level(record, 8 * SECOND) == (STALE, "no image on /front/image_raw since subscribing 8.0 s ago")
    record.arrived(9 * SECOND, "", 10, 0, None, 0)
    record.losses = Losses(10, 90, 0.9, LossSource.RATE, 0)
    assert camera_level(record, 10 * SECOND) == (WARN, "90% of the images are missing")
    assert camera_level(record, 17 * SECOND)[1].startswith("no image on /front/image_raw for 8.0 s; 90%")
    record.losses = Losses(10, 0, 0.0, LossSource.RATE, 0)
    assert camera_level(record, 10 * SECOND)[0] == OK
