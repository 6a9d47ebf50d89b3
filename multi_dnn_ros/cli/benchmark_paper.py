"""``multi-dnn benchmark paper``: several large DNNs at once, and parallel branches, beside their baselines."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any

from multi_dnn_ros.cli import options
from multi_dnn_ros.cli.figures import log_folder, rows_table, write_figures
from multi_dnn_ros.cli.options import Commands, positive
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.common.extras import require

_SAY = partial(print, flush=True)
_TEXT = """\
Compare ways to run several large DNNs at once, as in the paper.

The experiments of Kim, Kim and Kim (2022), the paper whose method this package implements: several DNNs at once, each
starting its next inference when the previous one ends. The time of one inference is measured while all of them run.
Every condition runs once in each repeat, in random order; ratios are taken within a repeat.

sets:
  small               2 ResNet18 and a SqueezeNet at 64x64, for a CPU
  fig5                vgg16_x8 resnet152_x8 inception_v3_x8 regnet_y_32gf_x7, each a set of its own
  fig6                mixed: 3 VGG16, 1 ResNet152, 2 InceptionV3, 2 RegNetY-32GF
  table1              AlexNet, SqueezeNet, VGG16, RegNetY-32GF, alone (_x1) and six at once (_x6)

conditions:
{conditions}

With --branches single networks are measured instead, on a GPU at fp16: serially, and with their independent branches
on 2, 4 and 8 streams, also with Inductor. Besides models, encoder-windows is allowed, an encoder with window attention.

With --important an important DNN gets a frame at 30 Hz while the DNNs of --set (default: background, 3 ResNet152 and 3
VGG16) never idle: its latency alone and under each policy, and the background's frames per second.

With --peers this package runs beside what a user would write instead: one plain process for each DNN of --params-file
(networks of torchvision), at fp16 on a GPU, with torch.compile. Both read the same three cameras, at 30 Hz and at the
highest rate with less than 5 % missing results; where rclpy is installed, the whole node is measured, too.

examples:
  multi-dnn benchmark paper --set fig5 --sms 16 --no-tf32 --output fig5_16.json
  multi-dnn benchmark paper --branches torchvision:googlenet encoder-windows --output branches.json
  multi-dnn benchmark paper --important --seconds 10 --repeats 3 --output important.json
  multi-dnn benchmark paper --peers --repeats 3 --output peers.json
"""


def add_scenario(scenarios: Commands[argparse.ArgumentParser]) -> None:
    """Declare paper."""
    from multi_dnn_ros.benchmark.paper.sets import CONDITIONS, FIGURES, IMPORTANT, SETS

    width = max(map(len, CONDITIONS)) + 2
    conditions = "\n".join(f"  {name:<{width}}{condition.text}" for name, condition in CONDITIONS.items())
    parser = options.add_command(scenarios, "paper", _TEXT.format(conditions=conditions), _run)
    add = parser.add_argument
    add("--set", nargs="+", metavar="SET", choices=(*FIGURES, *SETS),
        help="sets of DNNs, see above (default: small; with --important: background)")  # fmt: skip
    add("--conditions", nargs="+", default=[], metavar="CONDITION", choices=tuple(CONDITIONS),
        help="conditions, see above (default: those that the device can run, up to compile_mp)")  # fmt: skip
    options.add_options(parser, "--sms", "--device")
    add("--jobs", type=positive, default=8, metavar="N", help="jobs that a DNN is cut into (default: %(default)s)")
    options.add_options(parser, "--repeats", default=5, help="runs per condition (default: 5; --branches: times 40)")
    add("--seconds", type=options.positive_float, default=2.0, metavar="S", help="seconds of each run (default: 2)")
    add("--no-tf32", dest="tf32", action="store_false", help="compute fp32 without TF32, as GPUs without TF32 do")
    add("--branches", nargs="*", metavar="MODEL",
        help="measure the parallel branches of these networks instead (without a name: of six)")  # fmt: skip
    add("--important", nargs="*", metavar="NETWORK", choices=tuple(IMPORTANT),
        help=f"measure important DNNs beside --set: {', '.join(IMPORTANT)} (default: the first three)")  # fmt: skip
    add("--peers", nargs="?", type=positive, const=1, metavar="N",
        help="compare with plain processes instead, N of each DNN (without a number: 1)")  # fmt: skip
    options.add_options(parser, "--params-file", help="with --peers: the DNNs (default: config/heavy_gpu.yaml)")
    options.add_options(parser, "--size", help="pixels, for --branches (default: each's own) or --peers (1280x720)")
    options.add_options(parser, "--seed", help="random seed of weights, images and the order of runs (default: 0)")
    options.add_options(parser, "--output", help="write the figures to this JSON file, and a plot beside it")


def _run(args: argparse.Namespace) -> int:
    from multi_dnn_ros.benchmark.paper.dnns import check_partition
    from multi_dnn_ros.serving.choices import choose_device

    if args.output is not None:
        require("--output", "matplotlib")
        options.picture_beside(args.output)
    device = choose_device(args.device, "--device is")
    check_partition(device, args.sms)
    if args.peers is not None:
        return _peers(args, device)
    if args.important is not None:
        return _important(args, device)
    return _branches(args, device) if args.branches is not None else _sets(args, device)


def _sets(args: argparse.Namespace, device: Any) -> int:
    from multi_dnn_ros.benchmark.paper.dnns import Work
    from multi_dnn_ros.benchmark.paper.measure import measure
    from multi_dnn_ros.benchmark.paper.report import plot_sets
    from multi_dnn_ros.benchmark.paper.sets import choose_conditions, choose_sets

    chosen, conditions = choose_sets(args.set or ["small"]), choose_conditions(args.conditions, device, args.sms)
    settings = {"device": str(device), "sms": args.sms, "tf32": args.tf32, "jobs": args.jobs, "seed": args.seed}
    base = Work(conditions[0], (), **settings)

    def save(sets: dict[str, Any]) -> None:
        run = {**settings, "repeats": args.repeats, "seconds": args.seconds}
        write_figures(args.output, {"scenario": "paper", "settings": run, "sets": sets}, quiet=True)

    sets = measure(chosen, conditions, base, args.seconds, args.repeats, save, _SAY)
    for name, results in sets.items():
        print(f"{name}:\n{rows_table([_condition_row(*each) for each in results['summary'].items()])}")
    if args.output is not None:
        plot_sets(sets, args.output.with_suffix(".png"))
        print(f"written to {args.output} and {args.output.with_suffix('.png')}")
    return 0


def _condition_row(name: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    shown = {key: figures[key] for key in ("mean_ms", "of_baseline", "inferences_per_s", "ms")}
    return {"condition": name, "memory_mib": figures["memory_bytes"] / 2**20, **shown}


def _branches(args: argparse.Namespace, device: Any) -> int:
    from multi_dnn_ros.benchmark.paper.branches import SIZES, measure_branches
    from multi_dnn_ros.benchmark.paper.report import plot_branches

    if device.type != "cuda":
        raise UsageError(f"--branches needs a GPU; the device is {device}")
    networks: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for name in args.branches or SIZES:
        try:
            networks.append(measure_branches(name, device, size=args.size, rounds=40 * args.repeats, seed=args.seed))
        except (UsageError, ValueError, RuntimeError) as error:  # all errors of models, graphs and backends are these
            failed[name] = str(error)
            print(f"{name} is not measured: {error}", flush=True)
        figures = {"scenario": "branches", "device": str(device), "networks": networks, "failed": failed}
        if networks:
            write_figures(args.output, figures, quiet=True)
    if networks:
        print(rows_table([
            {"network": each["network"], **{f"{name}, ms": ms["p50"] for name, ms in each["ms"].items()},
             **{f"{name} / serial": ratio for name, ratio in each["over_serial"].items()}}
            for each in networks
        ]))  # fmt: skip
        if args.output is not None:
            plot_branches(networks, args.output.with_suffix(".png"))
            print(f"written to {args.output} and {args.output.with_suffix('.png')}")
    return 1 if failed else 0


def _peers(args: argparse.Namespace, device: Any) -> int:
    from multi_dnn_ros.benchmark.paper.peer_comparison import compare_with_peers, peer_config
    from multi_dnn_ros.common.resources import config_file

    args.params_file, args.device = args.params_file or config_file("heavy_gpu.yaml"), str(device)
    config, size = peer_config(options.read_config(args), args.peers), args.size or (1280, 720)
    models = {name: dnn.model for name, dnn in config.dnns.items()}
    settings = {"device": str(device), "dnns": models, "size": list(size), "seconds": args.seconds}

    def save(sides: dict[str, Any]) -> None:
        write_figures(args.output, {"scenario": "peers", "settings": settings, "sides": sides}, quiet=True)
        parts = ("saturated", "at_rate")
        print(rows_table([{"": side, **it["summary"][part]} for part in parts for side, it in sides.items()]))

    with log_folder() as folder:
        compare_with_peers(config, size, args.seconds, args.repeats, folder, save, _SAY)
    return 0


def _important(args: argparse.Namespace, device: Any) -> int:
    from multi_dnn_ros.benchmark.paper.dnns import Work
    from multi_dnn_ros.benchmark.paper.important import important_rows, measure_important
    from multi_dnn_ros.benchmark.paper.sets import CONDITIONS, IMPORTANT, choose_sets

    (background,) = choose_sets(args.set or ["background"]).values()
    found: list[dict[str, Any]] = []
    for network in [IMPORTANT[name] for name in args.important or list(IMPORTANT)[:-1]]:
        work = Work(
            CONDITIONS["ours_fp16"], (network, *background), str(device), args.sms, jobs=args.jobs, seed=args.seed
        )
        found.append(measure_important(work, args.seconds, args.repeats, _SAY))
        write_figures(args.output, {"scenario": "important", "device": str(device), "networks": found}, quiet=True)
    print(rows_table(important_rows(found)))
    return 0
