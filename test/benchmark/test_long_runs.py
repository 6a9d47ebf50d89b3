"""Short runs of the scenarios load, camera-faults and cycles: the node passes their checks, and their reports are
complete.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.benchmark import cycles, isolation, load
from multi_dnn_ros.benchmark.camera_faults import camera_fault_problems
from multi_dnn_ros.benchmark.cameras import CameraPlan
from multi_dnn_ros.benchmark.gpu_watch import parse_output
from multi_dnn_ros.benchmark.load import fair_shares, load_problems
from multi_dnn_ros.benchmark.node_config import reported_results
from multi_dnn_ros.benchmark.rig import Rig
from multi_dnn_ros.benchmark.samples import NodeSample, Receipts
from multi_dnn_ros.benchmark.soak import verdicts
from multi_dnn_ros.benchmark.soak.run import _detecting
from multi_dnn_ros.benchmark.soak.run import _Run as SoakRunner
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.settings.params_file import read_params_file
from multi_dnn_ros.settings.schema import NodeConfig, OutputConfig

ONE_DNN = """\
/**:
  ros__parameters:
    dnns: [object]
    dnn: {object: {backend: eager, jobs: 1}}
    stale_after_s: 1.0
    diagnostics_period_s: 0.25
"""


@pytest.fixture
def parameters(tmp_path: Path) -> str:
    path = tmp_path / "parameters.yaml"
    path.write_text(ONE_DNN)
    return str(path)


def figures(output: Path) -> dict:
    return dict(json.loads(output.read_text()))


@pytest.mark.long
def test_under_load_every_frame_is_accounted_for_and_no_camera_starves(
    tmp_path: Path, parameters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_camera = Rig.stop_camera

    def stop_slowly(rig: Rig, name: str) -> None:
        """As when many cameras are stopped one after another: the last one keeps sending until its turn."""
        if name == "front" and name in rig.cameras:
            time.sleep(6.0)
        stop_camera(rig, name)

    monkeypatch.setattr(Rig, "stop_camera", stop_slowly)
    Path(parameters).write_text(ONE_DNN.replace("{backend", "{model: 'builtin:object_small', backend"))
    output, plot, logs = tmp_path / "load.json", tmp_path / "load.png", tmp_path / "logs"
    logs.mkdir()
    (logs / "front").write_text("the user's own")
    # The exit code may be 1: latencies over a few seconds on a busy machine say nothing.
    assert main(
        ["benchmark", "load", "--minutes", "0.1", "--params-file", parameters, "--output", str(output),
         "--plot", str(plot), "--logs", str(logs), "--camera", "front=320x240@120:rgb8",
         "--camera", "rear=160x120@4:mono8"]
    ) in (0, 1)  # fmt: skip
    assert (logs / "front").read_text() == "the user's own"
    found = figures(output)
    assert {name: camera["rate_hz"] for name, camera in found["cameras"].items()} == {"front": 120.0, "rear": 4.0}
    assert found["flood_ratio"] is None
    for stream, counts in found["accounts"].items():
        dropped = sum(counts["dropped"].values())
        assert counts["offered"] == counts["published"] + dropped + counts["pending"], found["accounts"]
        assert counts["offered"] == found["cameras"][stream.partition(" on ")[2]]["received"]
        assert 0 < counts["observed"] == counts["published"], found["accounts"]
        assert counts["exact"]
    assert found["accounts"]["object on front"]["dropped"]["overwritten"] > 0
    # A starving camera would get results in proportion to its images, here 3 %. The fair share assumes a machine that
    # serves evenly: on one that stalls for half a second, images of both cameras are overwritten, and the faster camera
    # sends the next image.
    for camera, rates in found["fairness"]["dnns"]["object"].items():
        assert rates["published_hz"] >= 0.3 * rates["share_hz"] - 2.0 / found["seconds"], camera
    assert found["cpu_cores"]["p50"] >= 0.0
    assert found["exit_code"] == 0
    assert found["ended_after_s"] > 0.0
    assert plot.read_bytes().startswith(b"\x89PNG")
    log = (logs / "node.log").read_text()
    assert "Traceback" not in log


@pytest.mark.long  # a failed configuration of the demo in test/demo
def test_a_failed_configuration_is_reported_at_once_and_the_log_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / "parameters.yaml"
    path.write_text("/**: {ros__parameters: {dnns: [lane], dnn: {lane: {model: /none.onnx, decoder: lane}}}}\n")
    assert main(["benchmark", "load", "--minutes", "0.1", "--params-file", str(path)]) == 1
    assert "not configured: " in (text := capsys.readouterr().err)
    assert "parameter dnn.lane.model is '/none.onnx': there is no such file" in text
    assert [file.name for file in tmp_path.glob("multi_dnn_benchmark_*/*.log")] == ["node.log"]
    assert not list(tmp_path.glob("multi_dnn_recordings_*"))


def test_a_run_has_the_cameras_that_each_dnn_serves(tmp_path: Path) -> None:
    path = tmp_path / "parameters.yaml"
    path.write_text(
        "/**: {ros__parameters: {cameras: [front, rear], dnns: [lane, object], dnn: {lane: {cameras: [front]}}}}\n"
    )
    config = read_params_file(path)
    plans = [CameraPlan(name, (64, 48), "rgb8", 1.0) for name in ("front", "rear")]
    rig = Rig(tmp_path, config, plans)
    assert list(rig.accounts()) == [("lane", "front"), ("object", "front"), ("object", "rear")]
    assert rig.config.dnns["object"].cameras == ["front", "rear"]
    with pytest.raises(UsageError, match=r"dnn\.lane\.cameras is front; this run has the cameras rear"):
        Rig(tmp_path, config, plans[1:])
    alone = config.model_copy(update={"dnns": {"lane": config.dnns["lane"]}})
    with pytest.raises(UsageError, match="camera rear of this run is in none"):
        Rig(tmp_path, alone, plans)
    rates = {stream: {"offered": 4.0, "published": 2.0} for stream in rig.accounts()}
    fairness = load._fairness(rates, ["front", "rear"], ["lane", "object"])
    assert {dnn: list(rows) for dnn, rows in fairness["dnns"].items()} == {
        "lane": ["front"], "object": ["front", "rear"]
    }  # fmt: skip


def _with_outputs(config: NodeConfig) -> NodeConfig:
    """`config` with two results for its first DNN."""
    outputs = {"cars": OutputConfig(decoder="yolo"), "road": OutputConfig(decoder="drivable")}
    name, dnn = next(iter(config.dnns.items()))
    return config.model_copy(update={"dnns": {name: dnn.model_copy(update={"outputs": outputs})}})


def test_the_first_of_several_results_is_observed(tmp_path: Path, parameters: str) -> None:
    config = _with_outputs(read_params_file(parameters))
    plans = [CameraPlan("front", (64, 48), "rgb8", 1.0)]
    topic = ("/multi_dnn/front/object/cars/detections", "vision_msgs/msg/Detection2DArray")
    assert Rig(tmp_path, config, plans).result_topic("object", "front") == topic
    assert _detecting(config) == []  # several results are not tracked
    assert _detecting(read_params_file(parameters)) == ["object"]


def test_what_only_the_model_determines_is_what_the_node_reports(tmp_path: Path, parameters: str) -> None:
    config = read_params_file(parameters)
    dnn = config.dnns["object"].model_copy(update={"role": "traffic_light"})
    config = config.model_copy(update={"dnns": {"object": dnn}})
    assert _detecting(config) == []
    rig = Rig(tmp_path, config, [CameraPlan("front", (64, 48), "rgb8", 1.0)])
    with pytest.raises(ExtensionError, match="not known before configuring"):
        rig.result_topic("object", "front")
    rig._results = reported_results("lane (lanes), object/road (drivable_area), object/cars (detections)")
    name, _ = rig.result_topic("object", "front")
    assert name.startswith("/multi_dnn/front/object/road/")
    assert reported_results("lane (lanes)")["lane"][1].name == "lanes"
    assert reported_results("") == {}


def test_dnns_that_are_switched_off_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "parameters.yaml"
    path.write_text("/**: {ros__parameters: {dnns: [lane, object], dnn: {lane: {enable: false}}}}\n")
    config = read_params_file(path)
    rig = Rig(tmp_path, config, [CameraPlan("front", (64, 48), "rgb8", 1.0)])
    rig.receipts = {stream: Receipts() for stream in rig.streams}
    rig.receipts["object", "front"].add(1.0, 50.0)
    monkeypatch.setattr(Rig, "start_camera", lambda self, name: None)
    monkeypatch.setattr(Rig, "until", lambda self, condition, limit_s: condition())
    load.start_cameras(rig)
    assert list(rig.accounts()) == [("lane", "front"), ("object", "front")]  # their frames are still counted
    soak: Any = SimpleNamespace(_rig=rig)
    assert verdicts.answer_s(SoakRunner._by_dnn(soak, ""), 0.5) == pytest.approx(0.5)
    rig.receipts["object", "front"] = Receipts()
    with pytest.raises(CommandError, match=r"no results of object on front after 60 s"):
        load.start_cameras(rig)


def test_a_cycle_ends_when_the_dnns_that_are_switched_on_have_results(tmp_path: Path) -> None:
    path = tmp_path / "parameters.yaml"
    path.write_text("/**: {ros__parameters: {dnns: [lane, object], dnn: {lane: {enable: false}}}}\n")
    sent: list[str] = []
    camera: Any = SimpleNamespace(publish=lambda: sent.append("image"))
    node: Any = SimpleNamespace(published=lambda: {("lane", "front"): 0, ("object", "front"): len(sent)})
    executor: Any = SimpleNamespace(spin_once=lambda timeout_sec: None)
    cycles._serve(executor, node, camera, read_params_file(path))
    assert sent == ["image"]


def test_the_expected_results_are_those_of_the_cameras_that_each_dnn_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "parameters.yaml"
    path.write_text(
        "/**: {ros__parameters: {cameras: [front, rear], dnns: [lane, object, pedestrian], "
        "dnn: {lane: {cameras: [front]}, pedestrian: {enable: false}}}}\n"
    )
    block = dict.fromkeys(("results_hz", "cpu_cores", "cpu_ms_per_result", "memory_bytes"), 1.0)
    monkeypatch.setattr(isolation, "_serve", lambda *arguments: (block, [5.0]))
    plans = [CameraPlan("front", (64, 48), "rgb8", 10.0), CameraPlan("rear", (64, 48), "rgb8", 4.0)]
    found = isolation.measure_isolation(read_params_file(path), tmp_path, 1.0, 1, plans)
    assert found["sent_results_hz"] == 10.0 + (10.0 + 4.0)
    assert "images for 24 results/s were sent" in isolation.isolation_table(found)


def test_a_camera_whose_dnns_are_all_switched_off_is_named(tmp_path: Path) -> None:
    path = tmp_path / "parameters.yaml"
    path.write_text(
        "/**: {ros__parameters: {cameras: [front, rear], dnns: [lane, object], "
        "dnn: {lane: {cameras: [front]}, object: {cameras: [rear], enable: false}}}}\n"
    )
    plans = [CameraPlan(name, (64, 48), "rgb8", 1.0) for name in ("front", "rear")]
    with pytest.raises(UsageError, match=r"camera rear .* its DNNs are all switched off by dnn\.object\.enable"):
        Rig(tmp_path, read_params_file(path), plans)


def test_a_camera_process_is_known_before_an_interrupt_is_raised(
    tmp_path: Path, parameters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    class InterruptedWhileStarting:
        def __init__(self, name: str, *rest: object) -> None:
            self.name = name
            os.kill(os.getpid(), signal.SIGINT)

        def __enter__(self) -> InterruptedWhileStarting:
            return self

        def __exit__(self, *error: object) -> None:
            ended.append(self.name)

    rig = Rig(tmp_path, read_params_file(parameters), [CameraPlan("front", (64, 48), "rgb8", 1.0)])
    monkeypatch.setattr("multi_dnn_ros.benchmark.rig.Child", InterruptedWhileStarting)
    monkeypatch.setattr(Rig, "_start", lambda self: None)
    with pytest.raises(KeyboardInterrupt), rig:
        rig.start_camera("front", recording=tmp_path)
    assert ended == ["camera front"]


def test_wrong_cameras_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "load", "--camera", "a=9x9@1:jpeg", "--camera", "a=9x9@1:jpeg"]) == 2
    assert "each only once" in capsys.readouterr().err
    for wrong in ("front", "front=160x120@4:rgb7", "Front=160x120@4:rgb8", "front=160@4:rgb8", "front=160x120@0:rgb8"):
        with pytest.raises(SystemExit):
            main(["benchmark", "load", "--camera", wrong])


class _FakeRig:
    """Serves up to `max_hz` frames per second of the flooded camera."""

    def __init__(self, max_hz: float) -> None:
        self.max_hz = max_hz
        self.rates_hz = {load.FLOODED: 30.0}
        self.receipts: dict[tuple[str, str], list[int]] = {("object", load.FLOODED): []}

    def spin(self, seconds: float) -> None:
        self.receipts["object", load.FLOODED] += [0] * round(seconds * min(self.max_hz, self.rates_hz[load.FLOODED]))

    def start_camera(self, name: str, rate_hz: float) -> None:
        self.rates_hz[name] = rate_hz


@given(st.floats(1.0, 400.0))
def test_the_flooding_rate_is_over_four_times_what_can_be_served(max_hz: float) -> None:
    rate_hz = load.flooding_rate(_FakeRig(max_hz))  # type: ignore[arg-type]
    assert rate_hz == 400.0 or rate_hz >= 4.0 * max_hz
    assert 10.0 <= rate_hz <= 400.0


def test_memory_is_compared_even_if_the_machine_stalled() -> None:
    samples = [NodeSample(at_s, size, 3, 4) for at_s, size in ((0.0, 90), (1.0, 100), (9.5, 101), (10.0, 103))]
    found = load._memory(samples, 0.0, 10.0)
    assert (found["second_window_bytes"], found["most_afterwards_bytes"]) == (100, 103)
    found = load._memory([samples[0], samples[2]], 0.0, 9.5)
    assert (found["second_window_bytes"], found["most_afterwards_bytes"]) == (90, 101)


def test_gpu_memory_is_that_of_the_engine_processes_or_of_the_node() -> None:
    def reserved(**values: str) -> int | None:
        named = {f"{name.replace('_', ' ')} GPU reserved (bytes)".strip(): value for name, value in values.items()}
        rig: Any = SimpleNamespace(value=lambda status, key: named.get(key))
        return load._gpu_reserved_bytes(rig)

    assert reserved(engine_processes="7") == 7
    assert reserved(_="5") == 5
    assert reserved() is None


class _TimedRig:
    """A rig in which nothing happens; `events` lists what was done, in order."""

    events: ClassVar[list[str]] = []

    def __init__(self, folder: Path, config: NodeConfig, cameras: Sequence[CameraPlan], seed: int) -> None:
        self.rates_hz = {"front": 1.0}
        self.receipts = {("object", "front"): Receipts()}
        self.sample_s = 1.0
        self.samples = [NodeSample(1.0, 1 << 20, 3, 4)]
        self.node = SimpleNamespace(stop=lambda limit_s: None, exit_code=lambda: 0)

    def __enter__(self) -> _TimedRig:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def spin(self, seconds: float, progress: object = None) -> None:
        self.events.append(f"spin {seconds:g}")
        self.samples.append(NodeSample(self.samples[-1].at_s + seconds, 1 << 20, 3, 4))

    def accounts(self) -> dict[tuple[str, str], dict[str, Any]]:
        return {("object", "front"): {"offered": 4, "published": 4, "pending": 0, "dropped": {}}}

    def stop_camera(self, name: str) -> None:
        self.events.append("stop")

    def settle(self) -> None:
        pass

    def now(self) -> float:
        return 0.0

    def value(self, status: str, key: str) -> str | None:
        return None


def test_the_gpu_is_watched_during_the_measured_interval_only(
    tmp_path: Path, parameters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = _TimedRig.events

    class Watch:
        def __init__(self, index: int) -> None:
            pass

        def __enter__(self) -> Watch:
            events.append("watch")
            return self

        def __exit__(self, *error: object) -> None:
            events.append("watched")

        def figures(self) -> dict[str, Any]:
            return {}

    monkeypatch.setattr(load, "Rig", _TimedRig)
    monkeypatch.setattr(load, "GpuWatch", Watch)
    monkeypatch.setattr(load, "start_cameras", lambda rig: events.append("start"))
    monkeypatch.setattr(
        load, "stream_accounts", lambda rig: {"object on front": {**rig.accounts()["object", "front"], "received": 4,
                                                                  "observed": 4}},
    )  # fmt: skip
    plans = [CameraPlan("front", (64, 48), "rgb8", 1.0)]
    load.measure_load(read_params_file(parameters), tmp_path, 60.0, cameras=plans)
    assert events == ["start", "spin 3", "watch", "spin 60", "watched", "stop", "spin 2"]


def test_nvidia_smi_output_is_parsed() -> None:
    found = parse_output("37, 1024\n\n[N/A], 5\n93, 1030\n1")
    assert found == {"samples": 2, "busy_mean": 0.65, "busy_most": 0.93, "memory_mib": [1024.0, 1030.0]}
    assert parse_output("NVIDIA-SMI has failed") == {}


@pytest.mark.long
def test_camera_faults_are_detected_counted_and_recovered_from(tmp_path: Path, parameters: str) -> None:
    output = tmp_path / "rough.json"
    assert main(
        ["benchmark", "camera-faults", "--seconds", "2", "--params-file", parameters, "--output", str(output),
         "--logs", str(tmp_path / "logs")]
    ) in (0, 1)  # fmt: skip
    found = figures(output)
    assert list(found["phases"]) == ["all well", "stalled", "broken images", "killed"]
    for counts in found["accounts"].values():  # on a busy machine the observer may lose results
        dropped = sum(counts["dropped"].values())
        assert counts["offered"] == counts["received"] == counts["published"] + dropped, found["accounts"]
        assert 0 < counts["observed"] <= counts["published"], found["accounts"]
    assert found["phases"]["broken images"]["counted"] >= 6
    assert found["accounts"]["object on front"]["dropped"]["bad_image"] >= 6
    assert not found["accounts"]["object on left"]["dropped"].get("bad_image")
    assert found["phases"]["killed"]["served_again_after_s"] > 0
    log = (tmp_path / "logs" / "node.log").read_text()
    assert "camera front, topic /front/image_raw: " in log  # one line for many images: repeated lines are held back
    assert "Traceback" not in log


@pytest.mark.parametrize("passed", [True, False])
@pytest.mark.parametrize("scenario", ["load", "camera-faults"])
def test_a_run_that_has_not_passed_keeps_its_logs_and_figures(
    scenario: str, passed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(config: NodeConfig, folder: Path, *rest: object) -> Any:
        (folder / "node.log").write_text("the node")
        found = {"passed": passed}
        return load.LoadRun(found, {}, [], 0.0, 1.0) if scenario == "load" else found

    def plotted(run: load.LoadRun, path: Path) -> None:
        assert output.exists()  # a plot that fails must not take the figures with it
        path.write_text("a plot")

    module = f"multi_dnn_ros.benchmark.{scenario.replace('-', '_')}"
    monkeypatch.setattr(f"{module}.measure_{scenario.replace('-', '_')}", measured)
    monkeypatch.setattr(f"{module}.{scenario.replace('-', '_').removesuffix('s')}_table", lambda figures: "a table")
    monkeypatch.setattr("multi_dnn_ros.benchmark.load_plot.plot_load", plotted)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    output, plot = tmp_path / "figures.json", tmp_path / "load.png"
    more = ["--plot", str(plot)] if scenario == "load" else []
    assert main(["benchmark", scenario, "--output", str(output), *more]) == (0 if passed else 1)
    assert figures(output)["passed"] is passed
    assert plot.exists() == (scenario == "load")
    printed = capsys.readouterr()
    assert "a table" in printed.out
    logs = list(tmp_path.glob("multi_dnn_benchmark_*/node.log"))
    if passed:
        assert logs == []
    else:
        assert f"the run has not passed; the logs of its processes are in {logs[0].parent}" in printed.err


def test_an_intact_camera_that_stops_is_reported() -> None:
    well = {"p95_over_all_well": 1.0, "stream_hz": {"lane on left": 4.0, "lane on rear": 4.0}}
    fewer = {**well, "stream_hz": {"lane on left": 3.1, "lane on rear": 0.5}}
    assert camera_fault_problems({"all well": well, "stalled": fewer}, 10.0) == [
        "stalled: lane on rear at 0.50 Hz, 4.00 when all was well"
    ]
    assert camera_fault_problems({"all well": well, "killed": {**well, "p95_over_all_well": 1.3}}, 10.0) == [
        "killed: p95 is 1.30 times that when all was well; allowed: at most 1.25"
    ]


def test_runs_that_are_too_short_for_a_verdict_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong, words in (
        (["load", "--minutes", "0.05"], "--minutes: '0.05' is not a number of at least 0.1"),
        (["cycles", "--repeats", "1"], "--repeats: '1' is not an integer of at least 2"),
    ):
        with pytest.raises(SystemExit):
            main(["benchmark", *wrong])
        assert words in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.usefixtures("unfrozen")
def test_repeated_activation_leaks_nothing(tmp_path: Path, parameters: str) -> None:
    output = tmp_path / "cycles.json"
    assert main(
        ["benchmark", "cycles", "--repeats", "5", "--params-file", parameters, "--output", str(output)]
    ) in (0, 1)  # fmt: skip
    left = figures(output)["left"]
    assert not any(count for name, count in left.items() if not name.endswith("bytes")), left


def test_the_memory_of_the_gpu_that_the_dnns_use_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[str] = []
    monkeypatch.setattr(cycles, "release_memory", lambda device: released.append(str(device)))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: {"cuda:0": 1, "cuda:1": 2}[str(device)])
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: {"cuda:0": 10, "cuda:1": 20}[str(device)])
    node: Any = SimpleNamespace(subscriptions=(), publishers=(), timers=(), services=())
    sample = cycles._sample(node, [torch.device("cuda:1")])
    assert (sample["gpu_allocated_bytes"], sample["gpu_reserved_bytes"]) == (2, 20)
    assert released == ["cuda:1"]
    assert "gpu_reserved_bytes" not in cycles._sample(node, [torch.device("cpu")])


@given(st.dictionaries(st.text(max_size=3), st.floats(0.0, 1000.0), min_size=1, max_size=6), st.floats(0.0, 5000.0))
def test_fair_shares_are_max_min_fair(wanted: dict[str, float], capacity: float) -> None:
    shares = fair_shares(wanted, capacity)
    assert shares.keys() == wanted.keys()
    assert sum(shares.values()) == pytest.approx(min(capacity, sum(wanted.values())), abs=1e-6)
    assert all(share <= wanted[name] + 1e-9 for name, share in shares.items())
    unsatisfied = [share for name, share in shares.items() if share < wanted[name] - 1e-6]
    assert all(share == pytest.approx(max(shares.values()), abs=1e-6) for share in unsatisfied)


def test_violated_conditions_are_listed() -> None:
    wrong = {
        "latency": {"all": {"p95_last_over_second": 1.3}},
        "memory": {"growth": 0.02},
        "accounts": {"lane on front": {"exact": False}},
        "flood_ratio": 2.0,
        "cameras": {"front": {"rate_hz": 40.0}},
        "fairness": {"least_of_share": 0.5},
        "ended_after_s": 60.0,
        "exit_code": -9,
    }
    text = "\n".join(load_problems(wrong))
    for words in ("1.30", "2.0%", "lane on front", "2.0 times", "50%", "after 60.0 s with exit code -9"):
        assert words in text
