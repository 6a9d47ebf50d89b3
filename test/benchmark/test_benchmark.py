"""Benchmarks measure what they say; no test asserts on absolute time."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest
from tiny_exports import export
from torch import nn

from multi_dnn_ros.benchmark import precisions
from multi_dnn_ros.benchmark.overhead import measure_overhead
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.reporting import distribution, table


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of three operations, enough for two jobs, with the output of a lane segmentation network: tracing the
    built-in networks would take most of the time of a benchmark of one frame.
    """
    network = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))
    return export(network, tmp_path_factory.mktemp("network") / "lane.onnx")


@pytest.fixture
def parameters(network: Path, tmp_path: Path) -> Path:
    """A parameter file with one DNN."""
    path = tmp_path / "one.yaml"
    dnn = f"{{model: {network}, decoder: lane, backend: eager, jobs: 1}}"
    path.write_text(f"/**: {{ros__parameters: {{dnns: [lane], dnn: {{lane: {dnn}}}}}}}\n")
    return path


def test_overhead_reports_both_sides_of_the_same_run():
    figures = measure_overhead(jobs=3, frames=5, repeats=2, dnns=2, workers=2)
    assert figures["engine_us_per_job"]["samples"] == figures["direct_us_per_job"]["samples"] == 2
    assert figures["overhead_us_per_job"] == pytest.approx(
        figures["engine_us_per_job"]["p50"] - figures["direct_us_per_job"]["p50"]
    )


def test_a_network_alone_is_compared_with_onnx_runtime_itself(network, parameters, tmp_path, capsys):
    output = tmp_path / "figures.json"
    command = ["benchmark", "cpu", "--params-file", str(parameters), "--frames", "1", "--repeats", "1"]
    command += ["--alone", str(network), "--rounds", "2", "--output", str(output), "--against", "sequential"]
    assert main(command) == 0
    figures = json.loads(output.read_text())
    baseline = "one thread, one after another"
    assert set(figures["ms_per_frame"]) == {"engine", baseline}
    assert all(times["samples"] == 1 and times["min"] > 0 for times in figures["ms_per_frame"].values())
    engine = figures["ms_per_frame"]["engine"]["p50"]
    assert figures["results_per_s"]["engine"] == pytest.approx(1e3 / engine)
    assert figures["engine_over"] == {baseline: pytest.approx(engine / figures["ms_per_frame"][baseline]["p50"])}
    assert set(figures["dnns"]) == {"lane"}
    assert figures["command"].split()[0] == "multi-dnn"
    assert figures["versions"]["torch"]
    (alone,) = figures["alone"]
    assert alone["model"] == str(network)
    assert set(alone["cpu_ms"]) == {"ONNX Runtime directly", *alone["over_direct"]}
    assert all(times["samples"] == 2 and times["min"] > 0 for times in alone["cpu_ms"].values())
    assert str(network) in capsys.readouterr().out
    assert main([*command, "--jobs", "1"]) == 2
    assert "--jobs is 1; with --alone at least 2" in capsys.readouterr().err
    assert main(["benchmark", "cpu", "--alone", "builtin:nothing", "--rounds", "1"]) == 1
    assert "--alone: argument model is 'builtin:nothing'; allowed: builtin:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ("cameras: [front, rear]", "parameter cameras has 2 names; this benchmark takes one"),
        ("dnns: [lane], dnn: {lane: {model: /none.onnx, decoder: lane}}", "there is no such file"),
        ("workers: -1", "workers"),
    ],
)
def test_the_parameters_are_checked_before_a_network_is_measured_alone(
    parameters, words, tmp_path, monkeypatch, capsys
):
    def measured(*arguments):
        raise AssertionError("measured before the parameters were checked")

    monkeypatch.setattr("multi_dnn_ros.benchmark.networks_alone.measure_alone", measured)
    path = tmp_path / "parameters.yaml"
    path.write_text(f"/**: {{ros__parameters: {{{parameters}}}}}\n")
    assert main(["benchmark", "cpu", "--alone", "builtin:lane", "--params-file", str(path)]) == 1
    assert words in capsys.readouterr().err


def test_a_precision_is_warm_when_it_is_timed(network, monkeypatch):
    run, calls = precisions.run_stages, []

    def counted(chain, inputs):
        calls.append(chain)
        return run(chain, inputs)

    monkeypatch.setattr(precisions, "run_stages", counted)
    found = precisions.measure_precisions(str(network), [], "", rounds=2, seed=0)
    assert found["cpu_ms"]["fp32"]["samples"] == 2
    assert len(calls) == 3


def test_a_network_that_cannot_be_measured_does_not_stop_the_others(network, tmp_path, capsys):
    output = tmp_path / "precisions.json"
    command = ["benchmark", "precisions", "--precisions", "bf16", "--rounds", "1", "--output", str(output)]
    assert main([*command, str(network), "builtin:nothing"]) == 1
    found = json.loads(output.read_text())
    assert [each["model"] for each in found["networks"]] == [str(network)]
    assert "'builtin:nothing'; allowed:" in found["failed"]["builtin:nothing"]
    assert "builtin:nothing is not measured: " in capsys.readouterr().out
    assert main([*command, "builtin:nothing"]) == 1
    assert "no network could be measured" in capsys.readouterr().err


@pytest.mark.long  # a short test above has one DNN and one baseline
def test_cpu_scenario_runs_every_condition_and_writes_its_provenance(tmp_path, capsys):
    """Two DNNs, each of which is prepared in this process and in one of its own."""
    output, parameters = tmp_path / "figures" / "cpu.json", tmp_path / "two.yaml"
    parameters.write_text(
        "/**: {ros__parameters: {dnns: [object, pedestrian], dnn: {"
        "object: {backend: eager, jobs: 1}, pedestrian: {backend: eager, jobs: 1}}}}\n"
    )
    command = ["benchmark", "cpu", "--params-file", str(parameters), "--frames", "1", "--repeats", "1"]
    assert main([*command, "--output", str(output)]) == 0
    figures = json.loads(output.read_text())
    baselines = {"one thread, one after another", "one process each", "plain ONNX Runtime, one process each"}
    assert set(figures["ms_per_frame"]) == {"engine", *baselines}
    assert set(figures["engine_over"]) == baselines
    assert all(times["samples"] == 1 and times["min"] > 0 for times in figures["ms_per_frame"].values())
    assert set(figures["dnns"]) == {"object", "pedestrian"}
    assert figures["command"].split()[0] == "multi-dnn"
    assert figures["versions"]["torch"]
    assert "one process each" in capsys.readouterr().out
    assert list(output.parent.iterdir()) == [output]  # nothing half-written next to it


def test_cpu_scenario_ends_when_one_of_its_processes_does(parameters, capsys, monkeypatch):
    def kill_and_continue(order, **options):
        (process,) = (child for child in multiprocessing.active_children() if child.name.startswith("DNN"))
        process.kill()
        return order

    monkeypatch.setattr("multi_dnn_ros.benchmark.concurrency.tqdm", kill_and_continue)
    command = ["benchmark", "cpu", "--params-file", str(parameters), "--frames", "1", "--repeats", "1"]
    assert main([*command, "--against", "processes"]) == 1
    assert "the process of DNN lane ended with exit code -9" in capsys.readouterr().err
    assert not multiprocessing.active_children()


def test_cpu_scenario_ends_when_one_of_its_processes_does_not_answer(parameters, capsys, monkeypatch):
    monkeypatch.setattr("multi_dnn_ros.benchmark.dnn_processes._LIMIT_S", 0.0)
    command = ["benchmark", "cpu", "--params-file", str(parameters), "--frames", "1", "--repeats", "1"]
    assert main([*command, "--against", "processes"]) == 1
    assert "the process of DNN lane did not answer within 0 s" in capsys.readouterr().err
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    "command",
    [
        "benchmark cpu --output",
        "benchmark overhead --output",
        "benchmark load --plot",
        "benchmark rough --output",
        "benchmark cycles --output",
        "benchmark paper --device cpu --output",
        "benchmark deadlines --device cpu --output",
        "profile fit --output",
        "profile contention builtin:lane --output",
        "profile learn none.csv --output",
        "profile layers builtin:lane --output",
    ],
)
def test_an_unwritable_output_is_reported_before_measuring(command, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    words = [*command.split(), str(tmp_path / "file" / "figures.json")]
    assert main(words) == 2
    assert f"{words[-2]} is {words[-1]}" in capsys.readouterr().err


def test_wrong_usage_names_the_option(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["benchmark", "overhead", "--repeats", "0"])
    assert ended.value.code == 2
    assert "--repeats" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["overhead --device cuda", "overhead --params-file x.yaml", "cpu --device cuda", "cycles --seed 1"]
)
def test_an_option_that_a_scenario_would_ignore_is_refused(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["benchmark", *command.split()])
    assert ended.value.code == 2
    assert f"unrecognized arguments: {command.partition(' ')[2]}" in capsys.readouterr().err


def test_distribution_and_table():
    assert distribution([3.0, 1.0, 2.0]) == {
        "samples": 3, "min": 1.0, "p50": 2.0, "p95": pytest.approx(2.9), "p99": pytest.approx(2.98), "max": 3.0
    }  # fmt: skip
    assert table(["a", "bb"], [["1", "2"], ["333", "4"]]) == "| a   | bb |\n| --- | -- |\n| 1   | 2  |\n| 333 | 4  |"
