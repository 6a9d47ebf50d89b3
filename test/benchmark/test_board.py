"""`multi-dnn benchmark board`: the record, the page, the mixes, the sensors, and short runs."""

from __future__ import annotations

import html
import json
import os
import re
import signal
import warnings
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from board_records import mix, record, trial, write
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.benchmark.board import machine
from multi_dnn_ros.benchmark.board.machine import TimedReading, describe_board, jetson_gpu_load, power_mode, summarize
from multi_dnn_ros.benchmark.board.mixes import DEFAULT, choose_mixes, chosen_device, cost_of, mix_config, obstacle
from multi_dnn_ros.benchmark.board.page import board_page
from multi_dnn_ros.benchmark.board.plots import plot_highest, plot_timeline
from multi_dnn_ros.benchmark.board.record import BoardRecord, SensorSample
from multi_dnn_ros.benchmark.board.report import board_table
from multi_dnn_ros.benchmark.board.trial import run_trial
from multi_dnn_ros.benchmark.html_page import Page
from multi_dnn_ros.benchmark.paper.sets import SETS
from multi_dnn_ros.benchmark.samples import NodeSample, Receipts
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.ros.board.sensors import Reading, Value

CPU = torch.device("cpu")


def run(*arguments: object) -> int:
    try:
        return main(["benchmark", "board", *map(str, arguments)])
    except SystemExit as ended:
        return int(ended.code or 0)


class Reader(HTMLParser):
    """Collects the text and the tags of a page; fails at a tag that is not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def check_self_contained(page: str) -> Reader:
    """No scripts, and nothing that a browser would load."""
    reader = Reader(page)
    assert {tag for tag, _ in reader.tags}.isdisjoint({"script", "link", "iframe", "object"})
    for _, attributes in reader.tags:
        assert attributes.get("src", "data:").startswith("data:image/png;base64,") or "src" not in attributes
        assert "href" not in attributes
        assert not any(name.startswith("on") for name in attributes)
    assert "url(" not in page
    assert "@import" not in page
    assert any(attributes.get("name") == "viewport" for _, attributes in reader.tags)
    return reader


def full_record() -> BoardRecord:
    content = record(
        {
            "builtin": mix(24.0, trials=[trial(30.0, False), trial(24.0, power_w=7.0, energy_j_per_result=0.1,
                           temperature_c=88.0, hottest_sensor="CPU", throttled={"CPU": "too hot (3 events)"})], long=1),
            "small": mix(200.0, failing_hz=None),
            "heavy_gpu": mix(None),
            "mixed": mix(None, status="failed", reason="the node was not configured: <no memory>"),
            "vgg16_x8": mix(None, status="not_served", reason="too slow", trials=[trial(0.5, False)]),
        },
        power_mode="15W",
    )  # fmt: skip
    content.timeline = [
        SensorSample(at_s=float(at), mix="builtin" if at > 3 else "", power_w=7.0 + at, temperature_c=60.0,
                     clock_share=0.9, throttled=at == 5)
        for at in range(9)
    ]  # fmt: skip
    return content


def test_the_page_shows_every_mix_and_needs_no_other_file() -> None:
    reader = check_self_contained(board_page(full_record()))
    text = " ".join(reader.texts)
    assert sum(tag == "img" for tag, _ in reader.tags) == 5  # all mixes, sensors, three searches
    for expected in ("builtin", "24 (long run)", "15W", "too hot (3 events)", "heavy_gpu: does not fit: needs a GPU",
                     "the node was not configured: <no memory>", "200 Hz is the highest rate that was tried",
                     "energy per result, J", "not served"):  # fmt: skip
        assert expected in text, expected
    first = [tag for tag, _ in reader.tags if tag in ("table", "img", "ul")][:3]
    assert first == ["table", "img", "ul"]


def test_the_terminal_shows_the_same() -> None:
    text = board_table(full_record())
    assert re.search(r"highest rate per camera, Hz +\| 24 +\| 200 +\|", text)
    assert "mixed: failed: the node was not configured: <no memory>" in text
    assert "Power is not readable" not in text
    assert "Power is not readable on this computer" in board_table(record())


@pytest.mark.parametrize("idle_w", [None, 12.0])
def test_power_is_missing_only_where_it_was_measured_in_vain(idle_w: float | None) -> None:
    content = record({"heavy_gpu": mix(None)})
    assert "Power is not readable" not in board_table(content)  # nothing was measured
    content = record({"builtin": mix(), "heavy_gpu": mix(None)})
    assert content.idle is not None
    content.idle.power_w = idle_w
    assert ("Power is not readable" in board_table(content)) == (idle_w is None)


@pytest.mark.parametrize("status", ["measured", "failed", "interrupted"])
def test_a_search_that_ended_early_gives_no_reason_that_may_be_wrong(status: str) -> None:
    mixes = {"small": mix(24.0, status=status, failing_hz=None), "mixed": mix(24.0, status=status, failing_hz=30.0)}
    text = board_table(record(mixes))
    assert "small: higher rates were not tried.\n" in text
    assert "mixed: the highest rate is between 24 and 30 Hz; the search ended before it was narrowed down." in text
    assert "no time" not in text


def test_a_page_without_figures_says_so() -> None:
    page = board_page(record({"heavy_gpu": mix(None)}))
    assert "No mix has figures." in page
    assert check_self_contained(page)


def test_without_matplotlib_the_page_has_no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    page = board_page(full_record())
    assert "This page has no plots: a plot needs matplotlib" in page
    assert "<img" not in page


@given(st.text(min_size=1))
def test_text_of_a_page_is_escaped(text: str) -> None:
    page = Page(text)
    page.heading(text)
    page.paragraph(text, text)
    page.code(text)
    page.bullets([text])
    page.table([text], [[text]])
    reader = Reader(page.text())
    tags = " ".join(dict.fromkeys(tag for tag, _ in reader.tags))
    assert tags == "html head meta title style body h1 h2 p code ul li div table thead tr th tbody td"
    cell = rf"<td( class=\"\w+\")?>{re.escape(html.escape(text))}</td>"  # `worse` has a class
    assert len(re.findall(cell, page.text())) == 1


def test_names_from_files_are_escaped_in_the_page() -> None:
    evil = '<script>alert("x")</script>'
    content = record({evil: mix(reason=evil, text=evil)}, hardware=evil, gpu=evil)
    content.command = evil
    assert evil not in board_page(content)
    check_self_contained(board_page(content))


def test_the_name_of_a_file_is_not_a_formula_in_the_plots() -> None:
    name = "$a_$.yaml"
    content = record({name: mix()})
    content.timeline = [SensorSample(at_s=float(at), mix=name, power_w=7.0, temperature_c=None) for at in range(3)]
    assert board_page(content).count("<img") == 3  # all mixes, sensors, the search


@pytest.mark.parametrize("name", ["/data/robots/" + 12 * "folder/" + "one.yaml", 60 * "name" + ".yaml"])
def test_a_long_name_of_a_file_leaves_room_for_the_plots(name: str) -> None:
    content = record({name: mix(), "builtin": mix()})
    content.timeline = [
        SensorSample(at_s=float(at), mix=name if at < 50 else "builtin", power_w=7.0, temperature_c=None)
        for at in range(100)
    ]
    for figure in (plot_highest(content), plot_timeline(content)):
        assert figure is not None
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # matplotlib warns if the axes have no room
            figure.canvas.draw()
        assert all(axes.get_position().width > 0.3 for axes in figure.axes)


def test_names_of_mixes_do_not_overlap_in_the_plot_of_the_sensors() -> None:
    content = record({})
    begins = {0: DEFAULT[0], 20: DEFAULT[1], 22: DEFAULT[2], 60: DEFAULT[3], 97: DEFAULT[7]}  # the second one fails
    for at in range(100):
        name = begins[max(begin for begin in begins if begin <= at)]
        content.timeline.append(SensorSample(at_s=float(at), mix=name, power_w=7.0, temperature_c=None))
    figure = plot_timeline(content)
    assert figure is not None
    figure.canvas.draw()
    assert [text.get_text() for text in figure.axes[0].texts] == [DEFAULT[0], DEFAULT[1], DEFAULT[3], DEFAULT[7]]
    assert all(figure.bbox.containsx(text.get_window_extent().x1 - 1.0) for text in figure.axes[0].texts)


def test_figures_of_a_mix_that_was_not_completed_say_so() -> None:
    text = board_table(record({"small": mix(24.0, status="not_run"), "mixed": mix(24.0, status="failed", reason="x")}))
    assert "small: not completed (not run); the figures are those measured until then." in text
    assert "mixed: not completed (failed: x); the figures are those measured until then." in text


def test_a_record_survives_its_file() -> None:
    content = full_record()
    assert BoardRecord.model_validate(json.loads(json.dumps(content.model_dump(mode="json")))) == content


def test_the_highest_rate_has_figures_of_the_long_run_or_of_its_trial() -> None:
    short = mix(24.0, trials=[trial(24.0, results_hz=1.0), trial(30.0, False), trial(24.0, False)], long=None)
    assert short.at_highest is not None
    assert short.at_highest.results_hz == 1.0
    assert mix(None).at_highest is None


# -- mixes


def test_a_number_of_threads_reaches_every_mix(tmp_path: Path) -> None:
    device = chosen_device("cpu:2")
    assert device == torch.device("cpu")
    for each in choose_mixes(["builtin", "small"]):
        assert mix_config(each, "cpu:2", device, tmp_path).device == "cpu:2"


def test_default_mixes_begin_with_the_built_in_ones() -> None:
    assert [each.name for each in choose_mixes([])] == list(DEFAULT)
    assert [each.name for each in choose_mixes(["small", "builtin", "small"])] == ["small", "builtin"]


def test_costs_of_the_sets_are_counted_without_memory() -> None:
    before = psutil.Process().memory_info().rss
    cost = cost_of(SETS["vgg16_x8"])
    assert psutil.Process().memory_info().rss - before < 1 << 30  # its parameters would take 4 GiB
    assert cost.parameters == 8 * cost.stored == 8 * 134_301_514
    assert cost.flops == pytest.approx(8 * 30.93e9, rel=0.01)
    mixed = cost_of(SETS["mixed"])
    assert mixed.dnns == 8
    assert mixed.stored < mixed.parameters


def test_what_does_not_fit_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heavy, vgg = choose_mixes(["heavy_gpu", "vgg16_x8"])
    assert obstacle(heavy, CPU, None, tmp_path) == "needs a GPU"
    cost = cost_of(SETS["vgg16_x8"])

    class Memory:
        available = 2 << 30

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    assert re.fullmatch(r"needs about \d\d\.\d GiB of memory; 2\.0 GiB are free", obstacle(vgg, CPU, cost, tmp_path))
    Memory.available = 1 << 40
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Disk", (), {"free": 1 << 20}))
    assert "of disk space in " in obstacle(vgg, CPU, cost, tmp_path / "new")
    (builtin,) = choose_mixes(["builtin"])
    assert obstacle(builtin, CPU, None, tmp_path) == ""


# -- the computer


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_jetson_is_described_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = put(
        tmp_path,
        {
            "proc/device-tree/model": "NVIDIA Jetson Orin Nano Developer Kit\0",
            "var/lib/nvpmodel/status": "pmode:0002",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "schedutil\n",
            "sys/class/devfreq/17000000.gpu/device/load": "437\n",
        },
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    board = describe_board(CPU, root)
    assert board.hardware == "NVIDIA Jetson Orin Nano Developer Kit"
    assert board.power_mode == "number 2"
    assert board.governor == "schedutil"
    assert jetson_gpu_load(root / "sys") == pytest.approx(0.437)
    tool = tmp_path / "nvpmodel"
    tool.write_text("#!/bin/sh\nprintf '\\377\\n'\necho 'NV Power Mode: MAXN'\necho 0\n")  # the first line is not UTF-8
    tool.chmod(0o755)
    assert power_mode(root) == "MAXN"
    tool.write_text("#!/bin/sh\nexit 1\n")  # older versions need root
    assert power_mode(root) == "number 2"


def test_other_computers_have_no_power_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert power_mode(tmp_path) == ""
    assert jetson_gpu_load(tmp_path) is None
    put(tmp_path, {"class/devfreq/17000000.gpu/device/load": "-7"})
    assert jetson_gpu_load(tmp_path) is None


def test_readings_are_summarized() -> None:
    readings = [
        TimedReading(0.0, Reading(power_w={"GPU_0": Value(10.0)}, temperatures_c={"a": Value(50.0), "b": Value(70.0)})),
        TimedReading(1.0, Reading(power_w={"GPU_0": Value(20.0)}, temperatures_c={"a": Value(60.0)},
                                  throttled={"GPU_0": "too hot"}), 0.5),
        TimedReading(2.0, Reading(clocks_mhz={"CPU": Value(500.0, 1000.0)})),
    ]  # fmt: skip
    found = summarize(readings)
    assert (found.power_w, found.temperature_c, found.hottest_sensor) == (15.0, 70.0, "b")
    assert found.throttled == {"GPU_0": "too hot"}
    assert found.gpu_share == 0.5
    assert readings[2].clock_share == 0.5
    assert summarize([]) == machine.SensorSummary(None, None, "", {}, None)


# -- the command


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--output", "a.json", "--mixes", "fast"],
            "--mixes fast: no such mix and no such file; allowed: builtin, heavy_gpu, small",
        ),
        (["--minutes", "0"], "--minutes"),
        (["--minutes", "nan"], "--minutes"),
        (["--max-rate", "-1"], "--max-rate"),
        (["--size", "640"], "--size"),
        (["--encoding", "mp3"], "--encoding"),
        (["--output", "a.json", "--device", "cuda:77"], "--device is 'cuda:77', but PyTorch sees"),
        (["--output", "page.html"], "expected a JSON file"),
        (["--output", "."], "which is a folder"),
        (["--output", "none.json", "--resume"], "none.json: cannot be read (No such file or directory)"),
        (["--output", "board.json", "--resume"], "board.json was not written by `multi-dnn benchmark board`"),
        ([], "board.json exists; choose a file with --output"),
    ],
)
def test_wrong_arguments_are_reported_before_the_run(
    arguments: list[str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "board.json").write_text("{}")
    assert run(*arguments) == 2
    assert text in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"board.json"}


def test_a_run_under_other_conditions_is_not_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "board.json", record())
    assert run("--mixes", "builtin", "--output", path, "--resume") == 1
    error = capsys.readouterr().err
    assert "was measured under other conditions: cpu was 'A CPU'" in error
    assert "versions was" in error


def test_mixes_without_time_or_gpu_are_lines_of_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multi_dnn_ros.benchmark.board.measure._IDLE_S", 0.2)
    path = tmp_path / "board.json"
    assert run("--minutes", "0.1", "--device", "cpu", "--mixes", "heavy_gpu", "builtin", "--output", path) == 0
    content = json.loads(path.read_text())
    assert {name: each["status"] for name, each in content["mixes"].items()} == {
        "heavy_gpu": "does_not_fit",
        "builtin": "does_not_fit",
    }
    assert content["mixes"]["heavy_gpu"]["reason"] == "needs a GPU"
    assert "s are left; a longer --minutes" in content["mixes"]["builtin"]["reason"]
    assert content["board"]["cores"] > 0
    assert content["command"]
    assert "heavy_gpu: does not fit: needs a GPU" in capsys.readouterr().out
    check_self_contained(path.with_suffix(".html").read_text())


class _TwoCameras:
    """A rig whose second camera begins five seconds after the first one; time passes only while it is observed."""

    def __init__(self) -> None:
        self.plans = dict.fromkeys(("front", "rear"))
        self.streams = [("lane", name) for name in self.plans]
        self.receipts = {stream: Receipts() for stream in self.streams}
        self.samples = [NodeSample(0.0, 1 << 28, 1, 1)]
        self.cameras: dict[str, float] = {}  # when each begins
        self.rate_hz = self.reported_s = 0.0
        self.reports = 0

    def start_camera(self, name: str, rate_hz: float) -> None:
        self.cameras[name], self.rate_hz = self.reported_s + (5.0 if name == "rear" else 0.5), rate_hz

    def stop_camera(self, name: str) -> None:
        del self.cameras[name]

    def settle(self, limit_s: float) -> None:
        assert not self.cameras

    def now(self) -> float:
        return self.reported_s

    def spin(self, seconds: float, progress: Any) -> None:
        self.reported_s += seconds
        self.reports += 1
        progress(seconds)

    def until(self, condition: Any, limit_s: float) -> bool:
        end_s = self.reported_s + limit_s
        while not condition() and self.reported_s < end_s:
            self.spin(0.25, lambda seconds: None)
        return bool(condition())

    def value(self, status: str, key: str) -> str | None:
        return str(self._sent(status.removeprefix("camera "))) if key == "received" else None

    def accounts(self) -> dict[tuple[str, str], dict[str, Any]]:
        counts = {stream: self._sent(stream[1]) for stream in self.streams}
        return {stream: {"offered": count, "published": count, "pending": 0, "dropped": {}}
                for stream, count in counts.items()}  # fmt: skip

    def _sent(self, name: str) -> int:
        return max(0, int(self.rate_hz * (self.reported_s - self.cameras.get(name, self.reported_s))))


def test_a_trial_begins_when_all_cameras_send() -> None:
    rig: Any = _TwoCameras()
    sensors: Any = SimpleNamespace(poll=lambda: None, between=lambda begin_s, end_s: [])
    found = run_trial(rig, 30.0, 3.0, 20.0, sensors, lambda: None)
    assert found.dropped == {}
    assert found.passed
    assert found.results == pytest.approx(2 * found.frames, abs=2)


class _LimitedRig(_TwoCameras):
    """DNN lane processes every third image, as max_rate_hz has it; DNN off is switched off. loses: share of the images
    that do not reach the node.
    """

    def __init__(self, loses: float) -> None:
        super().__init__()
        self.loses = loses
        self.streams += [("off", name) for name in self.plans]

    def accounts(self) -> dict[tuple[str, str], dict[str, Any]]:
        found = {}
        for dnn, camera in self.streams:
            offered = self._sent(camera)
            published = (offered + 2) // 3 if dnn == "lane" else 0
            reason = "rate_limited" if dnn == "lane" else "switched_off"
            found[dnn, camera] = {"offered": offered, "published": published, "pending": 0,
                                  "dropped": {reason: offered - published}}  # fmt: skip
        return found

    def _sent(self, name: str) -> int:
        return int((1.0 - self.loses) * super()._sent(name))


@pytest.mark.parametrize("loses", [0.0, 0.2])
def test_images_that_parameters_refuse_are_not_missing(loses: float) -> None:
    rig: Any = _LimitedRig(loses)
    sensors: Any = SimpleNamespace(poll=lambda: None, between=lambda begin_s, end_s: [])
    found = run_trial(rig, 30.0, 3.0, 20.0, sensors, lambda: None)
    assert set(found.dropped) == ({"not_received"} if loses else set())
    assert found.drop_share == pytest.approx(loses, abs=0.03)
    assert found.passed is not bool(loses)


class _FakeRig:
    """Serves every stream up to `edge` Hz; raises `error` when the trial with number `stops` begins."""

    edge, stops, error = 20.0, 10**9, KeyboardInterrupt()
    started = 0
    folders: list[Path]

    def __init__(self, folder: Path, config: Any, cameras: Any, seed: int) -> None:
        self.folders.append(folder)
        self.streams = [(name, "camera0") for name in config.dnns]
        self.sample_s = 1.0

    def __enter__(self) -> _FakeRig:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def value(self, status: str, key: str) -> str:
        return "cpu"


def fake_trial(rig: _FakeRig, rate_hz: float, min_s: float, max_s: float, *rest: object) -> Any:
    _FakeRig.started += 1
    if _FakeRig.started == _FakeRig.stops:
        raise _FakeRig.error
    passed = rate_hz <= rig.edge
    return trial(rate_hz, passed, results_hz=min(rate_hz, rig.edge) * len(rig.streams), seconds=min_s)


@pytest.fixture
def fake_board(monkeypatch: pytest.MonkeyPatch) -> type[_FakeRig]:
    monkeypatch.setattr("multi_dnn_ros.benchmark.board.measure._IDLE_S", 0.1)
    monkeypatch.setattr("multi_dnn_ros.benchmark.board.measure.Rig", _FakeRig)
    monkeypatch.setattr("multi_dnn_ros.benchmark.board.measure.run_trial", fake_trial)
    monkeypatch.setattr("multi_dnn_ros.benchmark.board.measure.flops_per_s", lambda device: 1e12)
    monkeypatch.setattr("multi_dnn_ros.benchmark.board.measure.cost_of", _cost_of)
    # No node runs, so the networks need not be exported.
    monkeypatch.setattr("multi_dnn_ros.benchmark.board.mixes._write", lambda network, path: path.touch())
    start = {"started": 0, "stops": 10**9, "edge": 20.0, "error": KeyboardInterrupt(), "folders": []}
    for name, value in start.items():
        monkeypatch.setattr(_FakeRig, name, value, raising=False)
    return _FakeRig


#: Cached because all tests need the same costs.
_cost_of = cache(cost_of)
ARGUMENTS = ("--minutes", "15", "--device", "cpu", "--mixes", "builtin", "small")


def test_a_run_on_a_fake_board(fake_board: type[_FakeRig], tmp_path: Path) -> None:
    path = tmp_path / "board.json"
    assert run(*ARGUMENTS, "--output", path) == 0
    content = json.loads(path.read_text())
    for found in content["mixes"].values():
        assert found["status"] == "measured"
        assert found["highest_hz"] <= 20.0 < found["failing_hz"] <= 1.06 * found["highest_hz"]
        assert found["long"] == len(found["trials"]) - 1
        assert found["trials"][-1]["rate_hz"] == found["highest_hz"]
        assert found["trials"][-1]["seconds"] > 100.0  # the rest of the time
    assert content["mixes"]["small"]["dnns"]["dnn2_squeezenet1_1"] == "torchvision:squeezenet1_1 64x64"


def test_a_run_that_is_interrupted_keeps_its_figures_and_goes_on(
    fake_board: type[_FakeRig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "board.json"
    fake_board.stops = 9  # in the second mix
    assert run(*ARGUMENTS, "--output", path) == 130
    first = json.loads(path.read_text())["mixes"]
    assert first["builtin"]["status"] == "measured"
    assert first["small"]["status"] == "interrupted"
    assert first["small"]["trials"]
    assert "small: interrupted" in capsys.readouterr().out
    check_self_contained(path.with_suffix(".html").read_text())
    assert run(*ARGUMENTS, "--output", path, "--resume") == 0
    content = json.loads(path.read_text())
    assert content["mixes"]["builtin"] == first["builtin"]
    small = content["mixes"]["small"]
    assert small["status"] == "measured"
    assert small["trials"][: len(first["small"]["trials"])] == first["small"]["trials"]
    rates = [each["rate_hz"] for each in small["trials"][:-1]]
    assert len(rates) == len(set(rates))
    assert len(content["resumed"]) == 1


def test_a_signal_before_a_node_runs_keeps_the_figures(
    fake_board: type[_FakeRig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a rig runs, it turns signals into KeyboardInterrupt; here there is none yet."""

    def unexpected(number: int, frame: object) -> None:
        raise AssertionError("SIGTERM would end the command at once")

    monkeypatch.setattr(
        "multi_dnn_ros.benchmark.board.mixes._write", lambda network, path: os.kill(os.getpid(), signal.SIGTERM)
    )
    path = tmp_path / "board.json"
    before = signal.signal(signal.SIGTERM, unexpected)
    try:
        assert run(*ARGUMENTS, "--output", path) == 130
        assert signal.getsignal(signal.SIGTERM) is unexpected
    finally:
        signal.signal(signal.SIGTERM, before)
    content = json.loads(path.read_text())["mixes"]
    assert {name: each["status"] for name, each in content.items()} == {"builtin": "measured", "small": "interrupted"}
    assert path.with_suffix(".html").is_file()


def test_a_search_that_was_interrupted_after_many_trials_is_continued(
    fake_board: type[_FakeRig], tmp_path: Path
) -> None:
    path = tmp_path / "board.json"
    arguments = ("--minutes", "15", "--device", "cpu", "--mixes", "builtin", "--output", path)
    fake_board.stops = 1
    assert run(*arguments) == 130
    content = BoardRecord.model_validate(json.loads(path.read_text()))
    rates = (150.0, 120.0, 90.0, 70.0, 50.0, 30.0, 20.0, 10.0)
    content.mixes["builtin"].trials = [trial(rate, False) for rate in rates]
    write(path, content)
    fake_board.edge = 1.2
    assert run(*arguments, "--resume") == 0
    found = json.loads(path.read_text())["mixes"]["builtin"]
    assert found["status"] == "measured"
    assert found["highest_hz"] <= 1.2 < found["failing_hz"] < 10.0
    assert len(found["trials"]) <= 15  # 14 of the search, and the long run


def test_a_mix_that_fails_does_not_stop_the_others(
    fake_board: type[_FakeRig], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from multi_dnn_ros.common.errors import CommandError

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / "board.json"
    fake_board.stops, fake_board.error = 1, CommandError("the node process ended with exit code -9")
    assert run(*ARGUMENTS, "--output", path) == 1
    content = json.loads(path.read_text())["mixes"]
    assert content["builtin"]["status"] == "failed"
    assert content["builtin"]["reason"] == "the node process ended with exit code -9"
    assert content["small"]["status"] == "measured"
    assert "1 of 2 mixes failed: builtin; see " in capsys.readouterr().err
    assert list(tmp_path.glob("multi_dnn_benchmark_*"))  # logs are kept


def test_two_parameter_files_of_the_same_name_have_separate_logs(fake_board: type[_FakeRig], tmp_path: Path) -> None:
    files = [tmp_path / folder / "robot.yaml" for folder in ("a", "b")]
    for file in files:
        put(tmp_path, {str(file.relative_to(tmp_path)): "/**: {ros__parameters: {dnns: [lane]}}\n"})
    assert run("--minutes", "15", "--device", "cpu", "--mixes", *files, "--output", tmp_path / "board.json") == 0
    first, second = fake_board.folders
    assert first != second


def test_a_device_whose_throughput_cannot_be_measured_fails_only_the_sets_of_the_paper(
    fake_board: type[_FakeRig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(device: torch.device) -> float:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr("multi_dnn_ros.benchmark.board.measure.flops_per_s", out_of_memory)
    path = tmp_path / "board.json"
    assert run(*ARGUMENTS, "--output", path) == 1
    content = json.loads(path.read_text())["mixes"]
    assert {name: each["status"] for name, each in content.items()} == {"builtin": "measured", "small": "failed"}
    assert "CUDA out of memory" in content["small"]["reason"]


def test_a_board_that_serves_nothing_has_no_highest_rate(fake_board: type[_FakeRig], tmp_path: Path) -> None:
    path = tmp_path / "board.json"
    fake_board.edge = 0.0
    assert run("--minutes", "3", "--device", "cpu", "--mixes", "builtin", "--output", path) == 0
    found = json.loads(path.read_text())["mixes"]["builtin"]
    assert found["status"] == "not_served"
    assert found["highest_hz"] is None
    assert "the lowest rate that there was time for" in found["reason"]


@pytest.mark.long  # the short tests above use a fake board
def test_a_short_run_with_the_built_in_dnns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "board.json"
    parameters = tmp_path / "one.yaml"
    parameters.write_text("/**: {ros__parameters: {dnns: [object], dnn: {object: {backend: eager, jobs: 1}}}}\n")
    begin = ("--minutes", "1.2", "--mixes", parameters, "--device", "cpu", "--size", "160x120", "--output", path)
    assert run(*begin) == 0
    (found,) = json.loads(path.read_text())["mixes"].values()
    assert found["trials"]
    assert found["status"] in ("measured", "not_served")  # a busy machine may serve too little in so little time
    for each in found["trials"]:
        assert each["frames"] > 0
        missing = sum(each["dropped"].values())
        # Images that the camera sends up to half a second late may belong to the time before or after the trial.
        assert each["results"] + missing == pytest.approx(each["frames"], abs=8 + each["rate_hz"] / 2)
        assert each["drop_share"] == pytest.approx(missing / each["frames"], abs=0.01)
        assert each["memory_bytes"] > 1 << 27
        assert each["cpu_cores"] > 0
    assert f"written to {path}" in capsys.readouterr().out
    check_self_contained(path.with_suffix(".html").read_text())
