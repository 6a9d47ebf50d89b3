"""``multi-dnn replay --live``: every frame of a recording through a node in another process, reproducibly."""

from __future__ import annotations

import filecmp
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fork_server import ForkServer
from replay_fakes import parsed, read_bag
from road_bag import CORRUPT, TOPIC, scenes, write_road
from waiting import until

from multi_dnn_ros.bags import BagWriter
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.processes import Child, loopback_environment, reserved_domain
from multi_dnn_ros.replay.remote_node import RemoteNode
from multi_dnn_ros.replay.spinning import spinning

FRAMES = 9  # one after the damaged one
#: Each replay configures the DNNs again, and this backend is ready first. Outside replays, most frames are dropped.
PARAMETERS = """\
/**:
  ros__parameters:
    device: cpu
    dnns: [lane, object]
    dnn:
      lane: {backend: eager, jobs: 1, max_rate_hz: 1.0}
      object: {backend: eager, jobs: 1, max_age_ms: 80.0, enable: false}
"""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording whose frames can all be decoded."""
    return write_road(tmp_path_factory.mktemp("road") / "drive", scenes(CORRUPT))


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    with reserved_domain() as domain:
        yield loopback_environment(domain)


@pytest.fixture(scope="module")
def parameters_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parameters") / "robot.yaml"
    path.write_text(PARAMETERS)
    return path


@pytest.fixture(scope="module")
def node(
    tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str], parameters_file: Path
) -> Iterator[Child]:
    log = tmp_path_factory.mktemp("node") / "node.log"
    parameters = ("--params-file", str(parameters_file), "-p", "autostart:=false", "-p", "use_sim_time:=true")
    with Child("node", ["run", "--ros-args", *parameters], log, environment) as child:
        yield child


def replay(fork_server: ForkServer, environment: dict[str, str], *arguments: str | Path) -> tuple[int, list[str], str]:
    """Exit code, lines of the output, and errors of a live replay."""
    command = [sys.executable, "-m", "multi_dnn_ros.cli.main", "replay", *map(str, arguments)]
    done = fork_server.run([*command, "--live", "--rate", "100"], timeout=200, env={**os.environ, **environment})
    return done.returncode, done.stdout.splitlines(), done.stderr


def same_files(one: Path, two: Path) -> bool:
    """Whether two folders hold the same names with the same bytes."""
    names = sorted(file.name for file in one.iterdir())
    assert names == sorted(file.name for file in two.iterdir())
    return filecmp.cmpfiles(one, two, names, shallow=False) == (names, [], [])


@pytest.fixture(scope="module")
def live(
    fork_server: ForkServer, node: Child, environment: dict[str, str], recording: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:  # fmt: skip
    """Replayed at a hundred times its speed, too fast for any CPU."""
    output = tmp_path_factory.mktemp("live") / "results"
    code, lines, errors = replay(fork_server, environment, recording, output)
    assert code == 0, errors + node.last_lines(20)
    assert lines[-1] == f"{CORRUPT} of {CORRUPT} frames"
    return output


def test_every_frame_has_the_results_of_every_dnn(live: Path) -> None:
    results = read_bag(live)
    for name in ("lane/mask", "lane/points", "object/detections"):
        headers = [parsed(message).header for message in results if message.topic == f"/multi_dnn/front/{name}"]
        assert len(headers) == CORRUPT
        assert [header.frame_id for header in headers] == ["windscreen"] * CORRUPT
    summary = json.loads((live / "summary.json").read_text())
    assert (summary["frames"], summary["complete"], summary["stopped"]) == (CORRUPT, CORRUPT, "")


def test_the_results_equal_those_of_a_replay_without_ros(
    live: Path, recording: Path, parameters_file: Path, tmp_path: Path
) -> None:
    assert main(["replay", str(recording), str(tmp_path / "offline"), "--params-file", str(parameters_file)]) == 0
    for name in ("recording.mcap", "metadata.yaml"):
        assert (tmp_path / "offline" / name).read_bytes() == (live / name).read_bytes()


def test_a_second_replay_is_equal_byte_for_byte_and_the_parameters_are_as_before(
    fork_server: ForkServer,
    node: Child,
    environment: dict[str, str],
    live: Path,
    recording: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, _, errors = replay(
        fork_server, environment, recording, tmp_path / "another name"
    )  # by the same node, configured again
    assert code == 0, errors
    assert same_files(live, tmp_path / "another name")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    before = {"dnn.lane.max_rate_hz": 1.0, "dnn.object.max_age_ms": 80.0, "dnn.object.enable": False}
    with spinning("asking", []) as spinner:
        assert RemoteNode(spinner.node, "/multi_dnn", 30.0).parameters(list(before)) == before


def test_frames_that_the_node_drops_are_counted_and_the_next_are_played(
    fork_server: ForkServer, node: Child, environment: dict[str, str], tmp_path: Path
) -> None:
    """One frame whose image data is too short, and one whose message is truncated."""
    whole = read_bag(write_road(tmp_path / "whole", scenes(FRAMES), "sqlite3"))
    with BagWriter(tmp_path / "drive", "sqlite3") as writer:
        writer.add_topic(TOPIC, whole[0].msgtype)
        for index, message in enumerate(whole):
            writer.write(TOPIC, message.stamp_ns, message.data[:40] if index == 1 else message.data)
    drive = tmp_path / "drive"
    code, lines, _ = replay(
        fork_server, environment, drive, tmp_path / "results", "--storage", "sqlite3", "--with-input"
    )
    assert code == 1
    assert lines[-1] == f"{FRAMES - 2} of {FRAMES} frames"
    summary = json.loads((tmp_path / "results" / "summary.json").read_text())
    assert [stream["dropped"] for stream in summary["streams"]] == [{"bad_image": 2}] * 2
    results = read_bag(tmp_path / "results")
    assert [message for message in results if message.topic == TOPIC] == read_bag(drive)
    assert sum(message.topic == "/multi_dnn/front/object/detections" for message in results) == FRAMES - 2


def test_a_recording_without_the_camera_is_an_error_that_lists_the_topics(
    fork_server: ForkServer, node: Child, environment: dict[str, str], recording: Path, tmp_path: Path
) -> None:
    code, _, errors = replay(fork_server, environment, recording, tmp_path / "results", "--topic", "front:=/up")
    assert code == 1
    assert "no topic /up for camera 'front'; it has /front/image_raw" in errors
    assert not (tmp_path / "results").exists()


def test_without_a_node_it_says_which_service_it_waited_for(
    fork_server: ForkServer, recording: Path, tmp_path: Path
) -> None:
    with reserved_domain() as domain:
        code, _, errors = replay(
            fork_server, loopback_environment(domain), recording, tmp_path / "results", "--start-timeout", "1"
        )
    assert code == 1
    assert "no service /multi_dnn/get_state after 1 s" in errors
    assert not (tmp_path / "results").exists()


def test_a_node_that_ends_leaves_what_it_has_done(recording: Path, parameters_file: Path, tmp_path: Path) -> None:
    """The node is stopped when it becomes active."""
    with reserved_domain() as domain:
        log, environment = tmp_path / "node.log", loopback_environment(domain)
        parameters = ("--params-file", str(parameters_file), "-p", "autostart:=false", "-p", "dnns:=[object]")
        with Child("node", ["run", "--ros-args", *parameters], log, environment) as child:
            command = ["replay", str(recording), str(tmp_path / "results"), "--live", "--rate", "0.2"]
            with Child("replay", command, tmp_path / "replay.log", environment) as player:
                until(lambda: "active" in log.read_text(), "an active node", 120.0, lambda: child.last_lines(30))
                child.stop()
                until(lambda: player.exit_code() is not None, "its end", 120.0, lambda: player.last_lines(30))
                text = (tmp_path / "replay.log").read_text()
    assert player.exit_code() == 1, text
    assert "the node /multi_dnn has ended" in text
    last = text.splitlines()[-1]
    if "frames" in last:  # it ended while frames were played, not while the two connected
        assert last.endswith(f" of {CORRUPT} frames")
        summary = json.loads((tmp_path / "results" / "summary.json").read_text())
        assert summary["complete"] < CORRUPT
        assert summary["stopped"] == "the node /multi_dnn has ended"
