"""``multi-dnn benchmark host``: CPU time is counted correctly, by process and group of threads."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.benchmark.host_cases import HostCase
from multi_dnn_ros.benchmark.host_cost import _counted_hz
from multi_dnn_ros.benchmark.host_report import compare, host_table, read_baseline
from multi_dnn_ros.benchmark.peers.arrivals import Arrivals
from multi_dnn_ros.benchmark.peers.detector_node import DetectorNode
from multi_dnn_ros.benchmark.thread_usage import ProcessUsage, ThreadKey, Usage, read_process, used_between
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.reporting import provenance

_BURN = """
import sys, threading, time
from multi_dnn_ros.common.thread_names import name_threads
go = threading.Event()
def burn():
    go.wait()
    while time.thread_time() < 0.3:
        pass
    print("burnt", flush=True)
    threading.Event().wait()
threading.Thread(target=burn, name="decode-front_left_wide", daemon=True).start()
name_threads()
print("ready", flush=True)
sys.stdin.readline()
go.set()
sys.stdin.readline()
"""


def groups(number: int, name: str) -> str:
    return "main" if number == 0 else name


def test_cpu_time_is_attributed_to_the_thread_that_used_it() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    try:
        assert child.stdin
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        first = read_process(child.pid)
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "burnt\n"
        used = used_between(first, read_process(child.pid), groups)
        assert set(used) == {"main", "decode-front_le"}  # Linux keeps 15 bytes
        assert 0.28e9 <= used["decode-front_le"].cpu_ns <= 0.6e9
        assert used["main"].cpu_ns < 0.2e9
        assert used["main"].switches >= 1
        child.stdin.close()
        child.wait(30)
        with pytest.raises((FileNotFoundError, ProcessLookupError)):
            read_process(child.pid)
    finally:
        child.kill()
        child.wait()


COUNTS = st.integers(0, 10**12)
USAGES = st.builds(Usage, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS)


@given(st.lists(st.tuples(USAGES, USAGES, st.sampled_from("abc")), max_size=6))
def test_groups_are_sums_of_their_threads(threads: list[tuple[Usage, Usage, str]]) -> None:
    keys = [ThreadKey(number, 5) for number in range(len(threads))]
    names = {key: name for key, (_, _, name) in zip(keys, threads, strict=True)}
    before = {key: usage for key, (usage, _, _) in zip(keys, threads, strict=True)}
    after = {key: usage + more for key, (usage, more, _) in zip(keys, threads, strict=True)}
    after[ThreadKey(0, 9)] = Usage(cpu_ns=7)  # the number of an ended thread, used again
    names[ThreadKey(0, 9)] = "new"
    used = used_between(ProcessUsage(0, {}, before, 0), ProcessUsage(0, names, after, 0), lambda number, name: name)
    assert used.pop("new") == Usage(cpu_ns=7)
    assert sum((usage.cpu_ns for usage in used.values()), 0) == sum(more.cpu_ns for _, more, _ in threads)
    for name, usage in used.items():
        assert usage == sum((more for _, more, group in threads if group == name), Usage())


def run(
    output: Path, *presets: str, size: str = "160x120", encoding: str = "jpeg", more: Sequence[str] = ()
) -> dict[str, Any]:
    """What the command writes for one camera with each of these presets."""
    assert main(
        ["benchmark", "host", "--presets", *presets, "--cameras", "1", "--sizes", size, "--encodings", encoding,
         "--rate", "20", "--seconds", "2", "--output", str(output), *more]
    ) == 0  # fmt: skip
    return dict(json.loads(output.read_text()))


def check_results(case: dict[str, Any], elapsed_s: float) -> None:
    assert 0 < case["results_hz"] <= 1.5 * case["offered_results_hz"]
    assert case["latency_ms"]["p99"] >= case["latency_ms"]["p50"] > 0
    assert 0 < case["cpu_ms_per_result"] < 2e3 * elapsed_s


def test_a_run_with_our_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multi_dnn_ros.benchmark.host_cost._WARM_UP_S", 0.5)
    monkeypatch.setattr("multi_dnn_ros.benchmark.rig._SETTLE_S", 0.1)
    monkeypatch.setenv("FORK_SERVER", "off")  # a fork server of the node would be counted as one of its processes
    output, plot = tmp_path / "host.json", tmp_path / "host.png"
    begin = time.monotonic()
    found = run(output, "null", size="640x480", encoding="bgr8", more=("--plot", str(plot)))
    elapsed_s = time.monotonic() - begin
    assert plot.read_bytes().startswith(b"\x89PNG")
    (null,) = found["cases"].values()
    assert set(null["processes"]) == {"node", "engine 1", "camera camera0"}
    node_groups = null["processes"]["node"]["groups"]
    assert {"receive", "decode", "publish"} <= set(node_groups)
    assert node_groups["decode"]["threads"] == 1  # OpenCV starts no threads of its own
    assert null["processes"]["engine 1"]["groups"]["engine"]["cpu_ms"] > 0
    check_results(null, elapsed_s)
    counts = null["accounts"]["null on camera0"]
    assert counts["offered"] == counts["published"] + sum(counts["dropped"].values())
    assert "null 1x640x480@20 bgr8" in capsys.readouterr().out

    ratios = compare(found, read_baseline(output))["ratios"]
    assert all(value == 1.0 for of_case in ratios.values() for value in of_case.values())
    assert "this run / baseline" in host_table({**found, "baseline": compare(found, found)})


@pytest.mark.long  # the short test above runs the package's node
def test_a_run_with_peers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A peer that only counts images, and one node per DNN."""
    begin = time.monotonic()
    counter, nodes = run(tmp_path / "host.json", "counter", "three_nodes")["cases"].values()
    assert set(counter["processes"]) == {"peer counter", "camera camera0"}
    assert counter["latency_ms"] is None
    assert counter["cpu_ms_per_result"] is None
    assert 0 < counter["frames_received_hz"] < 40
    assert set(nodes["processes"]) == {"peer lane", "peer object", "peer pedestrian", "camera camera0"}
    check_results(nodes, time.monotonic() - begin)
    assert nodes["frames_received_hz"] == pytest.approx(nodes["results_hz"] / 3, rel=0.5)
    printed = capsys.readouterr().out
    assert "counter 1x160x120@20 jpeg" in printed
    assert "three_nodes 1x160x120@20 jpeg" in printed


def test_the_images_of_peers_are_those_that_they_received(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that computes for longer than the period of a camera receives fewer images than were sent."""
    logs = []
    for name, images in (("lane", 11), ("object", 6)):
        now = iter(number * 10.0 / (images - 1) + 1.0 for number in range(images))
        monkeypatch.setattr("multi_dnn_ros.benchmark.peers.arrivals.time.monotonic", lambda now=now: next(now))
        arrivals = Arrivals()
        for _ in range(images):
            arrivals.add()
        logs.append(tmp_path / f"{name}.log")
        logs[-1].write_text(f"starting\n{arrivals.text()}\n")
    assert _counted_hz(logs) == pytest.approx((1.0 + 0.5) / 2)
    assert _counted_hz(logs[:1]) == pytest.approx(1.0)
    logs[0].write_text(Arrivals().text())
    assert _counted_hz(logs[:1]) == 0.0
    logs[0].write_text("it was killed")
    assert _counted_hz(logs[:1]) is None


def test_a_detector_node_counts_what_it_receives() -> None:
    node = DetectorNode.__new__(DetectorNode)
    node.arrivals = Arrivals()
    message = SimpleNamespace(height=1, width=1, step=3, data=b"123", encoding="rgb7")
    with pytest.raises(ValueError, match="encoding is 'rgb7'"):
        node._receive("front", message)
    assert '"messages": 1' in node.arrivals.text()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--presets", "fast"],
            "--presets fast: no such file; allowed: builtin, heavy_gpu, null, counter, three_nodes",
        ),
        (["--presets", "heavy_gpu", "--device", "cpu"], "--presets heavy_gpu needs a GPU"),
        (["--baseline", "none.json"], "none.json: cannot be read"),
        (["--baseline", "README.md"], "README.md: not JSON, or truncated"),
        (["--baseline", "results/demo.json"], "not written by `multi-dnn benchmark host --output`"),
        (["--rate", "0"], "--rate"),
    ],
)
def test_cases_that_cannot_run_are_reported(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["benchmark", "host", *arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 2
    assert text in capsys.readouterr().err


#: The measured figures of a case; none of them is asserted.
MEASURED: dict[str, Any] = {
    "offered_results_hz": 10.0, "results_hz": 9.0, "cpu_ms_per_result": 2.0, "cpu_ms_per_frame": 2.0, "processes": {},
}  # fmt: skip


class _Measured(list[str]):
    """Names of the measured cases. error: raised by cases with three cameras."""

    error: BaseException = AssertionError()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> _Measured:
    """The cases that the command measures; nothing is started."""
    names = _Measured()

    def measure(case: HostCase, *rest: object) -> tuple[dict[str, Any], list[float]]:
        if case.cameras == 3:
            raise names.error
        names.append(case.name)
        return MEASURED, [5.0]

    monkeypatch.setattr("multi_dnn_ros.benchmark.host_cost._measure", measure)
    return names


SMALL = ["benchmark", "host", "--sizes", "8x8", "--encodings", "jpeg", "--rate", "1", "--cameras"]


def test_what_cannot_be_measured_or_compared_is_refused_before_the_first_case(
    measured: _Measured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline, parameters = tmp_path / "baseline.json", tmp_path / "parameters.yaml"
    baseline.write_text(json.dumps({"scenario": "host", "cases": {"other": {}}}))
    parameters.write_text(
        "/**: {ros__parameters: {cameras: [camera0, camera1], dnns: [lane], dnn: {lane: {cameras: [camera0]}}}}\n"
    )
    for more, words in (
        (["1", "--presets", "counter", "--baseline", str(baseline)],
         "no case in common; it has other; this run has counter 1x8x8@1 jpeg"),
        (["1", "--presets", "counter", "three_nodes", "--encodings", "jpeg", "mono8"],
         "--encodings mono8: allowed with preset three_nodes: jpeg, rgb8, bgr8"),
        (["1", "--presets", "counter", "heavy_gpu", "--device", "cpu"], "--presets heavy_gpu needs a GPU"),
        (["1", "2", "--presets", "counter", str(parameters)], "camera camera1 of this run is in none"),
    ):  # fmt: skip
        assert main([*SMALL, *more]) == 2
        assert words in capsys.readouterr().err
    assert measured == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), CommandError("the node process ended")])
def test_a_run_that_ends_early_keeps_the_finished_cases(
    error: BaseException, measured: _Measured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured.error = error
    baseline, output, plot = tmp_path / "baseline.json", tmp_path / "host.json", tmp_path / "host.png"
    command = [*SMALL, "1", "2", "3", "--presets", "counter", "--output"]
    assert main([*command, str(baseline)]) == (130 if isinstance(error, KeyboardInterrupt) else 1)
    assert list(read_baseline(baseline)["cases"]) == ["counter 1x8x8@1 jpeg", "counter 2x8x8@1 jpeg"]
    assert main([*command, str(output), "--baseline", str(baseline), "--plot", str(plot)]) != 0
    assert list(json.loads(output.read_text())["baseline"]["ratios"]) == list(read_baseline(baseline)["cases"])
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert len(measured) == 4
    printed = capsys.readouterr().out
    assert "this run / baseline" in printed
    assert f"written to {output}" in printed


def test_other_conditions_of_the_baseline_are_named() -> None:
    figures: dict[str, Any] = {"runtime": "rmw_fastrtps_cpp", "seconds": 5.0, "cases": {"a": {"latency_ms": None}}}
    machine = provenance()["machine"]
    baseline = {**figures, "command": "multi-dnn benchmark host", "versions": {}, "machine": machine}
    assert compare(figures, baseline)["different"] == []
    other = {**baseline, "runtime": "rmw_cyclonedds_cpp", "machine": {**machine, "cores": 999}}
    assert compare(figures, other)["different"] == [
        "runtime was rmw_cyclonedds_cpp and is rmw_fastrtps_cpp",
        f"cores was 999 and is {machine['cores']}",
    ]
