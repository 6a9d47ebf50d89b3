"""Runs the command ``multi-dnn`` as a user does: the installed script, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from harness import LIMIT_S, installed, write_parameter_file
from networks import LABELS, write_onnx

#: By name: what a command printed, and its exit code.
Done = dict[str, subprocess.CompletedProcess[str]]


def multi_dnn(
    *arguments: str | Path,
    environment: Mapping[str, str | None] | None = None,
    prefix: Sequence[str | Path] = (),
    folder: Path | None = None,
    timeout_s: float = 240.0,
) -> subprocess.CompletedProcess[str]:
    """Run ``multi-dnn ARGUMENTS`` to its end. Nothing is asserted; stdout and stderr are text.

    environment: variables that differ from those of the tests; None removes one. prefix: a command that runs the
    script, such as ``unshare``. folder: current folder.
    """
    variables = {**os.environ, **(environment or {})}
    return subprocess.run(
        [*map(str, prefix), *installed("multi-dnn"), *map(str, arguments)],
        env={name: value for name, value in variables.items() if value is not None},
        cwd=folder, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False,
    )  # fmt: skip


def succeed(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """As :func:`multi_dnn`; its exit code is 0."""
    done = multi_dnn(*arguments, **options)
    assert done.returncode == 0, done.stderr
    return done


def run_commands(commands: Mapping[str, Sequence[str | Path]], folder: Path | None = None) -> Done:
    """Run `multi-dnn ARGUMENTS` for each entry, a few at once: most of it is starting. folder: current folder."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        jobs = {name: pool.submit(partial(multi_dnn, *words, folder=folder)) for name, words in commands.items()}
        return {name: job.result() for name, job in jobs.items()}


@contextmanager
def started(log: Path, *arguments: str | Path, prefix: Sequence[str] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """Start `multi-dnn ARGUMENTS` in a session of its own, as in a terminal. What it prints is appended to `log`, whose
    folder is its current folder; what still runs of it at the end is killed.
    """
    command = [*prefix, *installed("multi-dnn"), *map(str, arguments)]
    with log.open("ab") as file:
        process = subprocess.Popen(command, cwd=log.parent, stdout=file, stderr=file, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until(condition: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    """Wait for a condition while a process runs."""
    end = time.monotonic() + 2 * LIMIT_S
    while not condition():
        assert process.poll() is None, f"it has ended with exit code {process.returncode}"
        assert time.monotonic() < end, "the condition is not true in time"
        time.sleep(0.02)


def assert_one_error(done: subprocess.CompletedProcess[str], *words: str, code: int = 1) -> None:
    """The command has failed with one line on stderr that holds the words, without a traceback."""
    lines = done.stderr.strip().splitlines()
    assert done.returncode == code, f"exit code {done.returncode}: {done.stderr[-2000:]}"
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0], lines[0]


def write_parameters(file: Path, dnns: Mapping[str, Any], **others: Any) -> Path:
    """A ROS 2 parameter file with these DNNs; dnns: by name, the parameters `dnn.<dnn>`."""
    return write_parameter_file(file, {"dnns": list(dnns), "dnn": dict(dnns), **others})


def detector(model: Path, **parameters: Any) -> dict[str, Any]:
    """Parameters `dnn.<dnn>` of a network that finds the blocks."""
    return {"role": "object", "model": str(model), "labels": LABELS, **parameters}


def blocks_file(folder: Path) -> Path:
    """A parameter file with one DNN, `object`, that finds the blocks; the network, yolo.onnx, is beside it."""
    return write_parameters(folder / "robot.yaml", {"object": detector(write_onnx("yolo", folder / "yolo.onnx"))})


def write_pictures(folder: Path, pictures: Iterable[np.ndarray], suffix: str = ".png", first: int = 0) -> Path:
    """Write RGB images as 0.png, 1.png, ..., or from another number on."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, picture in enumerate(pictures, first):
        cv2.imwrite(str(folder / f"{number}{suffix}"), picture[..., ::-1])
    return folder


def write_classes(folder: Path) -> str:
    """Write reddish and bluish images of 32x32 pixels, 120 and 20 of each; the value of --data."""
    noise = np.random.default_rng(0).integers(0, 80, (280, 32, 32, 3), dtype=np.uint8)
    noise[:140, ..., 0] += 150
    noise[140:, ..., 2] += 150
    for first, name in ((0, "reddish"), (140, "bluish")):
        write_pictures(folder / "train" / name, noise[first : first + 120])
        write_pictures(folder / "val" / name, noise[first + 120 : first + 140])
    return f"classes:{folder}"


def report_of(file: Path) -> Any:
    """The JSON file, or the only one of a folder."""
    return json.loads((next(file.glob("*.json")) if file.is_dir() else file).read_text())


def values_of(data: Any, key: str) -> list[Any]:
    """The values of a key anywhere in JSON data."""
    if isinstance(data, dict):
        own = [data[key]] if key in data else []
        return own + [value for part in data.values() for value in values_of(part, key)]
    return [value for part in data for value in values_of(part, key)] if isinstance(data, list) else []
