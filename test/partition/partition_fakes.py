"""Units whose times, limits and failures are given by their names, and tables of such times."""

from __future__ import annotations

import os
import re
import signal
import sys
import time

import numpy as np

from multi_dnn_ros.partition.executor import OutputForm, RunTimes
from multi_dnn_ros.planning.batch_table import BatchTable, Row, Spread, sizes_to_measure
from multi_dnn_ros.planning.batch_units import Unit, UnitError, UnitKind

SHAPE = (3, 4, 4)
NAN = float("nan")
#: What an executor may return wrongly: attribute or method, and the value.
BAD = (
    ("shape", (1, 3, 4, 4)), ("shape", None), ("device", ""), ("parameters", -1), ("tolerance", NAN),
    ("prepare", None), ("run", None), ("run", RunTimes(NAN, 1.0, 0.0)), ("run", RunTimes(-1.0, 5.0, 0.0)),
    ("run", RunTimes(0.0, float("inf"), 0.0)), ("run", RunTimes(0.0, "1 ms", 0.0)), ("transfer", None),
    ("image_dtype", "int8"),
)  # fmt: skip


def parse(text: str) -> Unit:
    """fake:<name>[/<option>=<number>]... Options: ms (per image), max_batch, prepare (seconds), die (killed in a run),
    exit, sys_exit, full, fail, hang, wrong, absent, infinite (values of the first output), unwritten (the second
    output), half (images in float16), bad (which of BAD it returns), only (number of images at which `ms` holds; 90 ms
    per image for any other number), no_executor (its class does not exist), fail_unless (number of images at which it
    does not fail).
    """
    match = re.fullmatch(r"fake:(\w+)((?:/\w+=[0-9.]+)*)", text)
    if match is None:
        raise UnitError(f"unit '{text}' is not of the form {KIND.form}")
    options = tuple((name, float(value)) for name, value in re.findall(r"/(\w+)=([0-9.]+)", match[2]))
    executor = "NoSuchExecutor" if dict(options).get("no_executor") else "FakeExecutor"
    return Unit(text, f"fake:{match[1]}", f"partition_fakes:{executor}", options=options)


KIND = UnitKind("fake", "fake:NAME[/OPTION=NUMBER]...", parse)


class FakeExecutor:
    """Returns the mean and the first pixel of each image after a given time."""

    def __init__(self, unit: Unit, network, precision: str) -> None:
        self._options = dict(unit.options)
        if self._options.get("absent"):
            raise UnitError(f"unit '{unit.name}': there is no such device")
        self.device = self.identity(unit, precision)
        self.shape, self.parameters, self.tolerance = SHAPE, 7, 1e-4
        self._ready = 0
        if self._options.get("half"):
            self.image_dtype = "float16"  # else the default
        if "bad" in self._options:
            name, value = BAD[int(self._options["bad"])]
            setattr(self, name, (lambda *arguments: value) if callable(getattr(self, name, None)) else value)

    @staticmethod
    def identity(unit: Unit, precision: str) -> str:
        return f"fake device; {precision}; version 1"

    def prepare(self, batch: int) -> tuple[OutputForm, ...]:
        if batch > self._options.get("max_batch", 1e9):
            raise MemoryError(f"{batch} images do not fit")
        time.sleep(self._options.get("prepare", 0.0))
        self._ready = batch
        return OutputForm((), "float32"), OutputForm((1, 1), "float32")

    def attach(self, inputs, outputs) -> None:
        pass

    def run(self, images, outputs) -> RunTimes:
        assert len(images) == self._ready
        if self._options.get("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._options.get("exit"):
            os._exit(3)
        if self._options.get("sys_exit"):
            sys.exit("the executor gives up")
        if self._options.get("full"):
            raise MemoryError("the device is full")
        if self._options.get("fail") or len(images) != self._options.get("fail_unless", len(images)):
            raise RuntimeError("a kernel failed")
        if self._options.get("hang"):
            time.sleep(600)
        began = time.perf_counter()
        ms = self._options.get("ms", 1.0)
        if len(images) != self._options.get("only", len(images)):
            ms = 90.0
        time.sleep(ms * len(images) / 1e3)
        outputs[0][:] = images.mean(axis=(1, 2, 3)) + self._options.get("wrong", 0.0)
        if not self._options.get("unwritten"):
            outputs[1][:] = images[:, :1, 0, :1]
        if self._options.get("infinite"):
            outputs[0][-1] = np.inf
        return RunTimes(0.0, 1e3 * (time.perf_counter() - began), 0.0)

    def transfer(self, images) -> RunTimes:
        if len(images) > self._options.get("max_batch", 1e9):
            raise MemoryError(f"{len(images)} images do not fit")
        return RunTimes(0.1 * len(images), 0.0, 0.05 * len(images))


def row(batch: int, ms: float) -> Row:
    spread, none = Spread.of([ms]), Spread.of([0.0])
    return Row(batch=batch, samples=1, input=none, compute=spread, output=none, total=spread)


def table(unit: str, ms_per_image: float, max_batch: int = 64, offset_ms: float = 0.0, **fields) -> BatchTable:
    """The table of a unit with an offset and a constant time per image."""
    defaults = {
        "model": "fake", "shape": SHAPE, "parameters": 7, "unit": unit, "precision": "auto",
        "device": "fake device; auto; version 1",
    }  # fmt: skip
    rows = tuple(row(batch, offset_ms + ms_per_image * batch) for batch in sizes_to_measure(max_batch))
    return BatchTable(**{**defaults, "rows": rows, **fields})


def expected(images: np.ndarray) -> list[np.ndarray]:
    """What FakeExecutor computes."""
    return [images.mean(axis=(1, 2, 3)), images[:, :1, 0, :1]]
