"""``multi-dnn fleet --plot`` of a fleet that has run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from simulated_launcher import SimulatedLauncher, SimulatedRank

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.messages import Command, Ended


@pytest.mark.parametrize("policy", ["fair", "even", "one unit"])
def test_the_panel_has_the_name_of_the_policy(
    policy: str, job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(rank: SimulatedRank, command: Command) -> None:
        if command.active and command.active[0] == rank.unit:
            rank.put(Ended(True, 3, (0.5, 0.4, 0.3)))

    plots: list[Mapping[str, Any]] = []
    monkeypatch.setattr(SimulatedRank, "send", finish)
    monkeypatch.setattr("multi_dnn_ros.fleet.local_launcher.LocalLauncher", SimulatedLauncher)
    monkeypatch.setattr(
        "multi_dnn_ros.fleet.plot.write_slow_down_plot", lambda path, title, panels: plots.append(panels)
    )
    jobs = [job.model_dump(mode="json", exclude_defaults=True)]
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump({"policy": policy, "jobs": jobs}))
    arguments = ["--units", "cpu:1,cpu:1", "--plot", str(tmp_path / "plot.png")]
    assert main(["fleet", str(tmp_path / "jobs.yaml"), *arguments]) == 0
    assert [list(panels) for panels in plots] == [[policy]]


def test_the_figures_are_written_after_the_output_was_closed(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(rank: SimulatedRank, command: Command) -> None:
        if command.active and command.active[0] == rank.unit:
            rank.put(Ended(True, 3, (0.5, 0.4, 0.3)))

    def closed(supervisor: object) -> str:
        raise BrokenPipeError

    monkeypatch.setattr(SimulatedRank, "send", finish)
    monkeypatch.setattr("multi_dnn_ros.fleet.local_launcher.LocalLauncher", SimulatedLauncher)
    monkeypatch.setattr("multi_dnn_ros.fleet.display.fleet_table", closed)
    jobs = [job.model_dump(mode="json", exclude_defaults=True)]
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump({"jobs": jobs}))
    output = tmp_path / "out.json"
    assert main(["fleet", str(tmp_path / "jobs.yaml"), "--units", "cpu:1,cpu:1", "--output", str(output)]) == 1
    assert json.loads(output.read_text())["jobs"][0]["status"] == "finished"
