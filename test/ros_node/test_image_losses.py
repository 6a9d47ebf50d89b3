"""Images that were sent and did not arrive: what the account says against what is true."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.ros.frame_period import period_of
from multi_dnn_ros.ros.losses import LossAccount

SECOND = 1_000_000_000
LATENCY = 20_000_000


class Camera:
    """A camera on a fake clock and the link to its account: images are sent, some of them arrive."""

    def __init__(self, rate_hz: float, jitter: float = 0.0, seed: int = 0, account_hz: float = 0.0) -> None:
        self.account = LossAccount(account_hz)
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
                self.account.arrived(round(self.now + late) + LATENCY, stamp, self.sent if numbered else None)
            else:
                self.account.dropped(round(self.now) + LATENCY, drops_per_image)
            self.wait(self.period / SECOND)

    def wait(self, seconds: float) -> None:
        """Time passes, in which the diagnostics ask once a second."""
        end = self.now + seconds * SECOND
        while self._reported + SECOND <= end:
            self._reported += SECOND
            self.share = self.account.losses(round(self._reported) + LATENCY, 2_764_800).share
        self.now = end

    def losses(self) -> object:
        return self.account.losses(round(self.now) + LATENCY, 2_764_800)


@given(
    rate=st.sampled_from([5.0, 10.0, 15.0, 29.97, 30.0, 60.0, 120.0]),
    loss=st.sampled_from([0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.78]),
    jitter=st.floats(0.0, 0.06),
    seed=st.integers(0, 1000),
)
def test_the_share_is_within_5_points_of_the_true_one(rate: float, loss: float, jitter: float, seed: int) -> None:
    camera = Camera(rate, jitter, seed)
    camera.run(40.0, loss, drops_per_image=100)  # without a sign, a long gap is a pause
    found = camera.losses()
    assert found.received == camera.received
    assert found.sent is not None
    assert abs(found.lost / found.sent - (1 - camera.received / camera.sent)) < 0.05
    assert abs(found.share - loss) < 0.25


@pytest.mark.parametrize("loss", [0.95, 0.99])
def test_where_hardly_anything_arrives_the_dropped_datagrams_tell(loss: float) -> None:
    camera = Camera(30.0, 0.1, 3)
    camera.run(40.0, loss, drops_per_image=160)
    found = camera.losses()
    assert abs(found.lost / found.sent - (1 - camera.received / camera.sent)) < 0.05


def test_nothing_arrives_and_the_kernel_drops() -> None:
    camera = Camera(30.0)
    camera.run(3.0, loss=1.0, drops_per_image=160)
    found = camera.account.losses(round(camera.now))
    assert (found.received, found.lost, found.share) == (0, None, 1.0)
    assert found.drops == 160 * camera.sent


@given(loss=st.floats(0.0, 0.95), seed=st.integers(0, 100))
def test_sequence_numbers_are_exact(loss: float, seed: int) -> None:
    camera = Camera(30.0, 0.3, seed)
    camera.run(1.0, 0.0, numbered=True)
    camera.run(10.0, loss, numbered=True)
    camera.run(0.02, 0.0, numbered=True)
    found = camera.losses()
    assert (found.received, found.sent) == (camera.received, camera.sent)


def test_events_count_where_there_are_no_numbers() -> None:
    account = LossAccount()
    for index in range(10):
        account.arrived(index * SECOND, index * SECOND)
        account.reported(index * SECOND + 1, 9)
    found = account.losses(10 * SECOND)
    assert (found.lost, found.sent, found.source) == (90, 100, "message-lost events")
    assert found.share == pytest.approx(0.9)


def test_the_users_rate_goes_before_the_learnt_one() -> None:
    camera = Camera(15.0, account_hz=30.0)  # every second image missing, evenly: the stamps alone cannot tell
    camera.run(20.0)
    assert camera.losses().share == pytest.approx(0.5, abs=0.02)
    assert camera.losses().source == "rate_hz"


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


def test_every_second_image_lost_is_found_where_the_kernel_says_that_it_drops() -> None:
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


def test_what_is_dropped_after_the_camera_has_ended_is_no_image() -> None:
    camera = Camera(30.0)
    camera.run(20.0, loss=0.5, drops_per_image=100)
    before = camera.account.losses(round(camera.now), 2_764_800, reliable=True).lost
    for _ in range(30):  # a reliable writer sends again what nobody takes
        camera.wait(1.0)
        camera.account.dropped(round(camera.now), 100)
    assert camera.account.losses(round(camera.now), 2_764_800, reliable=True).lost == before


def test_stamps_that_never_change_tell_nothing() -> None:
    account = LossAccount()
    for index in range(100):
        account.arrived(index * SECOND, 0)
    assert account.losses(100 * SECOND).lost is None
    assert account.losses(100 * SECOND).share == 0.0


def test_another_publisher_is_not_compared_with_the_last() -> None:
    account = LossAccount()
    for number in (1, 2, 3):
        account.arrived(number, number, number)
    account.restart()
    for number in (500, 501):
        account.arrived(number, number, number)
    assert account.losses(600).lost == 0


def test_a_camera_that_is_held_up_and_hurries_hides_no_loss() -> None:
    account, now_ms = LossAccount(10.0), 0
    for index, gap_ms in enumerate([100] * 40 + [133, 148, 19, 200] * 20):  # one image in each group is lost
        now_ms += gap_ms
        account.arrived(now_ms * 1_000_000, now_ms * 1_000_000)
        if index % 8 == 7:
            account.losses(now_ms * 1_000_000)
    assert account.losses(now_ms * 1_000_000).lost == pytest.approx(20, abs=2)


def test_images_of_a_camera_that_went_are_not_measured_by_the_period_of_the_next() -> None:
    camera = Camera(10.0)
    camera.run(20.3)  # the gaps since the last report are still to be compared
    camera.account.restart()
    camera.period = SECOND / 30.0
    camera.run(20.0)
    assert camera.losses().lost <= 1


@given(gaps=st.lists(st.integers(1, 10**10), max_size=80))
def test_any_gaps_have_a_period_that_is_sane_or_none(gaps: list[int]) -> None:
    period = period_of(gaps)
    assert period is None or 0 < period <= 1.3 * max(gaps)
