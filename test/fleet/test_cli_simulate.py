"""``multi-dnn fleet --simulate``: table, JSON and plot from a file of step times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.fleet.step_times import Interconnect, NetworkTimes, StepTimes
from multi_dnn_ros.fleet.step_times import StepTime as Row

MODELS = ("torchvision:resnet50", "torchvision:alexnet")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A file of jobs and one of step times."""
    jobs = [
        {"name": f"job{k}", "model": MODELS[k % 2], "data": "cifar10:c", "global_batch": 100, "steps": 20000}
        for k in range(5)
    ]
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump({"jobs": jobs}))
    rows = tuple(Row(batch=n, step_ms=5 + n * 0.5, busy_ms=3 + n * 0.5, samples=5) for n in (10, 100))
    times = StepTimes(
        unit="cuda:0",
        interconnect=Interconnect(latency_us=40, bandwidth_gb_s=200),
        interconnect_source="a test",
        networks=tuple(NetworkTimes(model=model, gradient_bytes=10**8, steps=rows) for model in MODELS),
    )
    (tmp_path / "times.json").write_text(times.model_dump_json())
    return tmp_path / "jobs.yaml", tmp_path / "times.json"


def test_all_policies_are_compared(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs, times = files
    output, plot = tmp_path / "out.json", tmp_path / "plot.png"
    arguments = ["--gpus", "2", "3", "--copies", "8", "--output", str(output), "--plot", str(plot)]
    assert main(["fleet", str(jobs), "--simulate", str(times), *arguments]) == 0
    assert "simulated:" in capsys.readouterr().out
    content = json.loads(output.read_text())
    assert content["simulated"] is True
    assert [scenario["units"] for scenario in content["scenarios"]] == [2, 3]
    for scenario in content["scenarios"]:
        assert scenario["jobs"] == 8
        assert set(scenario["policies"]) == {"fair", "even", "one unit"}
        assert all(policy["largest_slow_down"] >= 0.99 for policy in scenario["policies"].values())
    assert plot.stat().st_size > 1000


def test_turns_of_the_file_are_simulated(files: tuple[Path, Path], tmp_path: Path) -> None:
    jobs, times = files
    found = []
    text = jobs.read_text()
    for turns in (False, True):
        jobs.write_text(text if turns else "turns: false\n" + text)
        output = tmp_path / "out.json"
        assert main(["fleet", str(jobs), "--simulate", str(times), "--gpus", "2", "--output", str(output)]) == 0
        content = json.loads(output.read_text())
        assert content["jobs_file"]["turns"] == turns
        found.append(content["scenarios"][0]["policies"])
    together, in_turns = found
    assert in_turns["fair"]["mean_slow_down"] < 0.9 * together["fair"]["mean_slow_down"]
    assert in_turns["even"] == together["even"]


def test_a_model_without_times_is_named(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    jobs, times = files
    jobs.write_text(jobs.read_text().replace("alexnet", "vgg16"))
    assert main(["fleet", str(jobs), "--simulate", str(times)]) == 1
    assert "no step times of torchvision:vgg16; measured: torchvision:resnet50" in capsys.readouterr().err


def test_other_files_are_refused(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    jobs, times = files
    times.write_text(times.read_text().replace('"busy_ms":8.0', '"busy_ms":900.0'))
    assert main(["fleet", str(jobs), "--simulate", str(times)]) == 1
    assert "busy_ms = 900.0: must be at most step_ms" in capsys.readouterr().err


def test_files_without_a_time_slice_get_that_of_their_unit(files: tuple[Path, Path]) -> None:
    content = json.loads(files[1].read_text())
    assert (content.pop("time_slice_ms"), content.pop("change_s")) == (1.75, 4.0)
    assert StepTimes.model_validate(content).time_slice_ms == 1.75
    on_cpu = StepTimes.model_validate({**content, "unit": "cpu:1"})
    assert (on_cpu.time_slice_ms, on_cpu.change_s) == (0.0, 1.0)
    assert StepTimes.model_validate({**content, "time_slice_ms": 0.0}).time_slice_ms == 0.0
