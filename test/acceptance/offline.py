"""What the tests of offline commands share."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from command import multi_dnn

#: By name: what a command printed, and its exit code.
Done = dict[str, subprocess.CompletedProcess[str]]


def run_commands(commands: Mapping[str, Sequence[str | Path]], folder: Path | None = None) -> Done:
    """Run `multi-dnn ARGUMENTS` for each entry, a few at once: most of it is starting. folder: current folder."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        jobs = {name: pool.submit(partial(multi_dnn, *words, folder=folder)) for name, words in commands.items()}
        return {name: job.result() for name, job in jobs.items()}


def write_parameters(file: Path, dnns: Mapping[str, Any], **others: Any) -> Path:
    """A ROS 2 parameter file with these DNNs; dnns: by name, the parameters `dnn.<dnn>`."""
    parameters = {"dnns": list(dnns), "dnn": dict(dnns), **others}
    copies = json.loads(json.dumps(parameters))  # ROS 2 refuses the aliases that YAML has for the same object
    file.write_text(yaml.safe_dump({"/**": {"ros__parameters": copies}}))
    return file


def values_of(data: Any, key: str) -> list[Any]:
    """The values of a key anywhere in JSON data."""
    if isinstance(data, dict):
        own = [data[key]] if key in data else []
        return own + [value for part in data.values() for value in values_of(part, key)]
    return [value for part in data for value in values_of(part, key)] if isinstance(data, list) else []
