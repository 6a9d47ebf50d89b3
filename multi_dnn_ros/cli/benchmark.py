"""Measure this computer, repeat the paper's experiments, or test a node for an hour.

Run nothing else on the machine. --output writes the figures to a JSON file together with the machine, library versions,
sample counts and the command.

examples:
  multi-dnn benchmark board --params-file my_robot.yaml --size 1280x720 --encoding jpeg
  multi-dnn benchmark paper --set vgg16_x8 --sms 16 --output vgg_16.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from multi_dnn_ros.cli import benchmark_paper, options
from multi_dnn_ros.cli.camera import ENCODINGS
from multi_dnn_ros.cli.figures import log_folder, progress_bar, rows_table, write_figures
from multi_dnn_ros.cli.options import Commands, positive, positive_float
from multi_dnn_ros.common.errors import CommandError, UsageError

#: Long enough that each of the three parts of a soak test has results.
_soak_minutes = options.number(lambda value: 0.25 <= value < 1e6, "of at least 0.25 and below 1e6")


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    scenarios = options.add_subcommands(options.add_command(commands, "benchmark", __doc__), "scenario")

    parser = options.add_command(scenarios, "board", board.__doc__, board)
    options.add_options(parser, "--params-file")
    options.add_options(parser, "--device", **options.CONFIGURED_DEVICE)
    add = parser.add_argument
    add("--minutes", type=positive_float, default=5.0, metavar="MIN", help="minutes of the run (default: %(default)g)")
    add("--cameras", type=positive, default=1, metavar="N", help="number of cameras (default: %(default)s)")
    options.add_options(parser, "--size", default=(640, 480), help="size of the images in pixels (default: 640x480)")
    add("--encoding", choices=("jpeg", *ENCODINGS), default="rgb8", metavar="NAME",
        help="jpeg (CompressedImage) or an encoding of sensor_msgs/Image (default: rgb8)")  # fmt: skip
    add("--max-rate", type=positive_float, default=200.0, metavar="HZ", help="highest rate to try, Hz (default: 200)")
    options.add_options(parser, "--seed", help="random seed of the images (default: 0)")
    options.add_options(parser, "--output", default=Path("board.json"),
                        help="write the figures to this JSON file (default: %(default)s)")  # fmt: skip

    benchmark_paper.add_scenario(scenarios)

    parser = options.add_command(scenarios, "soak", soak.__doc__, soak)
    options.add_options(parser, "--params-file")
    options.add_options(parser, "--device", **options.CONFIGURED_DEVICE)
    add = parser.add_argument
    add("--minutes", type=_soak_minutes, default=60.0, metavar="MIN", help="minutes of the run (default: %(default)g)")
    add("--kill-every", type=options.not_negative, default=300.0, metavar="S",
        help="seconds of a round with one kill of the engine process; 0: no kills (default: 300)")  # fmt: skip
    add("--rate", type=positive_float, default=4.0, metavar="HZ", help="images per second and camera (default: 4)")
    options.add_options(parser, "--seed", "--output")


def board(args: argparse.Namespace) -> int:
    """Find the highest camera rate at which DNNs keep up on this computer, and the resources that they use.

    Starts a node for each mix of DNNs, with cameras as processes on the loopback interface, and searches for the
    highest rate at which less than 5 % of the results are missing. At this rate latency, CPU, memory, power and
    temperature are measured for the rest of the mix's time.

    The mixes are the three built-in DNNs and, on a GPU, config/heavy_gpu.yaml; or, with --params-file, the DNNs of that
    file. Beside the JSON file of --output are a plot (.png) and, for each mix, a file in the format of NVIDIA's
    ros2_benchmark (_ros2_benchmark.json), so that computers can be compared.

    examples:
      multi-dnn benchmark board --params-file config/heavy_gpu.yaml --cameras 3 --size 1280x720 --output heavy.json
    """
    plot = options.picture_beside(args.output)
    import multi_dnn_ros.ros  # noqa: F401  reports a missing ROS 2
    from multi_dnn_ros.benchmark.board.measure import BoardPlan, measure_board
    from multi_dnn_ros.benchmark.board.report import board_table, describe_board, plot_board, write_ros2_benchmark
    from multi_dnn_ros.common.extras import MissingExtra
    from multi_dnn_ros.common.reporting import provenance

    settings = {"minutes": args.minutes, "cameras": args.cameras, "size": args.size, "encoding": args.encoding,
                "max_rate_hz": args.max_rate, "seed": args.seed}  # fmt: skip
    content = {"settings": settings, "board": describe_board(args.device or "auto")}
    mixes: dict[str, Any] = {}

    def save(measured: dict[str, Any]) -> None:
        mixes.update(measured)
        write_figures(args.output, {"scenario": "board", **content, "mixes": mixes}, quiet=True)

    with log_folder() as folder:
        try:
            with progress_bar("starting", "s") as progress:
                measure_board(BoardPlan(configs=_mixes(args), **settings), folder, save, progress)
        finally:  # after Ctrl-C, what was measured
            print(board_table(mixes, args.max_rate))
        written = [args.output, *write_ros2_benchmark(mixes, args.output, {"scenario": "board", **provenance()})]
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
        return {args.params_file.stem: options.read_config(args)}
    from multi_dnn_ros.common.resources import config_file
    from multi_dnn_ros.serving.choices import choose_device

    mixes = {"builtin": options.read_config(args)}
    if choose_device(mixes["builtin"].device, "--device is").type == "cuda":
        args.params_file = config_file("heavy_gpu.yaml")
        mixes["heavy_gpu"] = options.read_config(args)
    return mixes


def soak(args: argparse.Namespace) -> int:
    """Run the node for an hour with swaps, kills and changes, and check that nothing grows.

    Two cameras (raw and JPEG) send images to a node over loopback DDS. During the run parameters are changed, DNNs are
    switched off and on, a model is swapped, and the engine process is killed.

    The run passes (exit code 0) if every frame is accounted for, memory, threads and file descriptors in the last third
    are about the same as in the second, every action was carried out, and all DNNs served again after every fault
    (docs/benchmarks.md).

    examples:
      multi-dnn benchmark soak --minutes 12 --kill-every 0 --params-file my_robot.yaml
    """
    import multi_dnn_ros.ros  # noqa: F401  reports a missing ROS 2
    from multi_dnn_ros.benchmark.soak import MIN_ROUND_S, SoakPlan, measure_soak

    if 0.0 < args.kill_every < MIN_ROUND_S:
        raise UsageError(f"--kill-every is {args.kill_every:g}; allowed: 0, or at least {MIN_ROUND_S:g} seconds")
    config = options.read_config(args)
    if config.isolation != "process":
        raise UsageError(f"parameter isolation is {config.isolation}; this scenario needs process")
    plan = SoakPlan(60.0 * args.minutes, args.kill_every or 300.0, args.rate, args.seed, kills=args.kill_every > 0.0)
    with log_folder() as folder:
        with progress_bar("soak", "s") as progress:
            figures = measure_soak(config, folder, plan, progress)
        print(rows_table([{"stream": name, **counts} for name, counts in figures["streams"].items()]))
        print(rows_table(figures["verdicts"]))
        write_figures(args.output, {"scenario": "soak", **figures})
        if not figures["passed"]:
            failed = "; ".join(it["name"] for it in figures["verdicts"] if not it["passed"])
            raise CommandError(f"the run has not passed: {failed}; the logs of its processes are in {folder}")
    return 0
