"""``multi-dnn benchmark``: what it costs, each figure beside its baseline from the same run."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.arguments import camera_name, natural, positive, positive_float, size
from multi_dnn_ros.cli.benchmark_chaos import add_chaos
from multi_dnn_ros.cli.benchmark_host import add_host
from multi_dnn_ros.cli.benchmark_paper import add_deadlines, add_important, add_paper, add_paper_report
from multi_dnn_ros.cli.benchmark_precisions import add_precisions
from multi_dnn_ros.cli.camera import ENCODINGS
from multi_dnn_ros.cli.log_folder import log_folder
from multi_dnn_ros.cli.network_arguments import check_writable
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.common.extras import require

if TYPE_CHECKING:
    from multi_dnn_ros.benchmark.rig import CameraPlan
    from multi_dnn_ros.settings.schema import NodeConfig

_DESCRIPTION = """\
Measure this machine. Every scenario runs its baselines in the same process run, in random order where it can, and
prints a table; --output writes the figures with machine, versions, sample counts and command as JSON.
"""
_EXAMPLES = """\
examples:
  multi-dnn benchmark cpu --output results/benchmark_cpu.json
  multi-dnn benchmark cpu --params-file my_robot.yaml --frames 50
  multi-dnn benchmark cpu --alone builtin:object --alone torchvision:resnet50
  multi-dnn benchmark precisions builtin:object torchvision:resnet50
  multi-dnn benchmark overhead
  multi-dnn benchmark load --minutes 10 --output results/load_cpu.json --plot results/load_cpu.png
  multi-dnn benchmark load --params-file my_robot.yaml --camera front=1280x720@30:rgb8 --camera rear=640x480@10:jpeg
  multi-dnn benchmark cycles --repeats 50 --device cuda
  multi-dnn benchmark isolation --params-file config/heavy_gpu.yaml --camera front=1280x720@30:rgb8
  multi-dnn benchmark paper --set vgg16_x8 --sms 16 --output results/vgg_16.json
  multi-dnn benchmark deadlines
  multi-dnn benchmark chaos --minutes 10 --output results/chaos_cpu.json
  multi-dnn benchmark host --output results/host_cpu.json

Each scenario explains its options: multi-dnn benchmark SCENARIO --help.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "benchmark",
        help="measure this machine against baselines from the same run",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    scenarios = parser.add_subparsers(title="scenarios", dest="scenario", metavar="SCENARIO", required=True)
    for name, (text, add_options, measure) in _SCENARIOS.items():
        end = "" if text.endswith(("?", ")")) else "."
        description = f"{text[0].upper()}{text[1:]}{end}"
        scenario = scenarios.add_parser(name, aliases=_ALIASES.get(name, ()), help=text, description=description)
        add_options(scenario)
        scenario.add_argument("--output", type=Path, help="write the figures to this JSON file")
        scenario.set_defaults(run=run, measure=measure)
    for add in (add_paper, add_paper_report, add_deadlines, add_important, add_chaos, add_host, add_precisions):
        add(scenarios)


def _add_dnns(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--params-file", type=Path, help="DNNs to measure, as for `multi-dnn run` (default: the package's)"
    )


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="in place of the parameter file's: auto, cpu, cuda, cuda:<number>")


def _add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=natural, default=0, help="of generated images and order (default: %(default)s)")


def _add_frames(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--frames", type=positive, default=20, help="in each repeat (default: %(default)s)")
    parser.add_argument("--repeats", type=positive, default=9, help="of each condition (default: %(default)s)")


def _add_cpu(parser: argparse.ArgumentParser) -> None:
    _add_dnns(parser)
    _add_seed(parser)
    _add_frames(parser)
    parser.add_argument(
        "--against", nargs="+", choices=("sequential", "processes", "plain"), metavar="BASELINE",
        default=("sequential", "processes", "plain"),
        help="sequential: all DNNs in one thread; processes: one process per DNN, as the engine runs it; plain: one "
        "process per DNN that calls ONNX Runtime directly (default: all three)",
    )  # fmt: skip
    parser.add_argument(
        "--alone", action="append", default=[], metavar="MODEL",
        help="also this network alone on one core, as parameter dnn.<dnn>.model, against ONNX Runtime run directly on "
        "the whole network; several times",
    )  # fmt: skip
    parser.add_argument("--jobs", type=positive, default=4, help="that --alone cuts into (default: %(default)s)")
    parser.add_argument("--rounds", type=positive, default=200, help="of --alone (default: %(default)s)")


def _add_load(parser: argparse.ArgumentParser) -> None:
    _add_dnns(parser)
    _add_device(parser)
    _add_seed(parser)
    parser.add_argument(
        "--minutes", type=_minutes, default=10.0, help="length of the run, at least 0.1 (default: %(default)g)"
    )
    _add_camera(parser, "a camera in place of the three")
    parser.add_argument("--plot", type=Path, help="write a picture of latency and memory over time")
    _add_logs(parser)


def _add_camera_faults(parser: argparse.ArgumentParser) -> None:
    _add_dnns(parser)
    _add_device(parser)
    _add_seed(parser)
    parser.add_argument(
        "--seconds", type=positive_float, default=15.0, help="length of each phase (default: %(default)g)"
    )
    _add_logs(parser)


def _add_cycles(parser: argparse.ArgumentParser) -> None:
    _add_dnns(parser)
    _add_device(parser)
    parser.add_argument("--repeats", type=_cycle_count, default=50, help="cycles, at least 2 (default: %(default)s)")


def _add_isolation(parser: argparse.ArgumentParser) -> None:
    _add_dnns(parser)
    _add_device(parser)
    _add_seed(parser)
    parser.add_argument(
        "--seconds", type=positive_float, default=30.0, help="length of each run (default: %(default)g)"
    )
    parser.add_argument(
        "--repeats", type=positive, default=3, help="runs with each value of isolation (default: %(default)s)"
    )
    _add_camera(parser, "a camera in place of the demo's one")
    _add_logs(parser)


def _add_camera(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument(
        "--camera", type=_camera, action="append", default=[], metavar="NAME=WxH@HZ:ENCODING",
        help=f"{text}, at its rate; ENCODING: jpeg, or that of sensor_msgs/Image; several times",
    )  # fmt: skip


def _add_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--logs", type=Path, help="folder for the processes' logs (default: one that stays if it fails)"
    )


def run(args: argparse.Namespace) -> int:
    """Measure, print a table, write JSON. 1 when a scenario with a verdict failed it."""
    if getattr(args, "plot", None) is not None:
        require("--plot", "matplotlib")
    from multi_dnn_ros.common.reporting import provenance, write_json

    for option in ("output", "plot"):
        if getattr(args, option, None) is not None:
            check_writable(f"--{option}", getattr(args, option))
    figures, text = args.measure(args)
    print(text)
    if args.output is not None:
        write_json(args.output, {"scenario": args.scenario, **provenance(), **figures})
        print(f"written to {args.output}")
    return 0 if figures.get("passed", True) else 1


def _config(args: argparse.Namespace) -> NodeConfig:
    from multi_dnn_ros.common.resources import config_file
    from multi_dnn_ros.settings.params_file import read_params_file
    from multi_dnn_ros.settings.schema import NodeConfig

    config = read_params_file(args.params_file or config_file("multi_dnn.yaml"))
    if getattr(args, "device", None) is None:
        return config
    return NodeConfig.model_validate({**config.model_dump(), "device": args.device})


def _cpu(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from multi_dnn_ros.benchmark.concurrency import ENGINE, measure_concurrency
    from multi_dnn_ros.common.reporting import table

    alone, text = _alone(args) if args.alone else ({}, "")
    figures = measure_concurrency(_config(args), args.frames, args.repeats, args.seed, args.against)
    engine = figures["ms_per_frame"][ENGINE]["p50"]
    rows = [
        [name, f"{times['p50']:.1f}", f"{times['min']:.1f}", f"{times['max']:.1f}", f"{engine / times['p50']:.2f}"]
        for name, times in figures["ms_per_frame"].items()
    ]
    header = ["condition", "ms a frame (median)", "min", "max", "engine / this"]
    return {**figures, **alone}, text + table(header, rows)


def _alone(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from multi_dnn_ros.benchmark.networks_alone import DIRECT, JOBS, TORCHSCRIPT, WHOLE, measure_alone
    from multi_dnn_ros.common.reporting import table
    from multi_dnn_ros.models.errors import ModelError

    if args.jobs < 2:
        raise UsageError(f"--jobs is {args.jobs}; with --alone at least 2: one job is the whole network")
    try:
        networks = measure_alone(args.alone, args.jobs, args.rounds, args.seed)
    except (ModelError, ValueError) as error:
        raise CommandError(f"--alone: {error}") from None
    rows = [
        [
            each["model"],
            f"{each['cpu_ms'][DIRECT]['p50']:.2f} ({each['cpu_ms'][DIRECT]['min']:.2f})",
            *(
                f"{each['over_direct'][name]['medians']:.3f} ({each['over_direct'][name]['minima']:.3f})"
                for name in (WHOLE, JOBS, TORCHSCRIPT)
            ),
        ]
        for each in networks
    ]
    header = ["alone, one thread", f"{DIRECT}, CPU ms: median (min)", f"{WHOLE} / that", JOBS, TORCHSCRIPT]
    return {"alone": networks}, table(header, rows) + "\n\n"


def _overhead(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from multi_dnn_ros.benchmark.overhead import measure_overhead
    from multi_dnn_ros.common.reporting import table

    cases = [measure_overhead(jobs, args.frames * 10, args.repeats, dnns=3, workers=2) for jobs in (1, 4, 8, 32)]
    rows = [
        [
            str(case["jobs"]),
            f"{case['engine_us_per_job']['p50']:.1f}",
            f"{case['direct_us_per_job']['p50']:.1f}",
            f"{case['overhead_us_per_job']:.1f}",
        ]
        for case in cases
    ]
    return {"cases": cases}, table(["jobs a frame", "engine, us a job", "called directly", "the engine's own"], rows)


def _load(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    import multi_dnn_ros.ros  # noqa: F401  (makes rclpy importable)
    from multi_dnn_ros.benchmark.load import load_table, measure_load
    from multi_dnn_ros.benchmark.load_plot import plot_load

    with log_folder(args.logs) as folder:
        measured = measure_load(_config(args), folder, args.minutes * 60.0, args.seed, _plans(args.camera))
    if args.plot is not None:
        plot_load(measured, args.plot)
        print(f"plotted in {args.plot}")
    return measured.figures, load_table(measured.figures)


def _camera_faults(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    import multi_dnn_ros.ros  # noqa: F401  (makes rclpy importable)
    from multi_dnn_ros.benchmark.camera_faults import camera_fault_table, measure_camera_faults

    with log_folder(args.logs) as folder:
        figures = measure_camera_faults(_config(args), folder, args.seconds, args.seed)
    return figures, camera_fault_table(figures)


def _isolation(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    import multi_dnn_ros.ros  # noqa: F401  (makes rclpy importable)
    from multi_dnn_ros.benchmark.isolation import isolation_table, measure_isolation

    with log_folder(args.logs) as folder:
        figures = measure_isolation(
            _config(args), folder, args.seconds, args.repeats, _plans(args.camera), args.seed, print
        )
    return figures, isolation_table(figures)


def _cycles(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    import multi_dnn_ros.ros  # noqa: F401  (makes rclpy importable)
    from multi_dnn_ros.benchmark.cycles import cycles_table, measure_cycles

    figures = measure_cycles(_config(args), args.repeats)
    return figures, cycles_table(figures)


def _camera(text: str) -> tuple[str, tuple[int, int], float, str]:
    match = re.fullmatch(r"([^=]+)=([^@]+)@([^:]+):(\w+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"'{text}' is not a camera such as front=1280x720@30:rgb8")
    encoding = match[4]
    if encoding not in ("jpeg", *ENCODINGS):
        raise argparse.ArgumentTypeError(f"'{text}': encoding '{encoding}'; allowed: jpeg, {', '.join(ENCODINGS)}")
    return camera_name(match[1]), size(match[2]), positive_float(match[3]), "" if encoding == "jpeg" else encoding


def _minutes(text: str) -> float:
    minutes = positive_float(text)
    if minutes < 0.1:
        raise argparse.ArgumentTypeError(f"'{text}' is less than 0.1: too short for windows to compare")
    return minutes


def _cycle_count(text: str) -> int:
    cycles = positive(text)
    if cycles < 2:
        raise argparse.ArgumentTypeError(f"'{text}' is less than 2: the last cycles are compared with the first")
    return cycles


def _plans(cameras: list[tuple[str, tuple[int, int], float, str]]) -> list[CameraPlan]:
    from multi_dnn_ros.benchmark.rig import CameraPlan

    if len({name for name, *_ in cameras}) < len(cameras):
        raise UsageError(f"--camera names {', '.join(name for name, *_ in cameras)}: each only once")
    return [CameraPlan(name, pixels, encoding, rate) for name, pixels, rate, encoding in cameras]


#: Earlier names of scenarios, still accepted.
_ALIASES = {"camera-faults": ("rough",)}
_SCENARIOS: dict[str, tuple[str, Callable[..., None], Callable[..., tuple[dict[str, Any], str]]]] = {
    "cpu": (
        "the configured DNNs through the engine, one after another in one thread, and as one process each, also with "
        "plain ONNX Runtime",
        _add_cpu,
        _cpu,
    ),
    "overhead": ("the engine's own cost per job, with jobs that compute nothing", _add_frames, _overhead),
    "load": (
        "the node under three cameras, one at over four times the rate that can be served: are latency, memory and "
        "accounts at the end of a long run what they were at its beginning? (processes on loopback DDS)",
        _add_load,
        _load,
    ),
    "camera-faults": (
        "cameras that stall, send broken images, are killed and come back: do the others notice?",
        _add_camera_faults,
        _camera_faults,
    ),
    "isolation": (
        "the node with its engine in a process of its own and with all in one process, in turns: rates, latency, CPU "
        "time and memory",
        _add_isolation,
        _isolation,
    ),
    "cycles": ("activate and deactivate again and again: is anything left behind?", _add_cycles, _cycles),
}
