"""Errors of another package's extensions name the extension and the DNN, and leave the other extensions usable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fork_server import ForkServer
from toy_node import run_forked

PACKAGE = "faulty-extension 0.4"
DECODER = f"decoder 'faulty_decoder' of {PACKAGE}"
BACKEND = f"backend 'faulty_backend' of {PACKAGE}"
SOURCE = f"model source 'faulty_zoo' of {PACKAGE}"
LOAD = f"parameter dnn.x.model is 'faulty_zoo:net': {SOURCE}: load "
FACTORY = f"dnn.x: {BACKEND}: factory "
ON_BLACK = f"DNN 'x' fails on a black image: {DECODER}: decoding "
RESULT = "DNN 'x' fails on a black image: its result, of type faulty_extension.Level, "

#: Begin of a program that configures a DNN with the extensions of the faulty package.
BEGIN = """
import faulty_extension, io, json, logging, sys
from multi_dnn_ros.pipeline.build import build
from multi_dnn_ros.serving.configure import describe_failure, warm_up
from multi_dnn_ros.settings.flat_parameters import to_config

class Messages(logging.Handler):
    def __init__(self):
        super().__init__()
        self.found = []
        logging.getLogger("multi_dnn_ros").addHandler(self)

    def emit(self, record):
        self.found.append((record.levelname, record.getMessage(), bool(record.exc_info)))

def configured(**parameters):
    dnn = {"role": "level", "model": "faulty_zoo:net", "backend": "faulty_backend", "jobs": 2, **parameters}
    pipeline = build(to_config({"device": "cpu", "dnns": ["x"]} | {f"dnn.x.{name}": dnn[name] for name in dnn}))
    warm_up(pipeline.tasks, pipeline.device, lambda text: None)
    return pipeline
"""

#: Text of the error by fault: what follows the text is omitted.
FAULTS = {
    "load": f"{LOAD}raised RuntimeError: broken",
    "load_exit": f"{LOAD}raised SystemExit: 2",
    "load_none": f"{LOAD}returned None; expected a Source",
    "load_meta": f"{LOAD}returned a Source whose module has weights on the meta device; expected weights on the CPU",
    "load_training": f"{LOAD}returned a Source whose module is in training mode; expected eval mode: call ",
    "load_size_0": f"{LOAD}returned a Source of size (0, 0); expected (width, height) in pixels, or None",
    "load_size_3": f"{LOAD}returned a Source of size (3, 48, 64); expected (width, height) in pixels, or None",
    "load_preprocess": f"{LOAD}returned a Source whose preprocess is {{'colour': 'bgr'}}: Preprocess.__init__() got an",
    "load_decoder": f"dnn.x: {SOURCE} names the decoder of faulty_zoo:net: decoder 'no_such_decoder' is not known; ",
    "untraceable": "dnn.x: faulty_zoo:net cannot be cut into jobs: torch.export cannot trace Network: ",
    "factory": f"dnn.x: {DECODER}: factory raised RuntimeError: broken",
    "check": f"dnn.x: {DECODER}: check raised RuntimeError: broken",
    "check_exit": f"dnn.x: {DECODER}: check raised SystemExit: 2",
    "decode": f"{ON_BLACK}raised RuntimeError: broken",
    "decode_exit": f"{ON_BLACK}raised SystemExit: 2",
    "decode_none": f"{ON_BLACK}returned a NoneType; expected a Level (result kind faulty_kind)",
    "decode_number": f"{ON_BLACK}returned a int; expected a Level (result kind faulty_kind)",
    "decode_tensor": f"{RESULT}holds an object of PyTorch: torch.Tensor; allowed: NumPy arrays and plain values",
    "decode_lock": f"{RESULT}cannot be pickled: TypeError: cannot pickle '_thread.lock' object; allowed: NumPy",
    "make": f"{FACTORY}raised RuntimeError: broken",
    "make_exit": f"{FACTORY}raised SystemExit: 2",
    "make_none": f"{FACTORY}returned None; expected a backend, which has a method prepare",
    "prepare": f"dnn.x: {BACKEND}: prepare raised RuntimeError: broken",
    "prepare_exit": f"dnn.x: {BACKEND}: prepare raised SystemExit: 2",
    "prepare_none": f"dnn.x: {BACKEND}: prepare returned None; expected a tuple of 2 callables, one for each job",
    "prepare_too_few": f"dnn.x: {BACKEND}: prepare returned 1 callables for 2 jobs",
    "stage": f"dnn.x: {BACKEND}: the callable for job 1 raised RuntimeError: broken",
    "stage_tensor": f"dnn.x: {BACKEND}: the callable for job 1 returned an object of type Tensor; expected a tuple of",
    "stage_arrays": f"dnn.x: {BACKEND}: the callable for job 1 returned a tuple of ndarray; expected a tuple of",
    "finish": f"dnn.x: {BACKEND}: finish raised RuntimeError: broken",
}
_TWO_ROWS = ("prepare", "prepare_too_few")


@pytest.fixture(scope="module")
def run(faulty: Path, fork_server: ForkServer) -> Callable[[str], Any]:
    """Runs a program that prints JSON, and returns the object."""

    def run_program(code: str) -> Any:
        return json.loads(run_forked(fork_server, BEGIN + code, faulty).splitlines()[-1])

    return run_program


@pytest.fixture(scope="module")
def outcomes(run: Callable[[str], Any]) -> Any:
    """By fault, the description of the error of configuring, as the node's process gets it, and what was printed.

    The faults of _TWO_ROWS followed by "/batch" are those with two images per inference.
    """
    code = f"""
messages, outcomes = Messages(), {{}}
logging.getLogger("multi_dnn_ros").setLevel(logging.DEBUG)
for case in {["", *FAULTS, *(f"{fault}/batch" for fault in _TWO_ROWS)]}:
    faulty_extension.FAULT = case.partition("/")[0]
    printed, sys.stderr, messages.found = sys.stderr, io.StringIO(), []
    try:
        configured(**({{"max_batch": 2}} if "/" in case else {{}}))
        text, expected = "", True
    except BaseException as error:
        text, expected = describe_failure(error)
    printed, sys.stderr = sys.stderr.getvalue(), printed
    outcomes[case] = {{"text": text, "expected": expected, "printed": printed, "messages": messages.found}}
print(json.dumps(outcomes))
"""
    return run(code)


def test_the_extensions_work_without_a_fault(outcomes: Any) -> None:
    assert (outcomes[""]["text"], outcomes[""]["expected"]) == ("", True)


@pytest.mark.parametrize("fault", [*FAULTS, *(f"{fault}/batch" for fault in _TWO_ROWS)])
def test_an_error_of_configuring_is_one_line_with_dnn_and_extension(outcomes: Any, fault: str) -> None:
    outcome = outcomes[fault]
    assert outcome["text"].startswith(FAULTS[fault.partition("/")[0]])
    assert len(outcome["text"].splitlines()) == 1
    assert outcome["expected"]
    assert outcome["printed"] == ""


@pytest.mark.parametrize("fault", ["load", "check", "prepare", "finish"])
def test_the_traceback_is_logged_at_level_debug(outcomes: Any, fault: str) -> None:
    tracebacks = [(level, text) for level, text, has_traceback in outcomes[fault]["messages"] if has_traceback]
    assert tracebacks == [("DEBUG", FAULTS[fault])]


def test_what_torch_export_prints_is_logged_at_level_debug(outcomes: Any) -> None:
    logged = [(level, text) for level, text, _ in outcomes["untraceable"]["messages"] if "def forward" in text]
    assert [level for level, _ in logged] == ["DEBUG"]
    assert logged[0][1].startswith("torch.export cannot trace Network; it printed: ")


@pytest.mark.parametrize("fault", ["decode_number", "decode_none", "decode_exit"])
def test_wrong_results_while_serving_disable_the_dnn(run: Callable[[str], Any], fault: str) -> None:
    found = run(f"""
import numpy as np
from multi_dnn_ros.engine import Engine, Frame
pipeline, drops, failures = configured(), [], []
faulty_extension.FAULT = {fault!r}
engine = Engine(pipeline.tasks, on_result=print, on_drop=drops.append, on_failure=failures.append, max_failures=2)
engine.start()
(camera,) = pipeline.tasks[0].cameras
for number in range(3):
    assert engine.submit(Frame(camera, number, np.zeros((48, 64, 3), np.uint8)), 60)
    assert engine.wait_idle(60)
print(json.dumps([[drop.reason.value for drop in drops], failures[-1].message, failures[-1].disabled,
                  engine.failed_threads()]))
engine.stop(10)
""")
    assert found[0] == ["bad_output", "bad_output", "disabled"]
    assert found[1].endswith(FAULTS[fault].removeprefix("DNN 'x' fails on a black image: "))
    assert found[2:] == [True, []]


def test_a_decoder_that_cannot_recognize_outputs_is_left_out_with_one_warning(run: Callable[[str], Any]) -> None:
    found = run("""
from multi_dnn_ros.vision.decoders.layout import Layout
from multi_dnn_ros.vision.decoders.recognition import recognize
layout, messages, chosen = Layout(((1, 25200, 85),), (640, 640), 80), Messages(), {}
for fault in ("", "recognize", "recognize", "recognize_exit", "recognize_none", "recognize_text"):
    faulty_extension.FAULT = fault
    found = recognize(layout)
    chosen[fault] = [found.chosen, "faulty_decoder" in [name for name, _ in found.differences]]
print(json.dumps([chosen, [text for level, text, _ in messages.found if level == "WARNING"]]))
""")
    chosen, warnings = found
    assert chosen.pop("") == ["yolov5", True]
    assert list(chosen.values()) == [["yolov5", False]] * 4
    ends = "; it is not used for models that do not name it"
    assert warnings == [
        f"{DECODER}: recognize raised RuntimeError: broken{ends}",
        f"{DECODER}: recognize raised SystemExit: 2{ends}",
        f"{DECODER}: recognize returned None; expected a Match or a Difference{ends}",
        f"{DECODER}: recognize returned an object of type str; expected a Match or a Difference{ends}",
    ]


def test_unusable_specifications_leave_the_others_usable(run: Callable[[str], Any]) -> None:
    found = run("""
from multi_dnn_ros.backends.registry import BACKENDS
from multi_dnn_ros.vision.decoders.registry import DECODERS
lines = []
DECODERS.report_broken(lines.append)
BACKENDS.report_broken(lines.append)
usable = [spec.name for registry in (DECODERS, BACKENDS) for spec in registry.usable()]
print(json.dumps([lines, usable]))
""")
    lines, usable = found
    begin = f"of {PACKAGE} cannot be used: faulty_extension:"
    assert len(lines) == 5
    exits, mean, preprocess, names, precisions = lines
    assert exits == f"decoder 'exiting' {begin}EXIT: SystemExit: 3"
    assert mean.startswith(f"decoder 'wrong_mean' {begin}WRONG_MEAN: TypeError: preprocess is {{'mean': 3}}: ")
    assert preprocess.startswith(f"decoder 'wrong_preprocess' {begin}WRONG_PREPROCESS: TypeError: preprocess is [1]: ")
    assert names.startswith(f"backend 'wrong_names' {begin}WRONG_NAMES: TypeError: precisions is {{'cpu': 'auto'}}; ")
    assert precisions.startswith(f"backend 'wrong_precisions' {begin}WRONG_PRECISIONS: TypeError: precisions is [1]; ")
    assert {"yolo", "faulty_decoder", "eager", "faulty_backend"} <= set(usable)


def test_the_functions_of_a_specification_that_fail_are_named(run: Callable[[str], Any]) -> None:
    found = run("""
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.sources import weights_file
from multi_dnn_ros.profiling.devices import find_devices
found = {}
for fault in ("", "version", "version_number"):
    faulty_extension.FAULT = fault
    backends = {support.name: support for support in find_devices()[0].backends}
    found[fault] = [backends["eager"].problem, backends["faulty_backend"].version, backends["faulty_backend"].problem]
faulty_extension.FAULT = "file"
try:
    weights_file("faulty_zoo:net")
except ModelError as error:
    found["file"] = str(error)
print(json.dumps(found))
""")
    assert found == {
        "": ["", "faulty 0.4", ""],
        "version": ["", "", f"{BACKEND}: version raised RuntimeError: broken"],
        "version_number": ["", "", f"{BACKEND}: version returned an object of type int; expected a str"],
        "file": f"{SOURCE}: file raised RuntimeError: broken",
    }
