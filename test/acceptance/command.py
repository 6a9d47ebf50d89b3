"""Runs the command ``multi-dnn`` as a user does: the installed script, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from harness import installed
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


def node_output(ends_with: str, prefix: Sequence[str | Path] = (), timeout_s: float = 120.0) -> list[str]:
    """Start ``multi-dnn run``, and interrupt it when it has printed a line with the text `ends_with`; its lines on
    stderr. Ended after timeout_s in any case.
    """
    command = [*map(str, prefix), *installed("multi-dnn"), "run"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as node:
        watchdog = threading.Timer(timeout_s, node.kill)
        watchdog.start()
        lines = []
        assert node.stderr is not None
        for line in node.stderr:
            lines.append(line.rstrip())
            if ends_with in line:
                node.send_signal(signal.SIGINT)
        watchdog.cancel()
    return lines


def assert_one_error(done: subprocess.CompletedProcess[str], *words: str, code: int = 1) -> None:
    """The command has failed with one line on stderr that holds the words, without a traceback."""
    lines = done.stderr.strip().splitlines()
    assert done.returncode == code, f"exit code {done.returncode}: {done.stderr[-2000:]}"
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0], lines[0]


def write_parameters(file: Path, dnns: Mapping[str, Any], **others: Any) -> Path:
    """A ROS 2 parameter file with these DNNs; dnns: by name, the parameters `dnn.<dnn>`."""
    parameters = {"dnns": list(dnns), "dnn": dict(dnns), **others}
    copies = json.loads(json.dumps(parameters))  # ROS 2 refuses the aliases that YAML has for the same object
    file.write_text(yaml.safe_dump({"/**": {"ros__parameters": copies}}))
    return file


def detector(model: Path, **parameters: Any) -> dict[str, Any]:
    """Parameters `dnn.<dnn>` of a network that finds the blocks."""
    return {"role": "object", "model": str(model), "labels": LABELS, **parameters}


def blocks_file(folder: Path) -> Path:
    """A parameter file with one DNN, `object`, that finds the blocks; the network, yolo.onnx, is beside it."""
    return write_parameters(folder / "robot.yaml", {"object": detector(write_onnx("yolo", folder / "yolo.onnx"))})


def values_of(data: Any, key: str) -> list[Any]:
    """The values of a key anywhere in JSON data."""
    if isinstance(data, dict):
        own = [data[key]] if key in data else []
        return own + [value for part in data.values() for value in values_of(part, key)]
    return [value for part in data for value in values_of(part, key)] if isinstance(data, list) else []
