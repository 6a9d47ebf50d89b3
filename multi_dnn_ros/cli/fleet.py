"""``multi-dnn fleet``: several training runs share the GPUs of a machine fairly."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.arguments import positive
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.options import add_output, add_plot, add_seed, check_files, check_writable, write_figures
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.planning.batch_units import Unit, UnitError, parse_units

if TYPE_CHECKING:
    from multi_dnn_ros.fleet.comparison import TrainedFleet
    from multi_dnn_ros.fleet.jobs_file import FleetJob, JobsFile
    from multi_dnn_ros.fleet.launcher import Launcher
    from multi_dnn_ros.fleet.sharing import Policy

_DETAILS = """\
Every job of the file is a training run with one process per unit. Its mini-batch is divided over the units in tenths.
Once per period, tenths of the most slowed-down jobs may move to other units, so that all jobs are slowed down by a
similar factor. Each image counts the same in the gradients, whichever unit computes it. Jobs that share
units train in turns, the one with the earliest deadline first; with `turns: false` in the file, at the same time.

The file is read again when it changes: new jobs are added, jobs that are no longer in it are stopped with a
checkpoint. After an interruption, repeating the command continues from the checkpoints. With --cluster the
units are on the hosts of a Ray cluster, and DIR and the data must be on a file system that all hosts share.

With --compare, the jobs are trained three times: with fair shares, and with two baselines, equal shares on all units
and one unit per job. With --measure, training steps of the file's jobs are timed on the first unit; with
--simulate, the same comparison is simulated with such times.
"""
_EXAMPLES = """\
multi-dnn fleet jobs.yaml --folder runs
multi-dnn fleet jobs.yaml --folder runs --units cuda:0,cuda:1 --plot slow_downs.png --output decisions.json
multi-dnn fleet jobs.yaml --folder runs --units cpu:1,cpu:1
multi-dnn fleet jobs.yaml --folder /shared/runs --cluster 10.0.0.2:6379 --units cuda:0,cuda:1,cuda:2,cuda:3
multi-dnn fleet jobs.yaml --folder compared --units cuda:0,cuda:1 --compare --output compared.json --plot compared.png
multi-dnn fleet jobs.yaml --units cuda:0,cuda:1 --measure times.json
multi-dnn fleet jobs.yaml --simulate times.json --gpus 4 8 64 --copies 200 --output simulated.json
"""


#: Keys of a job on which the time of a step depends: equal for all jobs of a model.
_TIMED = ("global_batch", "size", "data", "scenes", "num_classes", "optimizer", "precision", "batch_norm")


def add_parser(subparsers: Commands[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = add_command(
        subparsers, "fleet", "train several DNNs at once, with fair shares of the GPUs",
        details=_DETAILS, examples=_EXAMPLES, run=run,
    )  # fmt: skip
    add = parser.add_argument
    add("jobs", type=Path, metavar="YAML", help="file of training jobs, see docs/fleet.md")
    add("--units", type=_units, metavar="UNIT,...",
        help="units, such as cuda:0,cuda:1 or cpu:1,cpu:1 (two CPU processes with one thread each) (default: all GPUs; "
        "without a GPU, two CPU units with half of the cores each); with --cluster, cuda:0 to cuda:3 are any four GPUs "
        "of the cluster (default: all of its GPUs; without GPUs, one unit per host with all of its cores)")  # fmt: skip
    add("--cluster", nargs="?", const="local", metavar="ADDRESS",
        help="run on the Ray cluster at ADDRESS: HOST:PORT; auto, the cluster of this machine; or local, a cluster "
        "that ends with the command (default of ADDRESS: local)")  # fmt: skip
    add("--folder", type=Path, metavar="DIR",
        help="folder for checkpoints, logs and trained networks (default: YAML with the suffix .fleet)")  # fmt: skip
    add_output(parser, "write all decisions, or the simulated figures, to this JSON file")
    add_plot(parser, "slow-downs over time")
    group = parser.add_argument_group("compare, measure and simulate")
    mode = group.add_argument
    mode("--compare", action="store_true",
         help="measure each job alone, train all jobs under each policy, and compare slow-downs, use of the units and "
         "total time; policies that are complete in --folder are not trained again")  # fmt: skip
    mode("--measure", type=Path, metavar="JSON", help="time training steps, write them to this file and stop")
    mode("--simulate", type=Path, metavar="JSON",
         help="simulate with the times in this file of --measure; nothing is trained")  # fmt: skip
    mode("--gpus", type=positive, nargs="+", default=[4], metavar="N",
         help="numbers of units to simulate (default: 4)")  # fmt: skip
    mode("--copies", type=int, default=0, metavar="N",
         help="simulate N jobs, made from those of the file, with random lengths and arrivals (default: 0, the jobs of "
         "the file)")  # fmt: skip
    add_seed(group, "lengths and arrivals of copies")


def run(args: argparse.Namespace) -> int:
    """Run, measure or simulate the fleet."""
    from multi_dnn_ros.fleet.jobs_file import read_jobs_file

    if sum((args.compare, args.measure is not None, args.simulate is not None)) > 1:
        raise UsageError("--compare, --measure and --simulate cannot be combined")
    if args.copies < 0 or (args.copies and args.simulate is None):
        raise UsageError(f"--copies {args.copies}: must be at least 0, and is for --simulate")
    check_files(args, "output", "plot")
    file = read_jobs_file(args.jobs)
    if args.cluster is not None and (args.compare or args.measure is not None or args.simulate is not None):
        raise UsageError("--cluster is for training; --compare, --measure and --simulate use this machine")
    if args.simulate is not None:
        return _simulate(args, file)
    if args.cluster is not None:
        return _run_on_cluster(args)
    units = args.units or default_units()
    if args.measure is not None:
        check_writable("--measure", args.measure)
        _check_devices(units)
        return _measure(args, file, units)
    if args.compare:
        return _compare(args, file, units)
    return _run_on_this_machine(args, units)


def _units(text: str) -> tuple[Unit, ...]:
    """The type of --units. A CPU unit may be repeated: each is a unit of its own, with processes of its own.

    Raises argparse.ArgumentTypeError for a GPU that is repeated, for CPUs with GPUs, and for units that cannot train.
    """
    try:
        units = tuple(parse_units(part)[0] for part in text.split(","))
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    gpus = [unit.name for unit in units if unit.device.startswith("cuda")]
    if len(set(gpus)) < len(gpus):
        raise argparse.ArgumentTypeError(f"units '{text}' name a GPU twice")
    if len({unit.device.partition(":")[0] for unit in units}) > 1:
        raise argparse.ArgumentTypeError(f"units '{text}' mix CPUs and GPUs; allowed: only CPUs, or only GPUs")
    return units


def default_units() -> tuple[Unit, ...]:
    """All GPUs; without one, two CPU units with half of the cores, at least one, as threads of each."""
    import torch

    from multi_dnn_ros.common.reporting import cpu_count

    if torch.cuda.is_available():
        return parse_units(",".join(f"cuda:{k}" for k in range(torch.cuda.device_count())))
    return parse_units(f"cpu:{max(1, cpu_count() // 2)}") * 2


def _run_on_this_machine(args: argparse.Namespace, units: tuple[Unit, ...]) -> int:
    from multi_dnn_ros.fleet.local_launcher import LocalLauncher

    _check_devices(units)
    return _run(args, LocalLauncher(units))


def _check_devices(units: tuple[Unit, ...]) -> None:
    """Raise ValueError for a unit whose device this machine does not have."""
    from multi_dnn_ros.training.distributed import existing_device

    for unit in units:
        existing_device(unit.device, "--units")


def _run_on_cluster(args: argparse.Namespace) -> int:
    from multi_dnn_ros.common.ray_cluster import alive_hosts, connected
    from multi_dnn_ros.fleet.cluster_units import units_of
    from multi_dnn_ros.fleet.ray_launcher import ray_launcher

    with connected(args.cluster) as ray:
        units = args.units or units_of(alive_hosts(ray))
        with ray_launcher(ray, units, _folder(args)) as launcher:
            return _run(args, launcher)


def _folder(args: argparse.Namespace) -> Path:
    folder: Path = args.folder or args.jobs.with_suffix(".fleet")
    return folder.absolute()


def _run(args: argparse.Namespace, launcher: Launcher) -> int:
    from multi_dnn_ros.common.processes import Interrupts
    from multi_dnn_ros.fleet.decisions import slow_down_points
    from multi_dnn_ros.fleet.display import Display, fleet_table
    from multi_dnn_ros.fleet.plot import write_slow_down_plot
    from multi_dnn_ros.fleet.supervisor import Supervisor

    with Interrupts():
        supervisor = Supervisor(args.jobs, launcher, _folder(args), watch=Display())
        try:
            complete = supervisor.run()
        finally:
            # In a finally clause, so that the figures are written even if the standard output is closed.
            try:
                print(fleet_table(supervisor))
            finally:
                write_figures(args.output, supervisor.figures())
            if args.plot is not None:
                title = f"{len(launcher.units)} units"
                decisions = supervisor.decisions
                write_slow_down_plot(args.plot, title, {decisions.policy: slow_down_points(decisions.entries)})
                print(f"written to {args.plot}")
    return 0 if complete else 1


def _compare(args: argparse.Namespace, file: JobsFile, units: tuple[Unit, ...]) -> int:
    from multi_dnn_ros.common.processes import Interrupts
    from multi_dnn_ros.common.reporting import table
    from multi_dnn_ros.fleet.comparison import PolicyComparison, comparison_table
    from multi_dnn_ros.fleet.display import Display
    from multi_dnn_ros.fleet.plot import write_slow_down_plot
    from multi_dnn_ros.fleet.policy_result import compare

    _check_devices(units)

    def write(trained: Mapping[Policy, TrainedFleet], **against: Any) -> None:
        write_figures(
            args.output,
            {
                "units": [unit.name for unit in units],
                "jobs_file": file.model_dump(mode="json"),
                "policies": {policy: each.figures() for policy, each in trained.items()},
                **against,
            },
        )

    with Interrupts():
        display = Display()
        trained = PolicyComparison(file, units, _folder(args), watch=display).run(display.set_title, write)
    against = compare({policy: each.result for policy, each in trained.items()})
    print(table(*comparison_table(trained)))
    use = "unknown" if against["use_gain"] is None else f"{against['use_gain']:+.0%}"
    print(
        f"fair: largest slow-down {against['largest_slow_down_below_worse']:.0%} below the worse and "
        f"{against['largest_slow_down_below_better']:.0%} below the better baseline; use {use}, total time "
        f"{against['total_time_ratio']:.2f} times that of the better baseline"
    )
    write(trained, fair_against_baselines=against)
    if args.plot is not None:
        panels = {str(policy): each.points for policy, each in trained.items()}
        write_slow_down_plot(args.plot, f"{len(units)} units", panels)
        print(f"written to {args.plot}")
    return 0


def _measure(args: argparse.Namespace, file: JobsFile, units: tuple[Unit, ...]) -> int:
    from multi_dnn_ros.common.reporting import provenance, table, write_text
    from multi_dnn_ros.fleet.measure_steps import StepMeasurement, measure_interconnect
    from multi_dnn_ros.fleet.step_times import StepTimes

    if len(units) < 2:
        raise UsageError("--measure needs two units, between which the exchange of gradients is timed")
    jobs: dict[str, FleetJob] = {}
    for job in file.jobs:
        first = jobs.setdefault(job.model, job)
        different = [key for key in _TIMED if getattr(first, key) != getattr(job, key)]
        if different:
            raise UsageError(
                f"--measure: jobs {first.name} and {job.name} train {job.model} with different {', '.join(different)}"
            )
    interconnect, process_s = measure_interconnect(units)
    measurement = StepMeasurement(units[0], process_s)
    networks = []
    for job in jobs.values():
        print(f"{job.model}, {job.global_batch} images", file=sys.stderr)
        networks.append(measurement.measure(job))
    times = StepTimes(
        unit=units[0].name, interconnect=interconnect,
        interconnect_source=f"measured between {units[0].name} and {units[1].name}", networks=tuple(networks),
        provenance=provenance(),
    )  # fmt: skip
    write_text(args.measure, times.model_dump_json(indent=2) + "\n")
    rows = [
        [network.model, str(step.batch), f"{step.step_ms:.1f}", f"{step.busy_ms:.1f}", f"{network.start_s:.1f}"]
        for network in networks
        for step in network.steps
    ]
    print(table(["model", "images", "step ms", "busy ms", "start s"], rows))
    link = times.interconnect
    print(f"all-reduce: {link.latency_us:.0f} us, {link.bandwidth_gb_s:.2f} GB/s; written to {args.measure}")
    return 0


def _simulate(args: argparse.Namespace, file: JobsFile) -> int:
    from multi_dnn_ros.common.reporting import table
    from multi_dnn_ros.fleet.plot import write_slow_down_plot
    from multi_dnn_ros.fleet.scenario import (
        Scenario,
        run_scenario,
        scenario_figures,
        scenario_table,
        slow_down_points,
    )
    from multi_dnn_ros.fleet.step_times import read_step_times

    times = read_step_times(args.simulate)
    done = []
    for units in args.gpus:
        scenario = Scenario(units, args.copies, args.seed)
        done.append((scenario, run_scenario(file, times, scenario)))
    print("simulated:")
    print(table(*scenario_table(done)))
    write_figures(
        args.output,
        {
            "simulated": True,
            "step_times": times.model_dump(mode="json"),
            "jobs_file": file.model_dump(mode="json"),
            "scenarios": [scenario_figures(scenario, results) for scenario, results in done],
        },
    )
    if args.plot is not None:
        scenario, results = done[0]
        panels = {policy: slow_down_points(result) for policy, result in results.items()}
        write_slow_down_plot(args.plot, f"Simulated: {scenario.units} units", panels)
        print(f"written to {args.plot}")
    return 0
