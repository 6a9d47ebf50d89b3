"""The command is killed, as by a power failure, and started again."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import psutil
import pytest
import torch
import yaml
from waiting import runs, until

from multi_dnn_ros.common.processes import Child
from multi_dnn_ros.fleet.job_training import JobTraining
from multi_dnn_ros.fleet.jobs_file import FleetJob

_PATIENCE_S = 240.0


@pytest.mark.long
@pytest.mark.parametrize(("names", "units", "turns"), [("a", "cpu:1,cpu:1", False), ("ba", "cpu:1", True)])
def test_a_killed_fleet_continues_with_the_same_losses(
    names: str, units: str, turns: bool, job: FleetJob, tmp_path: Path
) -> None:
    """A small network, whose losses in float64 stay the same at this learning rate, as in test_fleet_cluster. With
    turns, a longer job `b` is paused when the command is killed.
    """
    changes = {"model": "torchvision:shufflenet_v2_x0_5", "lr": 2e-5, "precision": "fp64"}
    job = job.model_copy(update={**changes, "steps": 60 if turns else 100, "checkpoint_every_s": 0.2})
    # With turns, `b` trains first, and long enough that it pauses for `a`.
    b = job.model_copy(update={"name": "b", "steps": 300})
    jobs = {"a": job.model_copy(update={"start_after_s": 3.0 if turns else 0.0}), "b": b}
    content = [jobs[name].model_dump(mode="json", exclude_defaults=True) for name in names]
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump({"period_s": 0.5, "turns": turns, "jobs": content}))
    arguments = ["fleet", str(tmp_path / "jobs.yaml"), "--units", units, "--folder", str(tmp_path / "runs")]
    checkpoint = tmp_path / "runs/a/checkpoint.pt"
    with Child("first", arguments, tmp_path / "first.log", {}) as first:
        until(checkpoint.is_file, "a checkpoint", _PATIENCE_S)
        until(lambda: not turns or "pause: b" in first.log.read_text(), "a paused job", _PATIENCE_S)
        ranks = psutil.Process(first.pid).children(recursive=True)
        assert ranks
        first.send(signal.SIGKILL)
        until(lambda: not any(runs(rank) for rank in ranks), "the end of the ranks", _PATIENCE_S)
    done = torch.load(checkpoint, weights_only=True)["done"]
    assert 0 < done < job.steps
    with Child("second", [*arguments, "--output", str(tmp_path / "out.json")], tmp_path / "second.log", {}) as second:
        until(lambda: second.exit_code() is not None, "the end of the fleet", _PATIENCE_S)
        assert second.exit_code() == 0, second.log.read_text()
    report = json.loads((tmp_path / "out.json").read_text())
    for result in report["jobs"]:
        assert result["status"] == "finished"
        alone = JobTraining(jobs[result["name"]], torch.device("cpu"))
        alone.take((10,), 0)
        while alone.done < alone.total:
            alone.step()
        assert result["losses"] == pytest.approx(alone.losses, rel=1e-4)
