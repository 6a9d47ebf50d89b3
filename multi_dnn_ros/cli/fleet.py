"""Train several DNNs at once, with fair shares of the GPUs.

Every job of the file is a training run. Each has whole units (GPUs): several, if there are fewer jobs than units;
otherwise jobs share a unit and train there in turns. Who trains where is decided again once per period and
when a job begins or ends, so that all jobs are slowed down by a similar factor. Ray starts the processes
(`pip install "multi_dnn_ros[ray]"`), on this machine or on a cluster.

A job whose process is lost continues from its last checkpoint; the others go on. After an interruption, repeating the
command continues from the checkpoints. The exit code is 1 if a job has failed.

With --compare, the jobs are trained once under each policy: `fair`, and two baselines, in which all jobs train at the
same time: `even`, each on all units, and `one_unit`, each on one.

examples:
  multi-dnn fleet jobs.yaml --folder runs --units 2 --output decisions.json
  multi-dnn fleet jobs.yaml --folder /shared/runs --cluster 10.0.0.2:6379 --units 4
  multi-dnn fleet jobs.yaml --folder compared --compare --output compared.json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from multi_dnn_ros.cli import options
from multi_dnn_ros.cli.figures import rows_table, write_figures
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.common.extras import optional, require

if TYPE_CHECKING:
    from multi_dnn_ros.fleet.controller import Fleet
    from multi_dnn_ros.fleet.policy import Policy

_POLICIES = ("fair", "even", "one_unit")
#: Without the time left, because a job waits for its turns.
_BAR = "{desc}: {percentage:3.0f}%|{bar:30}| {n_fmt}/{total_fmt}{postfix}"
_REDRAW_S = 1.0


def add_parser(commands: options.Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = options.add_command(commands, "fleet", __doc__, run, libraries=("ray",))
    add = parser.add_argument
    add("jobs", type=Path, metavar="YAML", help="file of training jobs, see docs/training.md")
    add("--units", type=options.positive, metavar="N",
        help="number of units (default: all GPUs; without a GPU, or with --threads, two)")  # fmt: skip
    add("--threads", type=options.positive, metavar="N",
        help="a unit is N threads of a CPU (default: it is a GPU; without GPUs, all cores are divided)")  # fmt: skip
    add("--policy", dest="fleet_policy", choices=_POLICIES,
        help="fair: slow-downs become equal; even, one_unit: see above (default: fair)")  # fmt: skip
    add("--compare", action="store_true",
        help="train all jobs under each policy that is not complete in --folder, and compare the times")  # fmt: skip
    add("--cluster", metavar="ADDRESS", default="local",
        help="run on the Ray cluster at HOST:PORT; auto: that of this machine (default: none)")  # fmt: skip
    add("--folder", type=Path, metavar="DIR",
        help="folder for checkpoints and networks, shared by all hosts (default: YAML, suffix .fleet)")  # fmt: skip
    options.add_options(parser, "--output", help="write jobs and decisions to this JSON file, and a plot beside it")


def run(args: argparse.Namespace) -> int:
    """Train the jobs; report also if this is interrupted."""
    from multi_dnn_ros.fleet.jobs_file import read_jobs_file

    if args.compare and args.fleet_policy is not None:
        raise UsageError("--compare trains under all policies; leave out --policy")
    if args.output is not None:
        require("--output", "matplotlib")
        options.picture_beside(args.output)
    file, folder = read_jobs_file(args.jobs), (args.folder or args.jobs.with_suffix(".fleet")).absolute()

    from multi_dnn_ros.fleet.controller import Fleet, train_under_each  # imports PyTorch, which takes seconds
    from multi_dnn_ros.fleet.units import reserved_units

    display = _Display()
    fleets: dict[Policy, Fleet] = {}
    try:
        # Ray writes messages about lost processes to the standard output, which is for the results.
        with contextlib.redirect_stdout(sys.stderr), reserved_units(args.cluster, args.units, args.threads) as pool:
            if args.compare:
                asyncio.run(train_under_each(file, pool, folder, display, fleets))
                return 0
            policy: Policy = args.fleet_policy or "fair"
            fleet = fleets[policy] = Fleet(file, policy, pool, folder, display)
            return 0 if asyncio.run(fleet.run()) else 1
    finally:
        display.close()
        if fleets:
            _report(args, fleets)


class _Display:
    """Shows fleets, one after another: events as lines and, on a terminal, a bar for each job."""

    def __init__(self) -> None:
        self._bars: dict[str, tqdm[Any]] = {}
        self._fleet: Fleet | None = None
        self._drawn_at = 0.0

    def __call__(self, fleet: Fleet, line: str) -> None:
        if fleet is not self._fleet:
            self.close()
            self._fleet = fleet
            self._bars = {name: tqdm(desc=name, disable=None, bar_format=_BAR) for name in fleet.jobs}
            tqdm.write(f"policy {fleet.policy}, {fleet.pool.count} units ({fleet.pool.kind})", file=sys.stderr)
        if line:
            tqdm.write(f"{fleet.seconds:8.1f} s  {line}", file=sys.stderr)
        elif time.monotonic() - self._drawn_at >= _REDRAW_S:
            self._drawn_at = time.monotonic()
            for name, job in fleet.jobs.items():
                bar = self._bars[name]
                bar.total, bar.n = job.state.total or None, job.state.done
                shown = {"units": job.units, "slow-down": job.state.slow_down, "loss": job.state.losses[-1:]}
                bar.set_postfix({"is": job.state.status, **{what: value for what, value in shown.items() if value}})

    def close(self) -> None:
        for bar in self._bars.values():
            bar.close()
        self._bars.clear()


def _report(args: argparse.Namespace, fleets: Mapping[Policy, Fleet]) -> None:
    """The tables, and the files of --output."""
    rows, compared, policies = [], [], {}
    for policy, fleet in fleets.items():
        states = {name: job.state for name, job in fleet.jobs.items()}
        known = [state.slow_down for state in states.values() if state.slow_down is not None] or [0.0]
        rows += [
            {"policy": policy, "job": name, "status": state.status, "steps": f"{state.done}/{state.total}",
             "slow-down": state.slow_down, "scores": state.scores or state.text}
            for name, state in states.items()
        ]  # fmt: skip
        figures = {"largest_slow_down": max(known), "median_slow_down": statistics.median(known)}
        compared.append({"policy": policy, **figures, "seconds": fleet.seconds})
        policies[policy] = {
            "units": fleet.pool.count, "unit": fleet.pool.kind, "seconds": fleet.seconds, **figures,
            "jobs": {name: state.model_dump(exclude={"settings"}) for name, state in states.items()},
            "decisions": fleet.decisions,
        }  # fmt: skip
    print(rows_table(rows))
    if args.compare:
        print(rows_table(compared))
    if args.output is not None:
        write_figures(args.output, {"policies": policies})
        _plot(args.output.with_suffix(".png"), fleets)


def _plot(path: Path, fleets: Mapping[Policy, Fleet]) -> None:
    """A panel for each policy, with a line for each job."""
    import numpy as np

    with optional("a picture"):
        from matplotlib.figure import Figure

    from multi_dnn_ros.profiling.layer_profile import write_figure

    figure = Figure(figsize=(4.4 * len(fleets) + 1.4, 4.2), layout="constrained")
    row = figure.subplots(1, len(fleets), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (policy, fleet) in zip(row, fleets.items(), strict=True):
        for name in fleet.jobs:
            points = [(each["seconds"] / 60, each["slow_downs"][name]) for each in fleet.decisions]
            axes.plot(*np.array(points, float).reshape(-1, 2).T, drawstyle="steps-post", marker=".", label=name)
        axes.set(title=policy, xlabel="minutes", ylabel="predicted slow-down")
    row[-1].legend(fontsize="small")
    write_figure(path, figure)
