"""Settings of the middleware: those of this package only if the user has none."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from multi_dnn_ros.ros import middleware
from multi_dnn_ros.ros.middleware import CYCLONE, FAST, configure

VARIABLES = ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE")


@pytest.fixture
def running_on(monkeypatch: pytest.MonkeyPatch):
    """Makes the module see this RMW implementation and kernel limit."""

    def run(name: str, limit: int = 4_194_304, fast_2: bool = True, shared_memory: int = 10**9) -> None:
        monkeypatch.setattr(middleware, "_free_shared_memory_bytes", lambda: shared_memory)
        monkeypatch.setattr(middleware, "get_rmw_implementation_identifier", lambda: name)
        monkeypatch.setattr(middleware, "rmem_max_bytes", lambda: limit)
        monkeypatch.setattr(middleware, "_is_fast_dds_2", lambda: fast_2)

    return run


def test_cyclone_dds_is_configured_with_our_file(running_on, tmp_path: Path) -> None:
    running_on(CYCLONE)
    environment = {"CYCLONEDDS_URI": ""}
    found = configure(environment, tmp_path)
    assert found.package_file is not None
    assert found.package_file.name == "cyclonedds.xml"
    assert environment == {"CYCLONEDDS_URI": f"file://{found.package_file}"}
    assert str(found.package_file) in found.text
    assert "SocketReceiveBufferSize" in found.package_file.read_text()


@pytest.mark.parametrize(("limit", "name"), [(212_992, "fastdds_shared_memory.xml"), (4_194_304, "fastdds_udp.xml")])
def test_the_file_for_fast_dds_depends_on_the_kernel_limit(running_on, tmp_path: Path, limit: int, name: str) -> None:
    running_on(FAST, limit)
    environment: dict[str, str] = {}
    found = configure(environment, tmp_path)
    assert found.package_file is not None
    assert found.package_file.name == name
    assert environment == {VARIABLES[0]: str(found.package_file)}
    assert f"net.core.rmem_max is {limit}" in found.text


def test_fast_dds_keeps_its_defaults_if_shared_memory_is_too_small(running_on, tmp_path: Path) -> None:
    running_on(FAST, 212_992, shared_memory=64 * 2**20)  # a container at Docker's defaults
    environment: dict[str, str] = {}
    found = configure(environment, tmp_path)
    assert (environment, found.package_file) == ({}, None)
    assert "/dev/shm has 67108864 bytes free" in found.text
    assert "--shm-size" in found.text


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        (CYCLONE, {"CYCLONEDDS_URI": "<CycloneDDS/>"}),
        (FAST, {VARIABLES[0]: "/mine.xml"}),
        (FAST, {VARIABLES[1]: "/mine.xml"}),
        (FAST, {"FASTDDS_BUILTIN_TRANSPORTS": "LARGE_DATA"}),
    ],
)
def test_variables_of_the_user_are_kept(running_on, tmp_path: Path, name: str, variables: dict[str, str]) -> None:
    running_on(name)
    environment = dict(variables)
    found = configure(environment, tmp_path)
    assert environment == variables
    assert found.package_file is None
    assert "with your " in found.text
    assert next(iter(variables.values())) in found.text


@pytest.mark.parametrize("name", ["DEFAULT_FASTRTPS_PROFILES.xml", "DEFAULT_FASTDDS_PROFILES.xml"])
def test_a_profile_file_of_the_user_is_kept(running_on, tmp_path: Path, name: str) -> None:
    running_on(FAST)
    (tmp_path / name).write_text("<profiles/>")
    environment: dict[str, str] = {}
    assert configure(environment, tmp_path).package_file is None
    assert environment == {}


def test_fast_dds_3_is_not_configured(running_on, tmp_path: Path) -> None:
    running_on(FAST, fast_2=False)
    environment: dict[str, str] = {}
    assert configure(environment, tmp_path).package_file is None
    assert environment == {}


def test_another_middleware_is_not_configured(running_on, tmp_path: Path) -> None:
    running_on("rmw_connextdds")
    environment: dict[str, str] = {}
    assert configure(environment, tmp_path).package_file is None
    assert environment == {}


@pytest.mark.parametrize("name", ["cyclonedds.xml", "fastdds_udp.xml", "fastdds_shared_memory.xml"])
def test_the_files_are_xml_and_are_installed(name: str) -> None:
    root = Path(__file__).resolve().parents[2]
    ElementTree.parse(root / "config" / name)
    assert re.search(r'for kind in \([^)]*"xml"', (root / "setup.py").read_text())
