"""``multi-dnn benchmark board``: what this computer can do."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.cli.arguments import minutes, positive, positive_float, size
from multi_dnn_ros.cli.camera import ENCODINGS
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.log_folder import add_logs, log_folder
from multi_dnn_ros.cli.options import add_device, add_seed, check_writable
from multi_dnn_ros.common.errors import CommandError, UsageError

if TYPE_CHECKING:
    from multi_dnn_ros.benchmark.board.record import BoardRecord, Settings

_DETAILS = """\
For each mix of DNNs, a node is started, and the command searches for the highest rate at which less than 5 % of the
results are missing. At this rate latency, CPU, GPU, memory, power, temperature and throttling are measured for the rest
of the mix's time. A mix that does not fit or fails is reported with the reason. --output has all figures, and an HTML
page of the same name shows them. Run nothing else during the measurement.

mixes:
  builtin      the three built-in DNNs
  heavy_gpu    config/heavy_gpu.yaml; needs a GPU
  small, mixed, vgg16_x8, resnet152_x8, inception_v3_x8, regnet_y_32gf_x7
               sets of the paper, see `multi-dnn benchmark paper --help`; its other sets are allowed, too
  FILE         a parameter file, as for `multi-dnn run`
"""
_EXAMPLES = """\
multi-dnn benchmark board
multi-dnn benchmark board --minutes 30 --output orin.json
multi-dnn benchmark board --output orin.json --resume
multi-dnn benchmark board --minutes 3 --mixes builtin my_robot.yaml --size 1280x720 --encoding jpeg --output own.json
"""
_OUTPUT = Path("board.json")


def add_scenarios(scenarios: Commands[argparse.ArgumentParser]) -> None:
    """Declare board."""
    parser = add_command(
        scenarios, "board",
        "find the highest camera rate at which standard DNNs keep up on this computer, and the resources that they use",
        details=_DETAILS, examples=_EXAMPLES, run=_run,
    )  # fmt: skip
    add = parser.add_argument
    add("--minutes", type=minutes, default=15.0, metavar="MIN",
        help="planned length of the run in minutes, at least 0.1 (default: %(default)g)")  # fmt: skip
    add("--mixes", nargs="+", default=[], metavar="MIX",
        help="what to measure, see above, the most important first (default: all of them except FILE; "
        "those that need a GPU, more memory, disk space or time than there is are left out)")  # fmt: skip
    add("--cameras", type=positive, default=1, metavar="N", help="number of cameras (default: %(default)s)")
    add("--size", type=size, default=(640, 480), metavar="WxH",
        help="size of the images in pixels (default: 640x480)")  # fmt: skip
    add("--encoding", choices=("jpeg", *ENCODINGS), default="rgb8", metavar="NAME",
        help="jpeg (CompressedImage) or an encoding of sensor_msgs/Image (default: rgb8)")  # fmt: skip
    add("--max-rate", type=positive_float, default=200.0, metavar="HZ",
        help="highest rate to try, in Hz (default: %(default)g)")  # fmt: skip
    add_device(parser, default=None)
    add_seed(parser, "the images")
    add("--output", type=Path, metavar="JSON",
        help="write the figures to this JSON file, and a page to the .html file of the same name; an existing file is "
        f"replaced (default: {_OUTPUT}, which must not exist)")  # fmt: skip
    add("--resume", action="store_true", help="continue an interrupted run from its --output file")
    add_logs(parser)


def _run(args: argparse.Namespace) -> int:
    output, page = _outputs(args)
    import multi_dnn_ros.ros  # noqa: F401  reports a missing ROS 2
    from multi_dnn_ros.benchmark.board.measure import BoardRun
    from multi_dnn_ros.benchmark.board.mixes import choose_mixes
    from multi_dnn_ros.benchmark.board.page import board_page
    from multi_dnn_ros.benchmark.board.record import Settings
    from multi_dnn_ros.benchmark.board.report import board_table
    from multi_dnn_ros.common.extras import MissingExtra, require
    from multi_dnn_ros.common.reporting import write_json, write_text

    settings = Settings(
        mixes=[mix.name for mix in choose_mixes(args.mixes)],
        cameras=args.cameras,
        size=args.size,
        encoding=args.encoding,
        max_rate_hz=args.max_rate,
        seed=args.seed,
        device=args.device,
    )
    content = _content(args, settings, output)
    try:
        require("a page with plots", "matplotlib")
    except MissingExtra as error:
        print(f"the page will have no plots: {error}")

    def save(figures: BoardRecord) -> None:
        write_json(output, figures.model_dump(mode="json"))

    with log_folder(args.logs) as folder:
        interrupted = False
        try:
            BoardRun(settings, args.minutes, folder, content, save).run()
        except KeyboardInterrupt:
            interrupted = True
        save(content)
        write_text(page, board_page(content))
        print(board_table(content))
        print(f"written to {output} and {page}")
        if interrupted:
            raise KeyboardInterrupt
        if failed := [name for name, mix in content.mixes.items() if mix.status == "failed"]:
            raise CommandError(f"{len(failed)} of {len(content.mixes)} mixes failed: {', '.join(failed)}; see {folder}")
    return 0


def _outputs(args: argparse.Namespace) -> tuple[Path, Path]:
    """The JSON file and the page. UsageError if they cannot be written."""
    output = args.output if args.output is not None else _OUTPUT
    if output.suffix == ".html":
        raise UsageError(f"--output is {output}; expected a JSON file, as the page {output.name} is written beside it")
    if args.output is None and not args.resume and output.exists():
        raise UsageError(f"{output} exists; choose a file with --output, or continue this run with --resume")
    check_writable("--output", output)
    page = output.with_suffix(".html")
    check_writable("--output", page)
    return output, page


def _content(args: argparse.Namespace, settings: Settings, output: Path) -> BoardRecord:
    """An empty record, or that of the run that --resume continues."""
    from multi_dnn_ros.benchmark.board.machine import describe_board
    from multi_dnn_ros.benchmark.board.mixes import chosen_device
    from multi_dnn_ros.benchmark.board.reading import read_board
    from multi_dnn_ros.benchmark.board.record import SCENARIO, SCHEMA_VERSION, BoardRecord
    from multi_dnn_ros.common.reporting import provenance
    from multi_dnn_ros.pipeline.choices import ConfigError

    try:
        device = chosen_device(args.device)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    content = BoardRecord(
        scenario=SCENARIO,
        schema_version=SCHEMA_VERSION,
        **provenance(),
        minutes=args.minutes,
        settings=settings,
        board=describe_board(device),
        mixes={},
    )
    if not args.resume:
        return content
    earlier = read_board(output)
    different = [
        f"{name} was {before!r} and is {now!r}"
        for name, before, now in (
            *((name, getattr(earlier.settings, name), value) for name, value in settings),
            *((name, getattr(earlier.board, name), value) for name, value in content.board),
            ("versions", earlier.versions, content.versions),
        )
        if before != now
    ]
    if different:
        raise CommandError(f"--resume: {output} was measured under other conditions: {'; '.join(different)}")
    earlier.resumed.append(content.command)
    return earlier
