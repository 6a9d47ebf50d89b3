"""The warning about receive buffers: logged once, with values and command, and only if images arrive by UDP."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.ros.loss_source import LossSource
from multi_dnn_ros.ros.losses import Losses
from multi_dnn_ros.ros.middleware import CYCLONE, FAST, Middleware
from multi_dnn_ros.ros.receive_check import ReceiveCheck, needed_rmem_max, recommended_rmem_max

HD, FULL_HD = 1280 * 720 * 3, 1920 * 1080 * 3
STOCK = 212_992
CYCLONE_UDP = Middleware(CYCLONE, "", Path("cyclonedds.xml"))
FAST_UDP = Middleware(FAST, "", Path("fastdds_udp.xml"))
FAST_SHARED = Middleware(FAST, "", Path("fastdds_shared_memory.xml"))
USERS = Middleware(CYCLONE, "", None)


class LoggedCheck:
    def __init__(self, middleware: Middleware, limit: int | None = STOCK, buffer: int | None = -1) -> None:
        self.warnings: list[str] = []
        self.infos: list[str] = []
        size = 2 * (limit or 0) if buffer == -1 else buffer
        self.check = ReceiveCheck(middleware, self.warnings.append, self.infos.append, lambda: limit, lambda: size)


@given(st.integers(1, 200_000_000))
def test_the_needed_limit_holds_the_image(image_bytes: int) -> None:
    needed = needed_rmem_max(image_bytes)
    assert 0.88 * 2 * needed >= image_bytes
    assert recommended_rmem_max(image_bytes) >= max(needed, 10_485_760)


@pytest.mark.parametrize(
    ("limit", "image_bytes", "enough"),
    [  # measured with Cyclone DDS and 10 MB requested
        (1_048_576, HD, False),
        (2_097_152, HD, True),
        (2_097_152, FULL_HD, False),
        (4_194_304, FULL_HD, True),
        (STOCK, HD, False),
    ],
)
def test_the_needed_limit_agrees_with_measurements(limit: int, image_bytes: int, enough: bool) -> None:
    assert (limit >= needed_rmem_max(image_bytes)) == enough


def test_the_warning_has_values_command_and_alternatives_and_is_logged_once() -> None:
    logged = LoggedCheck(CYCLONE_UDP)
    logged.check.check_first_image("front", "1280 x 720 bgr8", HD, reliable=False)
    logged.check.check_first_image("rear", "1280 x 720 bgr8", HD, reliable=False)
    logged.check.check_after_losses("front", "1280 x 720 bgr8", HD)
    (line,) = logged.warnings
    assert f"must be at least {needed_rmem_max(HD)} and is 212992" in line
    assert "`sysctl -w net.core.rmem_max=10485760`" in line
    assert "`echo net.core.rmem_max=10485760 > /etc/sysctl.d/60-multi-dnn-ros.conf`" in line
    for alternative in ("transport: compressed", "config/cyclonedds.xml", "fastdds_shared_memory.xml"):
        assert alternative in line


def test_an_image_that_needs_more_than_recommended_is_warned_about_again() -> None:
    logged = LoggedCheck(CYCLONE_UDP)
    logged.check.check_first_image("front", "1280 x 720 bgr8", HD, reliable=False)
    logged.check.check_first_image("rear", "7680 x 4320 bgr8", 7680 * 4320 * 3, reliable=False)
    assert len(logged.warnings) == 2


@pytest.mark.parametrize("middleware", [CYCLONE_UDP, FAST_UDP])
def test_images_that_fit_are_no_warning(middleware: Middleware) -> None:
    logged = LoggedCheck(middleware)
    logged.check.check_first_image("front", "150000 bytes jpeg", 150_000, reliable=False)
    logged.check.check_after_losses("front", "150000 bytes jpeg", 150_000)
    raised = LoggedCheck(middleware, 4_194_304)
    raised.check.check_first_image("front", "1920 x 1080 bgr8", FULL_HD, reliable=False)
    assert logged.warnings == raised.warnings == []


@pytest.mark.parametrize("middleware", [FAST_SHARED, USERS])
def test_with_shared_memory_only_losses_are_a_warning(middleware: Middleware) -> None:
    logged = LoggedCheck(middleware)
    logged.check.check_first_image("front", "1280 x 720 bgr8", HD, reliable=False)
    assert logged.warnings == []
    logged.check.check_after_losses("front", "", 0)  # nothing has arrived at all
    (line,) = logged.warnings
    assert "images of 1280x720 bgr8" in line


def test_a_reliable_camera_is_warned_about_when_images_are_lost() -> None:
    """It may send as much as the buffer holds and the rest on demand."""
    logged = LoggedCheck(CYCLONE_UDP)
    logged.check.check_first_image("front", "1280 x 720 bgr8", HD, reliable=True)
    assert logged.warnings == []
    logged.check.check_after_losses("front", "1280 x 720 bgr8", HD)
    assert len(logged.warnings) == 1


def test_without_udp_sockets_there_is_no_warning() -> None:
    logged = LoggedCheck(CYCLONE_UDP, buffer=None)
    logged.check.check_first_image("front", "1280 x 720 bgr8", HD, reliable=False)
    logged.check.check_after_losses("front", "1280 x 720 bgr8", HD)
    logged.check.log_limit(["front"])
    assert logged.warnings == logged.infos == []


def test_a_buffer_below_the_kernel_limit_is_a_middleware_setting() -> None:
    logged = LoggedCheck(USERS, limit=10_485_760, buffer=2 * 1_048_576)
    logged.check.check_after_losses("front", "1280 x 720 bgr8", HD)
    (line,) = logged.warnings
    assert "needs 1570910 bytes and is 1048576" in line
    assert "sysctl -w" not in line


def test_configuring_logs_the_size_that_fits_if_common_images_do_not() -> None:
    logged, raised, compressed = LoggedCheck(CYCLONE_UDP), LoggedCheck(CYCLONE_UDP, 4_194_304), LoggedCheck(CYCLONE_UDP)
    logged.check.log_limit(["front", "rear"])
    raised.check.log_limit(["front"])
    compressed.check.log_limit([])
    assert len(logged.infos) == 1
    assert "212992" in logged.infos[0]
    assert raised.infos == compressed.infos == []


@pytest.mark.parametrize(
    ("limit", "drops", "source", "reliable", "words"),
    [
        (STOCK, 100, LossSource.GAPS, False, "sysctl -w net.core.rmem_max=10485760"),
        (STOCK, 0, LossSource.EVENTS, False, "sysctl -w net.core.rmem_max=10485760"),
        (10_485_760, 100, LossSource.GAPS, False, "overloaded"),
        (10_485_760, 0, LossSource.RATE, True, "camera.front.rate_hz"),
        (10_485_760, 0, LossSource.EVENTS, False, "the network loses images, or the camera skipped frames"),
        (10_485_760, 0, LossSource.SEQUENCE_NUMBERS, True, "camera.front.depth"),
    ],
)
def test_the_likely_cause(limit: int, drops: int, source: LossSource, reliable: bool, words: str) -> None:
    losses = Losses(10, 90, 0.9, source, drops)
    assert words in LoggedCheck(CYCLONE_UDP, limit).check.explain_losses(losses, HD, reliable, "front")


def test_the_cause_for_a_reliable_fast_dds_camera_is_its_segment() -> None:
    losses = Losses(10, 90, 0.9, LossSource.SEQUENCE_NUMBERS, 0)
    cause = LoggedCheck(FAST_SHARED).check.explain_losses(losses, HD, True, "front")
    assert cause.startswith("the shared-memory segment of the camera's process is too small for its images")
    assert "use config/fastdds_shared_memory.xml for that process, or raise net.core.rmem_max" in cause


@pytest.mark.parametrize("reliable", [True, False])
def test_no_segment_is_blamed_where_images_arrive_by_udp(reliable: bool) -> None:
    losses = Losses(10, 90, 0.9, LossSource.SEQUENCE_NUMBERS, 0)
    cause = LoggedCheck(FAST_UDP, 10_485_760).check.explain_losses(losses, HD, reliable, "front")
    assert "segment" not in cause
    assert "net.core.rmem_max" not in cause
    assert "the camera skipped frames" in cause


def test_the_segment_may_be_the_cause_for_a_best_effort_fast_dds_camera() -> None:
    losses = Losses(10, 90, 0.9, LossSource.EVENTS, 0)
    cause = LoggedCheck(FAST_SHARED, 10_485_760).check.explain_losses(losses, HD, False, "front")
    assert cause.startswith("the network, or the camera's shared-memory segment (Fast DDS), loses images")


def test_a_camera_without_images_hides_no_warning_about_another() -> None:
    logged = LoggedCheck(CYCLONE_UDP)
    for _ in range(2):
        logged.check.check_after_losses("unplugged", "", 0)
    logged.check.check_after_losses("front", "1280 x 720 bgr8", HD)
    guess, line = logged.warnings
    assert "no image has arrived" in guess
    assert "are lost" not in guess
    assert "camera front: images of 1280 x 720 bgr8 (2764800 bytes) are lost" in line


def test_jpeg_is_not_recommended_for_a_compressed_camera() -> None:
    logged = LoggedCheck(CYCLONE_UDP)
    logged.check.check_after_losses("front", "900000 bytes jpeg", 900_000, "compressed")
    (line,) = logged.warnings
    cause = logged.check.explain_losses(Losses(10, 90, 0.9, LossSource.RATE, 5), 900_000, False, "front", "compressed")
    for text in (line, cause):
        assert "smaller images or a lower JPEG quality" in text
        assert "transport: compressed" not in text
        assert "JPEG images" not in text


def test_a_limit_that_cannot_be_read_is_not_blamed_for_losses() -> None:
    """As in a container without /proc/sys."""
    logged = LoggedCheck(USERS, limit=None)
    losses = Losses(5, 5, 0.5, LossSource.RATE, 3)
    text = logged.check.explain_losses(losses, HD, reliable=False, camera="front")
    assert "net.core.rmem_max is" not in text
    assert "the sockets' receive buffer is" in text
    logged.check.log_limit(["front"])
    assert "net.core.rmem_max is unknown" in logged.infos[0]
