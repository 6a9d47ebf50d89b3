"""The scenarios of ``multi-dnn benchmark`` about several DNNs at once: paper, paper-report, deadlines."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.arguments import natural, positive, positive_float
from multi_dnn_ros.common.extras import require

if TYPE_CHECKING:
    import torch

    from multi_dnn_ros.benchmark.paper.sets import DnnSet, Network

_PAPER = """\
The founding paper's experiments (Kim, Kim, Kim 2022): several DNNs at once, each in a closed loop; what counts is the
time of one inference while all of them run. Every condition has its turn in each block, in random order; ratios are
taken within a block. Weights are random, decomposed networks have the structure that the paper's MAC cuts give.

sets:
  small               2 ResNet18 and a SqueezeNet at 64x64, for a CPU
  fig5                vgg16_x8 resnet152_x8 inception_v3_x8 regnet_y_32gf_x7, each a set of its own
  fig6                mixed: 3 VGG16, 1 ResNet152, 2 InceptionV3, 2 RegNetY-32GF
  table1              AlexNet, SqueezeNet, VGG16, RegNetY-32GF, alone (_x1) and six at once (_x6)

conditions:
{conditions}
"""
_PAPER_EXAMPLES = """\
examples:
  multi-dnn benchmark paper --set small --device cpu
  multi-dnn benchmark paper --set vgg16_x8 --output vgg.json
  multi-dnn benchmark paper --set fig5 --sms 16 --no-tf32 --output fig5_16.json --resume
  multi-dnn benchmark paper --set mixed --conditions ori_mp ours_fp16 compile_mp --repeats 9
"""
_DEADLINES = """\
Three cameras on one engine, DNNs of high, middle and low priority with deadlines of one, two and three frame periods,
at 50, 90 and 120 % of what the engine was measured to serve: deadline misses and drops under fifo, priority and edf.
The number of DNNs is chosen so that the cameras run at about --rate, and the rate then fitted to the load.
"""
_IMPORTANT = """\
One important DNN with a camera at --rate, beside others that always have a frame that waits: its latency over that with
the others idle, and their throughput over that under fifo. On a GPU also with parameter max_launched (--bounds).
"""


def add_paper(scenarios: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare scenario paper."""
    from multi_dnn_ros.benchmark.paper.conditions import CONDITIONS

    width = max(map(len, CONDITIONS)) + 2
    conditions = "\n".join(f"  {name:<{width}}{condition.text}" for name, condition in CONDITIONS.items())
    parser = scenarios.add_parser(
        "paper",
        help="sets of large DNNs at once: the paper's conditions, ours, and what one would pick instead",
        description=_PAPER.format(conditions=conditions),
        epilog=_PAPER_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--set", nargs="+", default=["small"], metavar="SET", help="what runs at once (default: small)")
    parser.add_argument(
        "--conditions", nargs="+", default=[], metavar="CONDITION", help="default: all that the device can run"
    )
    _add_device(parser)
    parser.add_argument(
        "--no-tf32", dest="tf32", action="store_false", help="fp32 without TF32, as on GPUs that have none"
    )
    parser.add_argument("--jobs", type=positive, default=8, help="jobs that a DNN is cut into (default: %(default)s)")
    parser.add_argument("--repeats", type=positive, default=5, help="blocks (default: %(default)s)")
    parser.add_argument("--seconds", type=positive_float, default=2.0, help="length of each run (default: %(default)g)")
    parser.add_argument("--seed", type=natural, default=0, help="of weights, images and order (default: %(default)s)")
    parser.add_argument(
        "--artifacts",
        type=Path,
        metavar="DIR",
        help="decomposed networks by `multi-dnn decompose`, as <builder>.safetensors, for ours_dcomp*",
    )
    _add_output(parser, "the figures as JSON, after each block; a .md and .png files beside it")
    parser.add_argument("--resume", action="store_true", help="go on where the run that wrote --output was cut short")
    parser.set_defaults(run=run_paper)


def add_paper_report(scenarios: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare scenario paper-report."""
    parser = scenarios.add_parser(
        "paper-report",
        help="tables and pictures of one or several results of the scenario paper",
        description="Tables and pictures of one or several results of the scenario paper, of one machine and settings.",
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="FILE", help="JSON of `multi-dnn benchmark paper`")
    _add_output(parser, "all of them as one JSON; a .md and .png files beside it")
    parser.set_defaults(run=run_paper_report)


def add_deadlines(scenarios: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare scenario deadlines."""
    from multi_dnn_ros.benchmark.paper.conditions import CONDITIONS

    parser = scenarios.add_parser(
        "deadlines",
        help="three cameras near and beyond capacity: misses and drops under each policy",
        description=_DEADLINES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--set", default="small", help="networks, taken in turn, as in scenario paper (default: small)")
    _add_device(parser)
    engine = [name for name, condition in CONDITIONS.items() if condition.layout == "engine" and not condition.batched]
    parser.add_argument(
        "--condition", choices=engine, default="ours", help="how the engine runs them, as in scenario paper"
    )
    parser.add_argument("--jobs", type=positive, default=8, help="jobs that a DNN is cut into (default: %(default)s)")
    parser.add_argument("--rate", type=positive_float, default=30.0, help="of a camera, about, Hz (default: 30)")
    parser.add_argument("--max-dnns", type=positive, default=24, help="most DNNs at once (default: %(default)s)")
    parser.add_argument("--repeats", type=positive, default=3, help="runs of each case (default: %(default)s)")
    parser.add_argument("--seconds", type=positive_float, default=5.0, help="length of each run (default: 5)")
    parser.add_argument("--seed", type=natural, default=0, help="of weights and order (default: %(default)s)")
    _add_output(parser, "the figures as JSON; a .png beside it")
    parser.set_defaults(run=run_deadlines)


def add_important(scenarios: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare scenario important."""
    from multi_dnn_ros.benchmark.paper.conditions import CONDITIONS

    parser = scenarios.add_parser(
        "important",
        help="one important DNN beside others that never idle: its latency, their throughput",
        description=_IMPORTANT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--set", default="small", help="networks, as in scenario paper (default: small)")
    parser.add_argument("--important", nargs="+", metavar="NETWORK", help="of the set (default: each)")
    parser.add_argument("--background", nargs="+", metavar="NETWORK", help="of the set (default: each)")
    parser.add_argument("--others", type=positive, default=6, help="DNNs in the background (default: %(default)s)")
    _add_device(parser)
    engine = [name for name, condition in CONDITIONS.items() if condition.layout == "engine" and not condition.batched]
    parser.add_argument(
        "--condition", choices=engine, default="ours", help="how the engine runs them, as in scenario paper"
    )
    parser.add_argument("--jobs", type=positive, default=8, help="jobs that a DNN is cut into (default: %(default)s)")
    parser.add_argument("--rate", type=positive_float, default=30.0, help="of the camera, Hz (default: 30)")
    parser.add_argument(
        "--bounds", nargs="+", type=positive, default=[], metavar="N",
        help="on a GPU also with at most N jobs of the others launched and not finished",
    )  # fmt: skip
    parser.add_argument("--repeats", type=positive, default=3, help="runs of each case (default: %(default)s)")
    parser.add_argument("--seconds", type=positive_float, default=5.0, help="length of each run (default: 5)")
    parser.add_argument("--seed", type=natural, default=0, help="of weights and order (default: %(default)s)")
    _add_output(parser, "the figures as JSON")
    parser.set_defaults(run=run_important)


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda, cuda:<number>")
    parser.add_argument("--sms", type=positive, help="share of the GPU, by a CUDA green context: so many of its SMs")


def _add_output(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"write {what}")


def _check_output(output: Path | None) -> None:
    """Raise UsageError where the figures could not be written, or what is written beside them would take their place.

    Raises MissingExtra where the picture beside them could not be drawn.
    """
    from multi_dnn_ros.cli.network_arguments import check_writable
    from multi_dnn_ros.common.errors import UsageError

    if output is None:
        return
    require("--output", "matplotlib")
    check_writable("--output", output)
    if output.suffix in (".md", ".png"):
        raise UsageError(f"--output is {output}; the figures are JSON, beside which {output.name} is written")


def run_paper(args: argparse.Namespace) -> int:
    """Measure, print the tables, write JSON, Markdown and pictures."""
    _check_output(args.output)
    from multi_dnn_ros.benchmark.paper.conditions import choose_conditions
    from multi_dnn_ros.benchmark.paper.measure import Plan, estimate_s, measure
    from multi_dnn_ros.benchmark.paper.sets import choose_sets
    from multi_dnn_ros.common.reporting import provenance, write_json

    device = _device(args)
    plan = Plan(
        sets=tuple(choose_sets(args.set)),
        conditions=tuple(choose_conditions(args.conditions, device)),
        device=device,
        repeats=args.repeats,
        seconds=args.seconds,
        seed=args.seed,
        sms=args.sms,
        tf32=args.tf32,
        jobs=args.jobs,
        artifacts=args.artifacts,
    )
    origin = {"scenario": "paper", **provenance(), "settings": plan.settings()}
    earlier = _earlier(args, origin)
    if earlier:
        earlier["resumed"] = [*earlier.get("resumed", ()), origin["command"]]

    def save(content: Any) -> None:
        if args.output is not None:
            write_json(args.output, {**origin, **content})

    print(f"about {estimate_s(plan) / 60:.0f} min on {device}: {len(plan.sets)} sets, {len(plan.conditions)} "
          f"conditions, {plan.repeats} blocks", flush=True)  # fmt: skip
    content = {**origin, **measure(plan, earlier, save, _progress())}
    _show(content, args.output)
    return 0


def run_paper_report(args: argparse.Namespace) -> int:
    """Merge and show."""
    _check_output(args.output)
    from multi_dnn_ros.benchmark.paper.report import merged

    _show(merged(args.results), args.output)
    return 0


def run_deadlines(args: argparse.Namespace) -> int:
    """Measure, print the table, write JSON and picture."""
    _check_output(args.output)
    from multi_dnn_ros.benchmark.paper.conditions import choose_conditions
    from multi_dnn_ros.benchmark.paper.deadlines import DeadlinePlan, deadlines_table, measure_deadlines
    from multi_dnn_ros.benchmark.paper.plot import plot_deadlines
    from multi_dnn_ros.common.reporting import provenance, write_json
    from multi_dnn_ros.common.thread_switching import short_switch_interval

    device = _device(args)
    (condition,) = choose_conditions([args.condition], device)
    plan = DeadlinePlan(
        dnns=_one_set(args.set),
        device=device,
        sms=args.sms,
        condition=condition,
        jobs=args.jobs,
        rate_hz=args.rate,
        most_dnns=args.max_dnns,
        repeats=args.repeats,
        seconds=args.seconds,
        seed=args.seed,
    )
    print(f"about {(60 + 9 * plan.repeats * (plan.seconds + 1)) / 60:.0f} min on {device}", flush=True)
    with short_switch_interval():  # as when serving
        figures = measure_deadlines(plan, _progress())
    print(deadlines_table(figures))
    if args.output is not None:
        write_json(args.output, {"scenario": "deadlines", **provenance(), **figures})
        plot_deadlines(figures, args.output.with_suffix(".png"))
        print(f"written to {args.output}, {args.output.with_suffix('.png')}")
    return 0 if figures["passed"] else 1


def run_important(args: argparse.Namespace) -> int:
    """Measure, print the table, write JSON."""
    _check_output(args.output)
    from multi_dnn_ros.benchmark.paper.conditions import choose_conditions
    from multi_dnn_ros.benchmark.paper.important import ImportantPlan, important_table, measure_important
    from multi_dnn_ros.common.reporting import provenance, write_json

    device = _device(args)
    (condition,) = choose_conditions([args.condition], device)
    dnns = _one_set(args.set)
    plan = ImportantPlan(
        important=_networks("--important", args.important, dnns),
        background=_networks("--background", args.background, dnns),
        device=device,
        sms=args.sms,
        condition=condition,
        jobs=args.jobs,
        others=args.others,
        rate_hz=args.rate,
        repeats=args.repeats,
        seconds=args.seconds,
        seed=args.seed,
        bounds=tuple(args.bounds),
    )
    figures = measure_important(plan, _progress())
    print(important_table(figures))
    if args.output is not None:
        write_json(args.output, {"scenario": "important", **provenance(), **figures})
        print(f"written to {args.output}")
    return 0


def _one_set(name: str) -> DnnSet:
    from multi_dnn_ros.benchmark.paper.sets import choose_sets
    from multi_dnn_ros.common.errors import UsageError

    sets = choose_sets([name])
    if len(sets) > 1:
        raise UsageError(f"--set {name} is several sets; this scenario takes one")
    return sets[0]


def _networks(option: str, names: Sequence[str] | None, dnns: DnnSet) -> tuple[Network, ...]:
    """Of a set by name; all of its networks, each once, where none is named."""
    from multi_dnn_ros.common.errors import UsageError

    known = {network.builder: network for network in dnns.kinds}
    for name in names or ():
        if name not in known:
            raise UsageError(f"{option} is '{name}'; allowed with --set {dnns.name}: {', '.join(known)}")
    return tuple(known[name] for name in dict.fromkeys(names or known))


def _device(args: argparse.Namespace) -> torch.device:
    from multi_dnn_ros.benchmark.paper.partition import check_partition
    from multi_dnn_ros.pipeline.choices import choose_device

    device = choose_device(args.device)
    check_partition(device, args.sms)
    return device


def _earlier(args: argparse.Namespace, now: dict[str, Any]) -> dict[str, Any]:
    """The results that are to be completed; nothing where there are none yet."""
    from multi_dnn_ros.benchmark.paper.report import differences, read_results
    from multi_dnn_ros.common.errors import CommandError, UsageError

    if not args.resume:
        return {}
    if args.output is None:
        raise UsageError("--resume needs --output, the file to go on with")
    if not args.output.exists():
        return {}
    earlier = read_results(args.output)
    if found := differences(earlier, now):
        raise CommandError(f"--resume: {args.output} was measured otherwise: {'; '.join(found)}")
    return earlier


def _progress() -> Callable[[str], None]:
    import time

    begin = time.monotonic()
    return lambda text: print(f"{time.monotonic() - begin:6.0f} s  {text}", flush=True)


def _show(content: dict[str, Any], output: Path | None) -> None:
    from multi_dnn_ros.benchmark.paper.plot import plot_results
    from multi_dnn_ros.benchmark.paper.report import markdown
    from multi_dnn_ros.common.reporting import write_json, write_text

    text = markdown(content)
    print(text)
    if output is not None:
        write_json(output, content)
        written = output.with_suffix(".md")
        write_text(written, text)
        pictures = plot_results(content, output.with_suffix(".png"))
        print("written to " + ", ".join(str(path) for path in (output, written, *pictures)))
