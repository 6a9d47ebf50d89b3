"""``multi-dnn benchmark``: what this computer can do (board), the paper's experiments, and a long run (soak)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from multi_dnn_ros.cli import benchmark_paper
from multi_dnn_ros.cli.arguments import minutes, not_negative, positive, positive_float, size, soak_minutes
from multi_dnn_ros.cli.camera import ENCODINGS
from multi_dnn_ros.cli.commands import Commands, add_command, add_subcommands
from multi_dnn_ros.cli.log_folder import add_logs, check_passed, log_folder
from multi_dnn_ros.cli.options import (
    add_device,
    add_output,
    add_params_file,
    add_seed,
    check_files,
    picture_beside,
    read_config,
    write_figures,
)
from multi_dnn_ros.common.errors import CommandError, UsageError

_DETAILS = """\
Run nothing else on the machine. --output writes the figures to a JSON file together with the machine, library versions,
sample counts and the command.
"""
_EXAMPLES = """\
multi-dnn benchmark board --minutes 15 --output board.json
multi-dnn benchmark board --params-file my_robot.yaml --size 1280x720 --encoding jpeg
multi-dnn benchmark paper --set vgg16_x8 --sms 16 --output vgg_16.json
multi-dnn benchmark soak --minutes 60 --output soak.json
"""
_BOARD = """\
Starts a node for each mix of DNNs, with cameras as processes on the loopback interface, and searches for the highest
rate at which less than 5 % of the results are missing. At this rate latency, CPU, memory, power and temperature are
measured for the rest of the mix's time.

The mixes are the three built-in DNNs and, on a GPU, config/heavy_gpu.yaml; or, with --params-file, the DNNs of that
file. Beside the JSON file of --output are a plot (.png) and, for each mix, a file in the format of NVIDIA's
ros2_benchmark (_ros2_benchmark.json), so that computers can be compared.
"""
_BOARD_EXAMPLES = """\
multi-dnn benchmark board
multi-dnn benchmark board --params-file config/heavy_gpu.yaml --cameras 3 --size 1280x720 --output heavy.json
"""
_SOAK = """\
Three cameras (raw, JPEG, and one that is killed and started again) send images to a node over loopback DDS. During the
run parameters are changed, DNNs are switched off and on, a model is swapped, and the engine process is killed.

The run passes (exit code 0) if every frame is accounted for, memory, threads, file descriptors and latency in the last
third are about the same as in the second, every action was carried out, all DNNs served again after every fault, and
nothing is left behind (docs/benchmarks.md).
"""


def add_parser(subparsers: Commands[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = add_command(
        subparsers, "benchmark", "measure this computer, repeat the paper's experiments, or test a node for an hour",
        details=_DETAILS, examples=_EXAMPLES,
    )  # fmt: skip
    scenarios = add_subcommands(parser, "scenario")
    _add_board(scenarios)
    benchmark_paper.add_scenario(scenarios)
    _add_soak(scenarios)


def _add_board(scenarios: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        scenarios, "board", "find the highest camera rate at which DNNs keep up on this computer, and the resources "
        "that they use", details=_BOARD, examples=_BOARD_EXAMPLES, run=_board,
    )  # fmt: skip
    add = parser.add_argument
    add_params_file(parser)
    add_device(parser, default=None)
    add("--minutes", type=minutes, default=5.0, metavar="MIN",
        help="planned length of the run in minutes, at least 0.1 (default: %(default)g)")  # fmt: skip
    add("--cameras", type=positive, default=1, metavar="N", help="number of cameras (default: %(default)s)")
    add("--size", type=size, default=(640, 480), metavar="WxH",
        help="size of the images in pixels (default: 640x480)")  # fmt: skip
    add("--encoding", choices=("jpeg", *ENCODINGS), default="rgb8", metavar="NAME",
        help="jpeg (CompressedImage) or an encoding of sensor_msgs/Image (default: rgb8)")  # fmt: skip
    add("--max-rate", type=positive_float, default=200.0, metavar="HZ",
        help="highest rate to try, in Hz (default: %(default)g)")  # fmt: skip
    add_seed(parser, "the images")
    add("--output", type=Path, metavar="JSON", default=Path("board.json"),
        help="write the figures to this JSON file (default: %(default)s)")  # fmt: skip
    add_logs(parser)


def _board(args: argparse.Namespace) -> int:
    plot = picture_beside(args.output)
    import multi_dnn_ros.ros  # noqa: F401  reports a missing ROS 2
    from multi_dnn_ros.benchmark.board.measure import BoardPlan, measure_board
    from multi_dnn_ros.benchmark.board.report import board_table, describe_board, plot_board, write_ros2_benchmark
    from multi_dnn_ros.common.extras import MissingExtra
    from multi_dnn_ros.common.reporting import provenance, write_json

    origin = {"scenario": "board", **provenance()}
    plan = BoardPlan(
        configs=_mixes(args),
        minutes=args.minutes,
        cameras=args.cameras,
        size=args.size,
        encoding=args.encoding,
        max_rate_hz=args.max_rate,
        seed=args.seed,
    )
    settings = {"minutes": args.minutes, "cameras": args.cameras, "size": list(args.size), "encoding": args.encoding,
                "max_rate_hz": args.max_rate, "seed": args.seed}  # fmt: skip
    content = {**origin, "settings": settings, "board": describe_board(args.device or "auto"), "mixes": {}}

    def save(mixes: dict[str, Any]) -> None:
        content["mixes"] = mixes
        write_json(args.output, content)

    with log_folder(args.logs) as folder:
        try:
            measure_board(plan, folder, save)
        finally:  # after Ctrl-C, what was measured
            mixes = content["mixes"]
            print(board_table(mixes, args.max_rate))
        written = [args.output, *write_ros2_benchmark(mixes, args.output, origin)]
        try:
            plot_board(mixes, plot)
            written.append(plot)
        except MissingExtra as error:
            print(f"no plot: {error}")
        print("written to " + ", ".join(map(str, written)))
        if failed := [name for name, mix in mixes.items() if mix["error"]]:
            raise CommandError(f"{len(failed)} of {len(mixes)} mixes failed: {', '.join(failed)}; see {folder}")
    return 0


def _mixes(args: argparse.Namespace) -> dict[str, Any]:
    """The parameters of each mix by its name."""
    if args.params_file is not None:
        return {args.params_file.stem: read_config(args)}
    from multi_dnn_ros.common.resources import config_file
    from multi_dnn_ros.pipeline.choices import choose_device

    mixes = {"builtin": read_config(args)}
    if choose_device(mixes["builtin"].device, "--device is").type == "cuda":
        args.params_file = config_file("heavy_gpu.yaml")
        mixes["heavy_gpu"] = read_config(args)
    return mixes


def _add_soak(scenarios: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        scenarios, "soak", "run the node for an hour with swaps, kills and changes, and check that nothing grows",
        details=_SOAK, run=_soak,
        examples="multi-dnn benchmark soak --minutes 60 --output soak.json\n"
        "multi-dnn benchmark soak --minutes 12 --kill-every 0 --params-file my_robot.yaml",
    )  # fmt: skip
    add = parser.add_argument
    add_params_file(parser)
    add_device(parser, default=None)
    add("--minutes", type=soak_minutes, default=60.0, metavar="MIN",
        help="length of the run in minutes, at least 0.25 (default: %(default)g)")  # fmt: skip
    add("--kill-every", type=not_negative, default=300.0, metavar="S",
        help="length of a round in seconds, with one kill of the engine process; at least 5. 0: neither kills nor "
        "model swaps, so that one process serves for the whole run (default: %(default)g)")  # fmt: skip
    add("--rate", type=positive_float, default=4.0, metavar="HZ",
        help="images per second and camera (default: %(default)g)")  # fmt: skip
    add_seed(parser, "the order of the events, their values and the images")
    add_output(parser)
    add_logs(parser)


def _soak(args: argparse.Namespace) -> int:
    check_files(args, "output")
    import multi_dnn_ros.ros  # noqa: F401  reports a missing ROS 2
    from multi_dnn_ros.benchmark.soak.run import MIN_ROUND_S, SoakPlan, measure_soak, soak_table

    if 0.0 < args.kill_every < MIN_ROUND_S:
        raise UsageError(f"--kill-every is {args.kill_every:g}; allowed: 0, or at least {MIN_ROUND_S:g} seconds")
    config = read_config(args)
    if config.isolation != "process":
        raise UsageError(f"parameter isolation is {config.isolation}; this scenario needs process")
    plan = SoakPlan(60.0 * args.minutes, args.kill_every or 300.0, args.rate, args.seed, kills=args.kill_every > 0.0)
    with log_folder(args.logs) as folder:
        figures = measure_soak(config, folder, plan)
        print(soak_table(figures))
        write_figures(args.output, figures, scenario="soak")
        check_passed(figures, folder)
    return 0
