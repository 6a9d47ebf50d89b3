"""A short soak through the command line, its changes, and what its verdicts reject."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from multi_dnn_ros.benchmark import soak as planned
from multi_dnn_ros.benchmark.observation import NodeSample
from multi_dnn_ros.benchmark.soak import changes_of, growth, inexact
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.resources import config_file
from multi_dnn_ros.settings.params_file import read_params_file

CONFIG = read_params_file(config_file("multi_dnn.yaml"))
ACTIONS = {planned.SET, planned.SWITCH, planned.SWAP, planned.KILL_ENGINE}
ONE_DNN = """\
/**:
  ros__parameters:
    dnns: [object]
    dnn: {object: {backend: eager, jobs: 1}}
    diagnostics_period_s: 0.25
"""


def soak(tmp_path: Path, *options: str) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Exit code, figures, and notes of the verdicts that have failed, of a short run with one DNN."""
    parameters, output = tmp_path / "parameters.yaml", tmp_path / "soak.json"
    parameters.write_text(ONE_DNN)
    code = main(["benchmark", "soak", "--params-file", str(parameters), "--output", str(output),
                 *options])  # fmt: skip
    found = json.loads(output.read_text())
    return code, found, {verdict["name"]: verdict["note"] for verdict in found["verdicts"] if not verdict["passed"]}


@pytest.mark.long
def test_a_short_soak_has_exact_accounts_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found, failed = soak(tmp_path, "--minutes", "0.34", "--kill-every", "5", "--seed", "7")
    assert code in (0, 1)  # memory over some seconds says nothing
    assert not failed.keys() & {"streams with inexact accounts", "exit code of the node"}, failed
    assert len(found["streams"]) == 2
    assert all(counts["published"] > 0 for counts in found["streams"].values()), found["streams"]
    assert {done["action"] for done in found["actions"]} <= ACTIONS  # a busy machine does not come to all of them
    assert len(found["actions"]) >= 2
    assert [done for done in found["actions"] if "refused" in done["problem"]] == []
    assert {"command", "versions", "machine"} <= found.keys()
    assert "streams with inexact accounts" in capsys.readouterr().out


def test_bad_arguments_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "soak", "--kill-every", "2"]) == 2
    assert "--kill-every is 2; allowed: 0, or at least 5 seconds" in capsys.readouterr().err
    path = tmp_path / "parameters.yaml"
    path.write_text("/**: {ros__parameters: {isolation: none}}\n")
    assert main(["benchmark", "soak", "--params-file", str(path)]) == 2
    assert "parameter isolation is none; this scenario needs process" in capsys.readouterr().err


@pytest.mark.parametrize("kills", [True, False])
def test_changes_are_those_of_the_seed_and_end_with_the_former_value(kills: bool) -> None:
    changes = changes_of(CONFIG, 3, kills=kills)
    assert changes == changes_of(CONFIG, 3, kills=kills)
    assert changes != changes_of(CONFIG, 4, kills=kills)
    for change in changes:
        if change.action in (planned.SET, planned.SWAP):
            _, dnn, field = change.target.split(".")
            assert change.values[1] == getattr(CONFIG.dnns[dnn], field) != change.values[0]
    replacing = {planned.KILL_ENGINE, planned.SWAP}
    assert {change.action for change in changes} == (ACTIONS if kills else ACTIONS - replacing)


# -- the verdicts

EXACT = {"offered": 10, "received": 10, "published": 7, "observed": 7, "pending": 0, "dropped": {"engine_lost": 3}}


@pytest.mark.parametrize(
    "change", [{"offered": 11}, {"received": 9}, {"published": 8}, {"observed": 6}, {"pending": 1}, {"dropped": {}}]
)
def test_a_frame_that_is_missing_in_one_count_fails(change: dict[str, Any]) -> None:
    assert inexact({"lane on front": EXACT}) == []
    (found,) = inexact({"lane on front": EXACT, "lane on rear": {**EXACT, **change}})
    assert found.startswith("lane on rear: offered")
    assert inexact({})


def samples(**leak: int) -> list[NodeSample]:
    """A sample per second for 30 s, to whose fields `leak` is added in the last third."""
    first = NodeSample(0.0, memory_bytes=1000, threads=10, files=20, gpu_bytes=500)
    last = replace(first, **{name: getattr(first, name) + more for name, more in leak.items()})
    return [replace(last if at >= 20 else first, at_s=float(at)) for at in range(30)]


@pytest.mark.parametrize(
    ("leak", "failed"),
    [
        ({}, []),
        ({"memory_bytes": 10}, []),
        ({"memory_bytes": 30}, ["growth of memory"]),
        ({"gpu_bytes": 20}, ["growth of GPU memory"]),
        ({"files": 1}, ["growth of file descriptors"]),
        ({"threads": 1}, ["growth of threads"]),
        ({"threads": -1}, []),
    ],
)
def test_each_leak_is_found(leak: dict[str, int], failed: list[str]) -> None:
    found = growth(samples(**leak), 0.0, 30.0)
    assert [it["name"] for it in found if not it["passed"]] == failed
    assert not any(it["passed"] for it in growth([], 0.0, 30.0))
