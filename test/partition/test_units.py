"""Names of units, and kinds of units from other packages."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import partition_fakes
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_fakes import table

from multi_dnn_ros.backends.registry import BackendRequest
from multi_dnn_ros.cli import partition_arguments, profile
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.extensions import Registry
from multi_dnn_ros.partition import torch_executor
from multi_dnn_ros.partition.executor import NetworkRequest, identity, image_dtype, random_images
from multi_dnn_ros.partition.unit_process import UnitProcesses
from multi_dnn_ros.pipeline import choices
from multi_dnn_ros.pipeline.devices import unit_of
from multi_dnn_ros.planning import batch_units
from multi_dnn_ros.planning.batch_table import table_path, write_table
from multi_dnn_ros.planning.batch_units import UnitError, UnitKind, parse_unit, parse_units, sharing_warnings


def test_a_unit_name_contains_device_threads_sms_and_backend() -> None:
    units = parse_units("cpu, cpu:8,cuda,cuda:1/16sms,cpu:2/torchscript,cuda:0/8sms/inductor")
    assert [(unit.name, unit.device, unit.threads, unit.sms, unit.backend) for unit in units] == [
        ("cpu", "cpu", 0, 0, "auto"),
        ("cpu:8", "cpu", 8, 0, "auto"),
        ("cuda:0", "cuda:0", 0, 0, "auto"),
        ("cuda:1/16sms", "cuda:1", 0, 16, "auto"),
        ("cpu:2/torchscript", "cpu", 2, 0, "torchscript"),
        ("cuda:0/8sms/inductor", "cuda:0", 0, 8, "inductor"),
    ]


def test_shares_of_one_gpu_run_in_one_process_and_cpu_units_do_not() -> None:
    first, second, third, fourth = parse_units("cuda:0/16sms,cuda:0/8sms,cpu:1,cpu:2")
    assert first.process == second.process
    assert len({first.process, third.process, fourth.process}) == 3


@pytest.mark.parametrize("text", ["", "cpu:0", "cpu:x", "cuda:0/sms", "cuda:0/16", "cuda/0sms", "tpu", "cpu:1,cpu:1",
                                  "cuda,cuda:0", "cpu,", "cpu:99999"])  # fmt: skip
def test_a_wrong_unit_name_is_refused_with_the_allowed_ones(text: str) -> None:
    with pytest.raises(UnitError, match=r"cpu\[:THREADS\]|cuda\[:NUMBER\]|twice|allowed|form"):
        parse_units(text)


@given(st.text(max_size=20))
def test_any_text_is_a_unit_of_this_name_or_a_unit_error(text: str) -> None:
    try:
        unit = parse_unit(text)
    except UnitError:
        return
    assert parse_unit(unit.name) == unit


@pytest.fixture
def new_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kinds of units are looked up as in a new process, in which nothing was imported or reported yet."""
    extensions._found.cache_clear()
    monkeypatch.setattr(batch_units, "UNIT_KINDS", Registry(UnitKind, extensions.UNITS))
    monkeypatch.setattr(partition_arguments, "UNIT_KINDS", batch_units.UNIT_KINDS)
    yield
    extensions._found.cache_clear()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_registry: None) -> Path:
    """Two installed packages with kinds of units, most of which cannot be used."""
    (tmp_path / "good_units.py").write_text(
        "import partition_fakes\n"
        "from multi_dnn_ros.planning.batch_units import UnitKind\n"
        "NPU = UnitKind('npu', 'npu:NAME', partition_fakes.parse)\n"
        "import sys\n"
        "def fail(text): raise KeyError('no\\nnumber')\n"
        "ENDS = UnitKind('ends', 'ends:NUMBER', lambda text: sys.exit(4))\n"
        "RAISES = UnitKind('raises', 'raises:NUMBER', fail)\n"
        "NOTHING = UnitKind('nothing', 'nothing:NUMBER', lambda text: None)\n"
        "from multi_dnn_ros.planning.batch_units import Unit\n"
        "def parse(text): return Unit(text, text, 'partition_fakes:FakeExecutor')\n"
        "DRIVER = UnitKind('driver', 'driver', parse, lambda: 'there is no driver')\n"
        "DEVICE = UnitKind('device', 'device', parse, lambda: sys.exit(5))\n"
        "LIBRARY = UnitKind('library', 'library', parse, lambda: None)\n"
    )
    (tmp_path / "ending_units.py").write_text("import sys\nsys.exit(3)\n")
    for name, points in (
        ("good-units", ("npu = good_units:NPU", "raises = good_units:RAISES", "nothing = good_units:NOTHING",
                        "ends = good_units:ENDS", "driver = good_units:DRIVER", "device = good_units:DEVICE",
                        "library = good_units:LIBRARY")),
        ("other-units", ("absent = no_such_module:KIND", "cpu = good_units:NPU", "ending = ending_units:KIND",
                         "npu = good_units:NPU", "renamed = good_units:NPU", "same = good_units:partition_fakes",
                         "Quick-NPU = good_units:NPU")),
    ):  # fmt: skip
        info = tmp_path / f"{name.replace('-', '_')}-0.3.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.3\n")
        (info / "entry_points.txt").write_text("\n".join((f"[{extensions.UNITS}]", *points, "")))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("driver", "unit 'driver' cannot be used: there is no driver"),
        ("device", "unit 'device': kind of unit 'device' of good-units 0.3: problem raised SystemExit: 5"),
        ("library", "unit 'library': kind of unit 'library' of good-units 0.3: problem returned None; expected a str"),
    ],
)
def test_a_kind_that_cannot_be_used_here_says_why(name: str, error: str) -> None:
    unit = parse_unit(name)  # a table of this unit can be read
    with pytest.raises(UnitError, match=f"^{re.escape(error)}$"):
        batch_units.check_installation(unit)


@pytest.mark.usefixtures("installed")
def test_kinds_of_other_packages_work_beside_broken_ones_which_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(2):
        batch_units.UNIT_KINDS.report_broken()
    forms = {kind.name: kind.form for kind in batch_units.UNIT_KINDS.usable()}
    assert forms["npu"] == "npu:NAME"
    assert forms["cpu"].startswith("cpu[:THREADS]")
    named = (
        "kind of unit 'Quick-NPU' of other-units 0.3 is not used: allowed names: lower-case letters, digits and _, a "
        "letter first, after an optional dot (\\.?[a-z][a-z0-9_]*)"
    )
    assert sorted(caplog.messages) == [
        named,
        "kind of unit 'absent' of other-units 0.3 cannot be used: no_such_module:KIND: ModuleNotFoundError: No module "
        "named 'no_such_module'",
        "kind of unit 'cpu' of other-units 0.3 is not used: multi_dnn_ros has one of this name",
        "kind of unit 'ending' of other-units 0.3 cannot be used: ending_units:KIND: SystemExit: 3",
        "kind of unit 'npu' of other-units 0.3 is not used: good-units 0.3 has one of this name",
        "kind of unit 'renamed' of other-units 0.3 cannot be used: good_units:NPU has the name 'npu'; expected "
        "'renamed', as its entry point",
        "kind of unit 'same' of other-units 0.3 cannot be used: good_units:partition_fakes is of type module; expected "
        "UnitKind",
    ]
    with pytest.raises(UnitError, match=r"unit 'tpu' is of an unknown kind; allowed: .*npu:NAME"):
        parse_unit("tpu")
    with pytest.raises(UnitError, match=re.escape(named)):
        parse_unit("Quick-NPU:1")
    assert parse_unit("cpu:2").threads == 2


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("unit", "said"),
    [
        ("absent:0", "kind of unit 'absent' of other-units 0.3 cannot be used: no_such_module:KIND"),
        ("ending", "kind of unit 'ending' of other-units 0.3 cannot be used: ending_units:KIND: SystemExit: 3"),
        ("raises:1", "unit 'raises:1': kind of unit 'raises' of good-units 0.3: parse raised KeyError: 'no"),
        ("ends:1", "unit 'ends:1': kind of unit 'ends' of good-units 0.3: parse raised SystemExit: 4"),
        (
            "nothing:1",
            "unit 'nothing:1': kind of unit 'nothing' of good-units 0.3: parse returned None; expected a Unit",
        ),
    ],
)
def test_a_kind_that_cannot_be_used_is_an_error_that_names_the_unit(
    unit: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["partition", "profile", "fake", "--units", unit, "--max-batch", "2"])
    assert said in capsys.readouterr().err
    with pytest.raises(UnitError, match=re.escape(said)):
        parse_unit(unit)


@pytest.mark.usefixtures("new_registry")
def test_the_example_of_the_page_measures_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "partition.md").read_text(encoding="utf-8")
    ((name, code),) = re.findall(r"```python\n# file: (\S+)\n(.*?)```", page, re.S)
    (points,) = re.findall(r"```toml\n\[project.entry-points.\"(.*?)```", page, re.S)
    package, info = tmp_path / name, tmp_path / "my_units-0.1.dist-info"
    package.parent.mkdir()
    package.write_text(code)
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-units\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[" + points.replace('"', ""))
    monkeypatch.syspath_prepend(str(tmp_path))
    common = ["--tables", str(tmp_path / "tables")]
    assert main(["partition", "profile", "fake", *common, "--units", "mean:1,mean:2", "--max-batch", "4"]) == 0
    output = tmp_path / "outputs.npz"
    command = ["partition", "run", "fake", *common, "--batch", "6", "--output", str(output)]
    assert main(command) == 0, capsys.readouterr().err
    (means,) = np.load(output).values()
    np.testing.assert_allclose(means, random_images((3, 48, 64), 6, 0).mean(axis=(1, 2, 3)), rtol=1e-4)


@pytest.mark.parametrize("number", range(len(partition_fakes.BAD)))
def test_what_an_executor_may_not_return_is_an_error_that_names_the_unit(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, _ = partition_fakes.BAD[number]
    tables = ["--tables", str(tmp_path)]
    unit = f"fake:a/bad={number}"
    if name == "transfer":
        command = ["partition", "io", "fake", "--units", unit]
    else:
        command = ["partition", "profile", "fake", *tables, "--units", unit, "--max-batch", "2"]
    what = f"{name}()" if callable(getattr(partition_fakes.FakeExecutor, name, None)) else name
    said = f"unit {unit} failed: {what} of its executor FakeExecutor is "
    assert main(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not list(tmp_path.rglob("*.json"))
    if name == "run":  # a table measured by an earlier version of the executor
        write_table(table_path(tmp_path, "fake", unit, "auto"), table(unit, 1.0, max_batch=4))
        assert main(["partition", "run", "fake", *tables, "--batch", "4", "--seed", "1"]) == 1
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(("option", "output"), [("infinite", 0), ("unwritten", 1)])
def test_a_unit_whose_outputs_are_not_finite_gets_no_table(
    option: str, output: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = f"fake:a/{option}=1"
    command = ["partition", "profile", "fake", "--tables", str(tmp_path), "--units", unit, "--batches", "4"]
    assert main(command) == 1
    assert f"values of its output {output} for 4 random images are NaN or infinite" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(
    ("described", "said"),
    [
        (lambda unit, precision: 1 / 0, "`identity` of executor partition_fakes:FakeExecutor raised ZeroDivisionError"),
        (lambda unit, precision: None, "`identity` of executor partition_fakes:FakeExecutor returned NoneType"),
    ],
)
def test_an_executor_that_cannot_describe_its_device_is_named(
    described: Callable[..., Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_fakes.FakeExecutor, "identity", staticmethod(described))
    with pytest.raises(UnitError, match=re.escape(f"unit 'fake:a': {said}")):
        identity(parse_unit("fake:a"), "auto")


def test_an_executor_that_cannot_be_imported_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unit = "fake:a/no_executor=1"
    said = f"unit '{unit}': executor partition_fakes:NoSuchExecutor cannot be used: AttributeError: module "
    with pytest.raises(UnitError, match=re.escape(said)):
        identity(parse_unit(unit), "auto")
    tables = ["--tables", str(tmp_path)]
    assert main(["partition", "profile", "fake", *tables, "--units", unit, "--max-batch", "2"]) == 1
    assert said in capsys.readouterr().err


def test_an_executor_that_calls_sys_exit_fails_as_with_any_other_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = ["--tables", str(tmp_path)]
    assert main(["partition", "profile", "fake", *tables, "--units", "fake:a/sys_exit=1", "--max-batch", "2"]) == 1
    assert "unit fake:a/sys_exit=1 failed: the executor gives up" in capsys.readouterr().err


def test_an_executor_of_another_package_needs_no_image_dtype() -> None:
    found = []
    for name in ("fake:a", "fake:a/half=1"):
        executor = partition_fakes.FakeExecutor(parse_unit(name), NetworkRequest("fake"), "auto")
        found.append((hasattr(executor, "image_dtype"), image_dtype(executor)))
    assert found == [(False, "float32"), (True, "float16")]


@pytest.mark.usefixtures("new_registry")
def test_a_unit_of_this_package_imports_no_other_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node's process parses names of devices, and must not import PyTorch."""
    point = EntryPoint("npu", "partition_npu:KIND", extensions.UNITS)
    monkeypatch.setattr(extensions, "entry_points", lambda group: [point])
    monkeypatch.setitem(sys.modules, "partition_npu", None)  # an import would fail
    assert [parse_unit(name).device for name in ("cpu:4", "cuda", "cuda:1/8sms")] == ["cpu", "cuda:0", "cuda:1"]


def test_the_automatic_backend_of_a_cpu_computes_on_the_provider_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever build of ONNX Runtime is installed: OpenVINO would be preferred to the CPU's own provider."""
    requests: list[BackendRequest] = []
    monkeypatch.setattr(
        choices.BACKENDS, "get", lambda name, real=choices.BACKENDS.get: replace(real(name), factory=requests.append)
    )
    for unit in ("cpu", "cpu:1/onnxruntime"):
        torch_executor._target(parse_unit(unit), "auto").make_backend()
    parser = argparse.ArgumentParser()
    profile._add_target(parser, repeats=1, threads="1")
    for backend in ("auto", "onnxruntime"):
        with profile._open_target(parser.parse_args(["--device", "cpu", "--backend", backend])) as target:
            target.make_backend()
    assert [request.providers for request in requests] == [("cpu",), (), ("cpu",), ()]


def test_units_that_slow_each_other_down_are_warned_about() -> None:
    (threads,) = sharing_warnings(parse_units("cpu:1,cpu:2"), 2)
    assert "cpu:1 and cpu:2 together have 3 threads on 2 cores" in threads
    (whole,) = sharing_warnings(parse_units("cpu,cpu:2"), 2)
    assert "4 threads" in whole
    (gpu,) = sharing_warnings(parse_units("cuda:0/16sms,cuda:1,cuda:0"), 2)
    assert "cuda:0/16sms and cuda:0 use the same SMs" in gpu
    assert len(sharing_warnings(parse_units("cpu:2,cpu:1,cuda:0/16sms,cuda:0"), 2)) == 2


@pytest.mark.parametrize(
    "units", ["cpu:1,cuda:0", "cpu:1,cpu:1/torchscript", "cuda:0,cuda:1", "cuda:0/16sms,cuda:0/8sms"]
)
def test_other_units_are_not_warned_about(units: str) -> None:
    assert sharing_warnings(parse_units(units), 2) == []


@pytest.mark.parametrize(
    ("unit", "precision", "said"),
    [
        ("cuda:99", "auto", "unit 'cuda:99': its device is 'cuda:99', but PyTorch sees"),
        ("cpu:1000", "auto", "has 1000 threads; this process may use"),
        ("cpu/cuda_graph", "auto", "unit 'cpu/cuda_graph': its backend is 'cuda_graph', but the device is cpu"),
        ("cpu/eager", "fp16", "unit 'cpu/eager': the precision is 'fp16'; allowed with backend eager on cpu: auto, "),
        ("cpu/nothing", "auto", "backend 'nothing' is not known; allowed: eager"),
    ],
)
def test_a_unit_that_the_machine_does_not_have_is_named(unit: str, precision: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        identity(parse_unit(unit), precision)


def test_a_table_of_an_openvino_unit_is_read_where_openvino_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(UnitProcesses, "open", lambda *args: pytest.fail("a process was started"))
    missing = "unit 'openvino:gpu' cannot be used: onnxruntime "
    for name in ("openvino:gpu", "fake:a"):
        write_table(table_path(tmp_path, "fake", name, "auto"), table(name, 1.0, max_batch=4))
    tables = ["--tables", str(tmp_path)]
    plan = ["partition", "plan", "fake", *tables, "--batch", "4"]
    assert main([*plan, "--unchecked"]) == 0
    assert "| openvino:gpu " in capsys.readouterr().out
    assert main(["partition", "table", "fake", *tables]) == 0
    assert "fake on openvino:gpu, precision auto" in capsys.readouterr().out
    for command in (
        plan,
        ["partition", "run", "fake", *tables, "--batch", "4"],
        ["partition", "profile", "fake", *tables, "--units", "fake:a,openvino:gpu", "--max-batch", "2"],
        ["partition", "io", "fake", "--units", "openvino:gpu"],
    ):
        assert main(command) == 1
        assert missing in capsys.readouterr().err
    with pytest.raises(choices.ConfigError, match=rf"parameter device is 'openvino:gpu': {missing}"):
        unit_of("openvino:gpu", "device")


@pytest.mark.usefixtures("forked_spawns")
def test_the_command_names_a_unit_that_the_machine_does_not_have(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    begin = ["partition", "profile", "builtin:lane_small", "--max-batch", "2", "--tables", str(tmp_path), "--units"]
    assert main([*begin, "cpu:1000"]) == 1  # reported by the unit's process
    assert "has 1000 threads; this process may use" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.json"))
    with pytest.raises(SystemExit):
        main([*begin, "tpu"])
    assert "unit 'tpu' is of an unknown kind; allowed: cpu[:THREADS]" in capsys.readouterr().err
