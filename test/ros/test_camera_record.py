"""Missing images of a camera, and settings of the middleware: those of this package only if the user has none."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.ros import middleware
from multi_dnn_ros.ros.camera_record import CameraRecord
from multi_dnn_ros.ros.middleware import configure, remedy_for_size

SECOND = 1_000_000_000
HD = 1280 * 720 * 3


def record_at(hz: float, seconds: float, **arguments: float) -> tuple[CameraRecord, int]:
    """A record of a camera that has sent for this time, and the time of its last image."""
    record = CameraRecord("front", "/front", 0, **arguments)  # type: ignore[arg-type]
    now = 0
    for index in range(1, round(hz * seconds) + 1):
        now = round(index * SECOND / hz)
        record.arrived(now, "", HD, now, now)
    return record, now


@given(st.floats(1.0, 100.0), st.floats(0.0, 0.9))
def test_the_share_of_missing_images_follows_from_the_rate(rate_hz: float, share: float) -> None:
    record, now = record_at(rate_hz * (1 - share), 60, rate_hz=rate_hz)
    if 10 * rate_hz * (1 - share) >= 7:
        assert record.missing(now) == pytest.approx(share, abs=0.02)


@given(st.integers(0, 100), st.integers(0, 100))
def test_the_share_of_missing_images_follows_from_reported_losses(received: int, lost: int) -> None:
    record, now = record_at(10, received / 10)
    record.reported_lost(now, lost)
    expected = lost / (received + lost) if received + lost >= 5 else 0.0
    assert record.missing(now) == pytest.approx(expected, abs=0.01)
    assert record.missing(now + 20 * SECOND) == 0.0  # of the last 10 s


def test_nothing_is_missing_while_nothing_is_known() -> None:
    record, now = record_at(3, 60)
    assert record.missing(now) == 0.0
    assert CameraRecord("front", "/front", 0, rate_hz=30.0).missing(SECOND) == 0.0


@given(st.integers(1, 10**8), st.integers(1, 10**8))
def test_the_recommended_limit_is_enough(image_bytes: int, limit: int) -> None:
    text = remedy_for_size(image_bytes, "JPEG images", limit)
    if text:
        recommended = int(text.split("rmem_max=")[1].split("`")[0])
        assert str(limit) in text
        assert recommended >= 10_485_760
        assert remedy_for_size(image_bytes, "JPEG images", recommended) == ""


def test_an_unknown_limit_is_not_blamed() -> None:
    assert remedy_for_size(HD, "JPEG images", None) == ""


@pytest.fixture
def running_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Makes the module see this RMW implementation and kernel limit, in an empty working directory."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, limit: int = 4_194_304) -> None:
        monkeypatch.setattr(middleware, "get_rmw_implementation_identifier", lambda: name)
        monkeypatch.setattr(middleware, "rmem_max_bytes", lambda: limit)

    return run


@pytest.mark.parametrize(
    ("name", "limit", "file"),
    [
        ("rmw_cyclonedds_cpp", 212_992, "cyclonedds.xml"),
        ("rmw_fastrtps_cpp", 4_194_304, "fastdds_udp.xml"),
        ("rmw_fastrtps_cpp", 212_992, None),  # a reliable camera delivers every image by its own settings
        ("rmw_connextdds", 4_194_304, None),
    ],
)
def test_the_file_depends_on_the_middleware_and_the_kernel(running_on, name: str, limit: int, file: str | None) -> None:
    running_on(name, limit)
    environment: dict[str, str] = {}
    assert name in configure(environment)
    found = [Path(value.removeprefix("file://")) for value in environment.values()]
    assert [path.name for path in found] == ([] if file is None else [file])
    assert all(path.is_file() for path in found)


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("rmw_cyclonedds_cpp", "CYCLONEDDS_URI"),
        ("rmw_fastrtps_cpp", "FASTRTPS_DEFAULT_PROFILES_FILE"),
        ("rmw_fastrtps_cpp", "FASTDDS_DEFAULT_PROFILES_FILE"),
        ("rmw_fastrtps_cpp", "FASTDDS_BUILTIN_TRANSPORTS"),
    ],
)
def test_variables_of_the_user_are_kept(running_on, name: str, variable: str) -> None:
    running_on(name)
    environment = {variable: "mine"}
    assert f"{variable}=mine" in configure(environment)
    assert environment == {variable: "mine"}


def test_a_profile_file_of_the_user_is_kept(running_on, tmp_path: Path) -> None:
    running_on("rmw_fastrtps_cpp")
    (tmp_path / "DEFAULT_FASTRTPS_PROFILES.xml").write_text("<profiles/>")
    environment: dict[str, str] = {}
    configure(environment)
    assert environment == {}
