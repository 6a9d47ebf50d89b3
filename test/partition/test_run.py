"""A batch on several units: order and completeness of outputs, failures in the middle, and the command."""

from __future__ import annotations

import json
import re
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from partition_fakes import SHAPE, expected, table
from terminal import Terminal

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.partition import messages
from multi_dnn_ros.partition.blocks import Block, BlockForm
from multi_dnn_ros.partition.executor import NetworkRequest, OutputForm, random_images
from multi_dnn_ros.partition.run import BatchRun, disagreement, run_rounds
from multi_dnn_ros.partition.session import BatchSession, Computed
from multi_dnn_ros.partition.torch_executor import TorchExecutor
from multi_dnn_ros.partition.unit_process import UnitProcesses
from multi_dnn_ros.planning.batch_plan import Plan, plan_exact
from multi_dnn_ros.planning.batch_table import read_table, table_path, write_table
from multi_dnn_ros.planning.batch_units import parse_unit, parse_units
from multi_dnn_ros.profiling.network import load


def run(
    names: str, batch: int, *, max_batch: int = 64, rounds: int = 2, timeout_s: float = 60.0
) -> tuple[Plan, BatchRun]:
    units = parse_units(names)
    tables = {unit.name: table(unit.name, 1.0, max_batch=max_batch) for unit in units}
    plan = plan_exact(tables, batch)
    assert all(plan.images.values())
    images = random_images(SHAPE, batch)
    with BatchSession(units, tables, plan, NetworkRequest("fake"), "auto", timeout_s=timeout_s) as session:
        done = run_rounds(session, images, rounds)
    for output, right in zip(done.outputs, expected(images), strict=True):
        np.testing.assert_allclose(output, right, rtol=1e-6)
    return plan, done


def test_outputs_are_complete_and_in_the_order_of_the_inputs() -> None:
    plan, done = run("fake:a,fake:b/ms=2,fake:c", 13)
    assert len(done.rounds) == 2
    for shares in done.rounds:
        assert {share.unit: share.count for share in shares} == dict(plan.images)
        assert sorted((share.first, share.count) for share in shares)[0][0] == 0
        assert all(0.0 <= share.begin_ms <= share.end_ms for share in shares)
        assert all(0.0 < share.times.total_ms <= share.end_ms - share.begin_ms for share in shares)
    assert set(done.utilization()) == set(plan.images)
    assert all(0.0 < part <= 1.0 for part in done.utilization().values())
    assert not done.failures


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("die=1", "was killed by SIGKILL"),
        ("exit=1", "ended with exit code 3"),
        ("full=1", "ran out of memory: the device is full"),
        ("max_batch=2", "ran out of memory: 4 images do not fit"),
        ("fail=1", "failed: a kernel failed"),
    ],
)
def test_the_images_of_a_unit_that_fails_are_computed_by_the_others(option: str, said: str) -> None:
    _, done = run(f"fake:a,fake:bad/{option},fake:c", 12)
    assert len(done.failures) == 1
    assert said in done.failures[0]
    assert done.repeated_images == 4
    assert done.recovery_ms > 0.0


def test_a_unit_that_hangs_is_killed_with_its_process_and_the_images_are_computed_by_others() -> None:
    """Shares of one GPU have a common process. The other unit of that process is not reported as out of memory."""
    _, done = run("fake:a,fake:gpu/hang=1,fake:gpu/ms=1", 6, timeout_s=6.0)
    assert done.failures == (
        "unit fake:gpu/hang=1 did not answer within 6 s; its process was killed",
        "unit fake:gpu/ms=1 ended with its process, which was killed because unit fake:gpu/hang=1 did not answer",
    )


def test_images_that_exceed_the_capacity_are_computed_in_several_steps() -> None:
    _, done = run("fake:a,fake:bad/die=1,fake:worse/fail=1", 9, max_batch=3)
    assert len(done.failures) == 2
    assert done.repeated_images == 6


def test_the_error_without_remaining_units_names_each_reason() -> None:
    with pytest.raises(CommandError, match=r"no unit is left for \d images; no outputs were written") as error:
        run("fake:a/die=1,fake:b/full=1", 4)
    for reason in ("a/die=1 was killed by SIGKILL", "b/full=1 ran out of memory"):
        assert reason in str(error.value)


def test_differences_are_relative_and_non_finite_values_must_agree() -> None:
    one = [np.array([1.0, 100.0], np.float32)]
    assert disagreement([np.array([2.0, 100.0], np.float32)], one) == pytest.approx(0.01)
    assert disagreement(one, one) == 0.0
    assert disagreement([np.array([np.nan, 100.0], np.float32)], one) == float("inf")
    assert disagreement([], one) == float("inf")


@pytest.fixture
def stored(tmp_path):
    def store(*names: str) -> list[str]:
        for name in names:
            write_table(table_path(tmp_path, "fake", name, "auto"), table(name, 1.0, max_batch=32))
        return ["partition", "run", "fake", "--tables", str(tmp_path), "--units", ",".join(names), "--rounds", "2"]

    return store


def test_the_command_writes_outputs_report_and_plot(
    stored, tmp_path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(
        UnitProcesses, "open",
        lambda self, *more, real=UnitProcesses.open: (started.extend(self.handles), real(self, *more))[1],
    )  # fmt: skip
    images = random_images(SHAPE, 9, seed=5)
    np.save(tmp_path / "in.npy", images)
    files = [str(tmp_path / name) for name in ("in.npy", "out.npz", "run.json", "run.png")]
    begin = stored("fake:a/ms=1", "fake:b/ms=1")
    options = ["--input", files[0], "--output", files[1], "--report", files[2], "--plot", files[3], "--compare"]
    assert main([*begin, *options]) == 0
    printed = capsys.readouterr().out
    assert "largest difference from another unit's outputs: 0 of the largest value" in printed
    outputs = np.load(files[1])
    for output, right in zip((outputs["output_0"], outputs["output_1"]), expected(images), strict=True):
        np.testing.assert_allclose(output, right, rtol=1e-6)
    report = json.loads((tmp_path / "run.json").read_text())
    assert sum(report["plan"]["images"].values()) == 9
    assert all(parts["compute_ms"] > 1.0 for parts in report["parts_ms"].values())
    assert [entry["units"] for entry in report["subsets"]] == [
        ["fake:a/ms=1"], ["fake:b/ms=1"], ["fake:a/ms=1", "fake:b/ms=1"]
    ]  # fmt: skip
    assert all(entry["difference"] < 1e-6 and entry["measured_ms"] > 4.0 for entry in report["subsets"])
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert started == ["fake:a/ms=1", "fake:b/ms=1"]  # once, for all subsets: loading a network can take a minute


def test_the_command_shows_its_rounds_and_keeps_the_report_when_it_is_interrupted(
    stored, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, rounds = Terminal(), []
    begin = [*stored("fake:a", "fake:b"), "--batch", "6", "--report", str(tmp_path / "run.json"), "--no-adjust"]
    compute = BatchSession.compute

    def interrupted(session: BatchSession) -> Computed:
        if list(session.plan.used) == ["fake:b"] and session.plan.batch == 6:
            raise KeyboardInterrupt
        rounds.append(session.plan.used)
        return compute(session)

    monkeypatch.setattr(BatchSession, "compute", interrupted)
    monkeypatch.setattr("sys.stderr", terminal)
    assert main([*begin, "--subset", "fake:a", "--subset", "fake:b"]) == 130
    assert rounds.count(("fake:a", "fake:b")) == 3
    for step in ("0/3", "1/3", "2/3", "3/3"):
        assert re.search(rf"6 images on fake:a \+ fake:b: .* {step} \[", terminal.getvalue())
    assert "6 images on fake:a: " in terminal.getvalue()
    entries = json.loads((tmp_path / "run.json").read_text())["subsets"]
    assert [entry["units"] for entry in entries] == [["fake:a"]]


def test_the_command_runs_the_named_subsets(stored, tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    begin = [*stored("fake:a", "fake:b", "fake:c"), "--batch", "6", "--report", str(tmp_path / "run.json")]
    assert main([*begin, "--subset", "fake:b", "--subset", "fake:c,fake:a"]) == 0
    entries = json.loads((tmp_path / "run.json").read_text())["subsets"]
    assert [entry["units"] for entry in entries] == [["fake:b"], ["fake:c", "fake:a"]]
    assert all(entry["difference"] < 1e-6 for entry in entries)
    capsys.readouterr()
    assert main([*begin, "--subset", "fake:d"]) == 2
    assert "--subset names fake:d; allowed: fake:a, fake:b, fake:c" in capsys.readouterr().err


def test_outputs_that_are_not_numbers_are_named(stored, tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    images = random_images(SHAPE, 5, seed=0)
    np.save(tmp_path / "images.npy", images)
    command = [*stored("fake:a", "fake:b"), "--input", str(tmp_path / "images.npy"), "--rounds", "1"]
    assert main(command) == 0
    assert "NaN" not in capsys.readouterr().out
    images[[2, 4], 0, 1, 1] = (np.nan, np.inf)
    np.save(tmp_path / "images.npy", images)
    assert main(command) == 0
    expected = "warning: the outputs of 2 of 5 images have NaN or infinite values; the first is image 2, counted from 0"
    assert expected in capsys.readouterr().out


def test_the_command_writes_nothing_when_outputs_are_wrong_or_missing(
    stored, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.npz"
    assert main([*stored("fake:a", "fake:b/wrong=1"), "--batch", "4", "--output", str(out)]) == 1
    assert "outputs differ from those of" in capsys.readouterr().err
    assert main([*stored("fake:a/die=1", "fake:b/die=1"), "--batch", "4", "--output", str(out)]) == 1
    assert "no unit is left for " in capsys.readouterr().err
    assert not out.exists()


def test_outputs_of_a_network_without_weights_of_its_own_need_the_option(
    tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Random weights, which suffice to measure times, would give outputs that nobody can use."""
    command = ["partition", "run", "torchvision:squeezenet1_1", "--batch", "2", "--tables", str(tmp_path)]
    assert main([*command, "--output", str(tmp_path / "out.npz")]) == 2
    assert "--output needs --weights for torchvision:squeezenet1_1" in capsys.readouterr().err
    assert main(command) == 1  # no table
    assert "--weights" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("units", "said"),
    [
        (("fake:a",), "warning: the outputs were not compared: there is no other unit"),
        (("fake:a", "fake:b/fail=1"), "warning: the outputs were not compared: no other unit is left"),
        (("fake:a", "fake:b/fail=1", "fake:c"), "largest difference from another unit's outputs: 0 of"),
    ],
)
def test_complete_outputs_are_written_though_the_unit_that_compares_them_fails(
    stored, tmp_path, capsys: pytest.CaptureFixture[str], units: tuple[str, ...], said: str
) -> None:
    """The plan gives the single image to the first unit; the second one would compare it."""
    out, report = tmp_path / "out.npz", tmp_path / "run.json"
    begin = stored(*units)
    assert main([*begin, "--batch", "1", "--seed", "3", "--output", str(out), "--report", str(report)]) == 0
    assert said in capsys.readouterr().out
    np.testing.assert_allclose(np.load(out)["output_0"], expected(random_images(SHAPE, 1, seed=3))[0], rtol=1e-6)
    assert json.loads(report.read_text())["difference"] == (0.0 if said.startswith("largest") else None)


def test_the_command_refuses_images_of_another_shape_or_type(
    stored, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin, path = stored("fake:a"), tmp_path / "in.npy"
    for content, said in (
        (np.zeros((2, 3, 5, 4), np.float32), "holds float32 (2, 3, 5, 4); expected float32 (N, 3, 4, 4)"),
        (np.zeros((2, *SHAPE), np.float64), "holds float64"),
        (np.zeros((0, *SHAPE), np.float32), "holds float32 (0, 3, 4, 4)"),
    ):
        np.save(path, content)
        assert main([*begin, "--input", str(path)]) == 1
        assert said in capsys.readouterr().err
    path.write_bytes(b"broken")
    assert main([*begin, "--input", str(path)]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert main(begin) == 2
    assert "--batch or --input is needed" in capsys.readouterr().err
    assert main([*begin, "--batch", str(10**15)]) == 1  # before images are created
    assert "batch is 1000000000000000, but the units hold at most 32" in capsys.readouterr().err


def test_backends_of_a_cpu_unit_compute_the_same() -> None:
    images, found = random_images((3, 32, 32), 2), []
    for name in ("cpu:1", "cpu:1/torchscript"):
        request = NetworkRequest("torchvision:squeezenet1_1", num_classes=3, size=(32, 32))
        executor = TorchExecutor(parse_unit(name), request, "auto")
        assert executor.shape == images.shape[1:]
        (form,) = executor.prepare(len(images))
        found.append(np.full((len(images), *form.shape), np.nan, form.dtype))
        times = executor.run(images, (found[-1],))
        assert times.compute_ms > 0.0
        assert times.input_ms == 0.0
    assert found[0].shape == (2, 3)
    assert disagreement(found[:1], found[1:]) < 1e-3


def test_memory_stays_mapped_while_it_is_registered_with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise CUDA fails later with "resource already mapped", if it gets an address that is still registered."""
    registered: list[weakref.ref[np.ndarray]] = []

    class Pins:
        def __init__(self, device: torch.device) -> None:
            pass

        def pin(self, memory: np.ndarray) -> None:
            assert memory.base is not None

        def close(self) -> None:
            assert registered[0]() is not None

    monkeypatch.setattr("multi_dnn_ros.partition.torch_executor.PinnedImages", Pins)
    request = NetworkRequest("torchvision:squeezenet1_1", num_classes=3, size=(32, 32))
    executor = TorchExecutor(parse_unit("cpu:1"), request, "auto")
    monkeypatch.setattr(executor, "_stream", object())  # as on a GPU
    images = random_images((3, 32, 32), 2)
    registered.append(weakref.ref(images))
    executor.attach(images, ())
    del images
    assert registered[0]() is not None
    executor.attach(random_images((3, 32, 32), 4), ())
    assert registered[0]() is None


@pytest.mark.long  # fake units, and a CPU unit in this process, are tested above
def test_two_cpu_units_are_profiled_and_run_a_network(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ["torchvision:squeezenet1_1", "--size", "32x32", "--num-classes", "3", "--tables", str(tmp_path)]
    units = ["--units", "cpu:1,cpu:1/torchscript"]
    assert main(["partition", "profile", *model, *units, "--max-batch", "3", "--samples", "3"]) == 0
    assert "torchvision:squeezenet1_1 on cpu:1:" in capsys.readouterr().out
    first, second = (read_table(path) for path in sorted((tmp_path / "torchvision-squeezenet1_1").glob("*.json")))
    assert (first.unit, second.unit) == ("cpu:1", "cpu:1/torchscript")
    assert "; torchscript; " in second.device
    assert "1 threads" in first.device
    assert first.shape == (3, 32, 32)
    assert [row.batch for row in first.rows] == [1, 2, 3]
    assert all(row.compute.p50 > 0.0 and row.input.p50 == 0.0 for row in first.rows)
    assert first.provenance["versions"]["torch"]
    report = tmp_path / "run.json"
    assert main(["partition", "run", *model, *units, "--batch", "3", "--rounds", "2", "--report", str(report)]) == 0
    content = json.loads(report.read_text())
    assert content["plan"]["search"] == "exact"
    assert content["difference"] < 1e-3
    assert content["measured_ms"] > 0.0
    assert not content["failures"]


def test_units_of_one_process_export_and_run_at_the_same_time() -> None:
    """As the shares of one GPU do. Exports in two threads of one process crash it (PyTorch 2.11)."""
    units = [replace(parse_unit(name), process="shared") for name in ("cpu:1", "cpu:2")]
    shape = (3, 64, 64)
    images = random_images(shape, 2)
    with UnitProcesses(units) as processes:
        assert len({handle.pid for handle in processes.handles.values()}) == 1
        processes.open(NetworkRequest("torchvision:squeezenet1_1", size=shape[1:], weights="random"), "fp32", 120.0)
        handles = list(processes.handles.values())
        inputs = Block(BlockForm(images.shape, "float32"))
        inputs.array[:] = images
        outputs = Block(BlockForm((2, 1000), "float32"))
        for handle in handles:
            handle.send(messages.Prepare(1))
        for handle in handles:
            (form,) = handle.receive(messages.Prepared, 120.0).outputs
            assert form == OutputForm((1000,), "float32")
        for handle in handles:
            handle.ask(messages.Attach(inputs.form, (outputs.form,)), messages.Attached, 60.0, (inputs, outputs))
        answers, failures, _ = processes.run({"cpu:1": (0, 1), "cpu:2": (1, 1)}, 60.0)
        assert set(answers) == {"cpu:1", "cpu:2"}
        assert not failures
        network = load("torchvision:squeezenet1_1", weights="random", size=shape[1:])
        with torch.inference_mode():
            right = network.module(torch.from_numpy(images)).numpy()
        np.testing.assert_allclose(outputs.array, right, atol=1e-4)
        inputs.close()
        outputs.close()
