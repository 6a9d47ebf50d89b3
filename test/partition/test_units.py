"""Names of units, and kinds of units from other packages."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from importlib.metadata import EntryPoint

import partition_fakes
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_fakes import table

from multi_dnn_ros.backends.registry import BackendRequest
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.cli.profile_target import add_target, open_target
from multi_dnn_ros.partition import torch_executor
from multi_dnn_ros.partition.executor import NetworkRequest, identity, image_dtype
from multi_dnn_ros.partition.unit_process import UnitProcesses
from multi_dnn_ros.pipeline import choices
from multi_dnn_ros.pipeline.devices import unit_of
from multi_dnn_ros.planning import batch_units
from multi_dnn_ros.planning.batch_table import table_path, write_table
from multi_dnn_ros.planning.batch_units import (
    UnitError,
    UnitKind,
    parse_unit,
    parse_units,
    sharing_warnings,
    unit_kinds,
)


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


def test_another_package_adds_a_kind_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("npu", "partition_npu:KIND", batch_units.GROUP)
    monkeypatch.setattr(batch_units, "entry_points", lambda group: [point] if group == batch_units.GROUP else [])
    with pytest.raises(UnitError, match="'npu' cannot be used: partition_npu:KIND"):
        parse_unit("npu:0")
    monkeypatch.setattr(partition_fakes, "NPU", UnitKind("npu", "npu:NUMBER", partition_fakes.parse), raising=False)
    point = EntryPoint("npu", "partition_fakes:NPU", batch_units.GROUP)
    assert unit_kinds()["npu"].form == "npu:NUMBER"
    with pytest.raises(ValueError, match="registered already"):
        batch_units.register(UnitKind("fake", "", partition_fakes.parse))


def test_an_executor_of_another_package_needs_no_image_dtype() -> None:
    found = []
    for name in ("fake:a", "fake:a/half=1"):
        executor = partition_fakes.FakeExecutor(parse_unit(name), NetworkRequest("fake"), "auto")
        found.append((hasattr(executor, "image_dtype"), image_dtype(executor)))
    assert found == [(False, "float32"), (True, "float16")]


def test_a_unit_of_this_package_imports_no_other_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node's process parses names of devices, and must not import PyTorch."""
    point = EntryPoint("npu", "partition_npu:KIND", batch_units.GROUP)  # it cannot be imported
    monkeypatch.setattr(batch_units, "entry_points", lambda group: [point])
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
    add_target(parser)
    for backend in ("auto", "onnxruntime"):
        with open_target(parser.parse_args(["--device", "cpu", "--backend", backend])) as target:
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
    assert not list(tmp_path.iterdir())
    with pytest.raises(SystemExit):
        main([*begin, "tpu"])
    assert "unit 'tpu' is of an unknown kind; allowed: cpu[:THREADS]" in capsys.readouterr().err
