"""Settings of the middleware: those of this package only if the user has none; the limit of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.ros import middleware
from multi_dnn_ros.ros.middleware import configure, remedy_for_size

HD = 1280 * 720 * 3


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
    assert {path.name for path in found} == ({file} - {None})
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
