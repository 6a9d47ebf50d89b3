"""``multi-dnn fleet --compare``: all jobs under each policy, on two CPU units."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from failing_ranks import narrow
from narrow_squeezenet import Narrow
from simulated_launcher import SimulatedLauncher, SimulatedRank
from torchvision.models import squeezenet

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.fleet.comparison import PolicyComparison
from multi_dnn_ros.fleet.folder_lock import lock_folder
from multi_dnn_ros.fleet.jobs_file import FleetJob, JobsFile
from multi_dnn_ros.fleet.messages import Command, Ended
from multi_dnn_ros.fleet.policy_result import PolicyResult, compare
from multi_dnn_ros.planning.batch_units import parse_unit

UNITS = (parse_unit("cpu:1"),) * 2


@pytest.fixture
def file(job: FleetJob, monkeypatch: pytest.MonkeyPatch) -> JobsFile:
    """Two small jobs of different length, which train for several periods: without a decision there are no points."""
    monkeypatch.setattr(squeezenet, "SqueezeNet", Narrow)
    short = job.model_copy(update={"model": "torchvision:squeezenet1_1", "steps": 120})
    return JobsFile(jobs=(short, short.model_copy(update={"name": "b", "steps": 160})), period_s=0.2)


def test_each_policy_trains_all_jobs_and_is_not_trained_again(file: JobsFile, tmp_path: Path) -> None:
    def compared() -> tuple[dict, list[str]]:
        lines: list[str] = []
        comparison = PolicyComparison(file, UNITS, tmp_path / "runs", rank_main=narrow)
        return comparison.run(lines.append), lines

    trained, lines = compared()
    assert lines == ["measuring each job alone", "policy fair", "policy even", "policy one unit"]
    assert list(trained) == ["fair", "even", "one unit"]
    for policy, each in trained.items():
        assert set(each.result.slow_downs) == {"a", "b"}
        # Jobs that share two units need longer than alone; some noise of short runs is allowed.
        assert all(slow_down > 0.7 for slow_down in each.result.slow_downs.values()), policy
        assert 0.0 < each.result.use <= 1.0
        assert each.result.total_s > 0.0
        assert set(each.points) == {"a", "b"}
        for job in file.jobs:
            assert (tmp_path / "runs" / policy.replace(" ", "_") / job.name / f"{job.name}.safetensors").exists()
    shares = [decision["shares"] for decision in trained["even"].decisions]
    assert all(tenths == [5, 5] for each in shares for tenths in each.values())
    shares = [decision["shares"] for decision in trained["one unit"].decisions]
    assert all(sorted(tenths) == [0, 10] for each in shares for tenths in each.values())
    assert trained["even"].result.changes == trained["one unit"].result.changes == 0

    (tmp_path / "runs/even/result.json").unlink()  # as if it had been interrupted
    again, lines = compared()
    assert [line.partition(",")[0] for line in lines] == [
        "times of the jobs alone: measured before",
        "policy fair: trained before",
        "policy even",
        "policy one unit: trained before",
    ]
    assert again["fair"].result == trained["fair"].result
    assert again["fair"].points == trained["fair"].points


def test_a_job_that_fails_is_named(file: JobsFile, tmp_path: Path) -> None:
    bad = file.jobs[1].model_copy(update={"data": f"classes:{tmp_path / 'none'}"})
    comparison = PolicyComparison(
        file.model_copy(update={"jobs": (file.jobs[0], bad)}), UNITS, tmp_path / "runs", rank_main=narrow
    )
    with pytest.raises(CommandError, match=r"alone: a comparison needs all jobs, but .*b: unit [01] .*none"):
        comparison.run()


def test_a_job_that_ends_before_it_was_measured_is_named(file: JobsFile, tmp_path: Path) -> None:
    short = file.jobs[0].model_copy(update={"steps": 2})
    comparison = PolicyComparison(
        file.model_copy(update={"jobs": (short,)}), UNITS, tmp_path / "runs", rank_main=narrow
    )
    with pytest.raises(CommandError, match="a: too short to be measured"):
        comparison.run()


def test_a_folder_of_the_user_is_not_removed(file: JobsFile, tmp_path: Path) -> None:
    precious = tmp_path / "runs/alone/notes.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("mine")
    with pytest.raises(CommandError, match="was not written by --compare"):
        PolicyComparison(file, UNITS, tmp_path / "runs", rank_main=narrow).run()
    assert precious.read_text() == "mine"


def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare with ranks that compute nothing: they report while they are measured alone, and finish otherwise."""

    measured = SimulatedRank.send

    def send(rank: SimulatedRank, command: Command) -> None:
        if measures or command.stop:
            measured(rank, command)
        elif command.active[:1] == (rank.unit,):
            rank.put(Ended(True, 3, (0.5, 0.4, 0.3)))

    measures = True
    write_jobs = PolicyComparison._write_jobs

    def begin(self: PolicyComparison, folder: Path, *given: Any) -> Path:
        nonlocal measures
        measures = folder.name == "alone"
        return write_jobs(self, folder, *given)

    monkeypatch.setattr(SimulatedRank, "send", send)
    monkeypatch.setattr(PolicyComparison, "_write_jobs", begin)
    monkeypatch.setattr("multi_dnn_ros.fleet.comparison.LocalLauncher", SimulatedLauncher)


def test_a_folder_in_use_is_refused_before_anything_is_removed(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated(monkeypatch)
    log = tmp_path / "alone/a/rank0.log"
    log.parent.mkdir(parents=True)
    log.touch()
    (tmp_path / "alone/jobs.yaml").touch()
    comparison = PolicyComparison(JobsFile(jobs=(job,)), UNITS, tmp_path)
    with lock_folder(tmp_path), pytest.raises(CommandError, match="is used by another fleet"):
        comparison.run()
    assert log.exists()


def test_a_job_that_finishes_without_a_report_has_a_slow_down(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failure between the last checkpoint and the scores: the new processes have no step left."""
    simulated(monkeypatch)
    trained = PolicyComparison(JobsFile(jobs=(job,)), UNITS, tmp_path / "runs").run()
    assert all(each.result.slow_downs["a"] >= 0.0 for each in trained.values())


def test_jobs_that_do_not_stop_after_their_measurement_are_saved(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor then shows a line for each of them."""
    simulated(monkeypatch)
    send = SimulatedRank.send
    monkeypatch.setattr("multi_dnn_ros.fleet.supervisor._STOP_S", 0.1)
    monkeypatch.setattr(SimulatedRank, "send", lambda rank, command: None if command.stop else send(rank, command))
    lines: list[str] = []
    jobs = (job, job.model_copy(update={"name": "b"}))
    watch = lambda supervisor, line: lines.append(line)  # noqa: E731
    PolicyComparison(JobsFile(jobs=jobs), UNITS, tmp_path, watch=watch).run()
    assert any("stopped without a checkpoint" in line for line in lines)
    for name in ("a", "b"):
        assert json.loads((tmp_path / "alone" / name / "state.json").read_text())["status"] == "waiting"


def test_a_removal_that_was_interrupted_is_completed(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated(monkeypatch)
    (tmp_path / "alone").mkdir()  # interrupted before the first file was written
    file = JobsFile(jobs=(job,))
    PolicyComparison(file, UNITS, tmp_path).run()
    longer = file.model_copy(update={"jobs": (job.model_copy(update={"steps": 70}),)})

    def interrupted(path: Path) -> None:
        for entry in path.iterdir():
            if entry.is_file():
                entry.unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("multi_dnn_ros.fleet.comparison.shutil.rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            PolicyComparison(longer, UNITS, tmp_path).run()
    assert len(PolicyComparison(longer, UNITS, tmp_path).run()) == 3


def test_use_that_cannot_be_measured_does_not_end_the_comparison() -> None:
    """A GPU whose use nvidia-smi does not report, such as a MIG instance."""
    results = {
        policy: PolicyResult(policy, {"a": 1.5}, use=0.0, total_s=10.0, changes=0, reverted=0)
        for policy in ("fair", "even", "one unit")
    }
    assert compare(results)["use_gain"] is None
    assert compare(results)["total_time_ratio"] == 1.0


def test_the_command_prints_and_writes_the_comparison(
    job: FleetJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = tmp_path / "jobs.yaml"
    short = job.model_copy(update={"model": "torchvision:squeezenet1_1", "steps": 30})
    content = {"period_s": 0.5, "jobs": [short.model_dump(mode="json", exclude_defaults=True)]}
    jobs.write_text(yaml.safe_dump(content))
    common = ["fleet", str(jobs), "--units", "cpu:1,cpu:1", "--compare"]
    assert main([*common, "--output", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]) == 0
    out = capsys.readouterr().out
    assert "| one unit |" in out
    assert "fair: largest slow-down" in out
    report = json.loads((tmp_path / "out.json").read_text())
    assert set(report["policies"]) == {"fair", "even", "one unit"}
    assert report["policies"]["fair"]["slow_downs"].keys() == {"a"}
    assert report["fair_against_baselines"]["total_time_ratio"] > 0.0
    assert (tmp_path / "out.png").stat().st_size > 1000
    assert main([*common, "--simulate", "x.json"]) == 2
    assert "cannot be combined" in capsys.readouterr().err


def test_an_interrupted_comparison_has_written_the_complete_policies(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated(monkeypatch)
    jobs, output = tmp_path / "jobs.yaml", tmp_path / "out.json"
    jobs.write_text(yaml.safe_dump({"jobs": [job.model_dump(mode="json", exclude_defaults=True)]}))
    train = PolicyComparison._train

    def interrupted(self: PolicyComparison, policy: Any, *given: Any) -> Any:
        if policy == "one unit":
            raise KeyboardInterrupt
        return train(self, policy, *given)

    command = ["fleet", str(jobs), "--units", "cpu:1,cpu:1", "--compare", "--output", str(output)]
    monkeypatch.setattr(PolicyComparison, "_train", interrupted)
    assert main(command) == 130
    report = json.loads(output.read_text())
    assert list(report["policies"]) == ["fair", "even"]
    assert "fair_against_baselines" not in report
