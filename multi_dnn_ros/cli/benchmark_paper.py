"""``multi-dnn benchmark paper``: several large DNNs at once, under many conditions."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from multi_dnn_ros.cli.benchmark_sets import add_execution, add_output, check_output, chosen_device, print_progress
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.common.errors import CommandError, UsageError

_PAPER = """\
The experiments of Kim, Kim and Kim (2022), the paper whose method this package implements: several DNNs at once, each
starting its next inference when the previous one ends. The time of one inference is measured while all of them run.

Every condition runs once in each repeat, in random order; ratios are taken within a repeat. Without --artifacts weights
are random; decomposed networks have the structure that results from the paper's reductions of MACs.

sets:
  small               2 ResNet18 and a SqueezeNet at 64x64, for a CPU
  fig5                vgg16_x8 resnet152_x8 inception_v3_x8 regnet_y_32gf_x7, each a set of its own
  fig6                mixed: 3 VGG16, 1 ResNet152, 2 InceptionV3, 2 RegNetY-32GF
  table1              AlexNet, SqueezeNet, VGG16, RegNetY-32GF, alone (_x1) and six at once (_x6)

conditions:
{conditions}
"""
_PAPER_EXAMPLES = """\
multi-dnn benchmark paper --set small --device cpu
multi-dnn benchmark paper --set vgg16_x8 --output vgg.json
multi-dnn benchmark paper --set fig5 --sms 16 --no-tf32 --output fig5_16.json --resume
multi-dnn benchmark paper --set mixed --conditions ori_mp ours_fp16 compile_mp --repeats 9
"""
_EXTRA_FILES = "tables (.md) and plots (.png) beside it"


def add_scenario(scenarios: Commands[argparse.ArgumentParser]) -> None:
    """Declare paper."""
    from multi_dnn_ros.benchmark.paper.conditions import CONDITIONS

    width = max(map(len, CONDITIONS)) + 2
    conditions = "\n".join(f"  {name:<{width}}{condition.text}" for name, condition in CONDITIONS.items())
    parser = add_command(
        scenarios, "paper", "compare ways to run several large DNNs at once, as in the paper",
        details=_PAPER.format(conditions=conditions), examples=_PAPER_EXAMPLES, run=_paper,
    )  # fmt: skip
    add = parser.add_argument
    add("--set", nargs="+", default=["small"], metavar="SET", help="sets of DNNs, see above (default: small)")
    add("--conditions", nargs="+", default=[], metavar="CONDITION",
        help="conditions, see above (default: those that the device can run, without the optional ones)")  # fmt: skip
    add_execution(parser, repeats=5, repeat="runs per condition", seconds=2.0)
    add("--no-tf32", dest="tf32", action="store_false", help="compute fp32 without TF32, as GPUs without TF32 do")
    add("--artifacts", type=Path, metavar="DIR",
        help="folder `networks` of `python -m multi_dnn_ros.training controlled`: all conditions run exactly the "
        "networks that were scored; or a folder with <builder>.safetensors, written by `multi-dnn decompose`, for "
        "conditions ours_dcomp* (default: random weights, decomposed by the paper's ratios)")  # fmt: skip
    add_output(parser, f"{_EXTRA_FILES}, after each repeat")
    add("--resume", action="store_true", help="continue an interrupted run from its --output file")


def _paper(args: argparse.Namespace) -> int:
    check_output(args.output)
    from multi_dnn_ros.benchmark.paper.conditions import choose_conditions
    from multi_dnn_ros.benchmark.paper.measure import Plan, estimate_s, measure
    from multi_dnn_ros.benchmark.paper.sets import choose_sets
    from multi_dnn_ros.common.reporting import provenance, write_json

    device = chosen_device(args)
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
          f"conditions, {plan.repeats} repeats", flush=True)  # fmt: skip
    content = {**origin, **measure(plan, earlier, save, print_progress())}
    _show(content, args.output)
    return 0


def _earlier(args: argparse.Namespace, now: dict[str, Any]) -> dict[str, Any]:
    """The results that --resume continues; empty if there are none yet."""
    from multi_dnn_ros.benchmark.paper.report import differences, read_results

    if not args.resume:
        return {}
    if args.output is None:
        raise UsageError("--resume needs --output, the file of the run to continue")
    if not args.output.exists():
        return {}
    earlier = read_results(args.output)
    if found := differences(earlier, now):
        raise CommandError(f"--resume: {args.output} was measured under other conditions: {'; '.join(found)}")
    return earlier


def _show(content: dict[str, Any], output: Path | None) -> None:
    """Print the tables; with --output write JSON, Markdown and plots."""
    from multi_dnn_ros.benchmark.paper.plot import plot_results
    from multi_dnn_ros.benchmark.paper.report import markdown
    from multi_dnn_ros.common.reporting import write_json, write_text

    text = markdown(content)
    print(text)
    if output is not None:
        write_json(output, content)
        written = output.with_suffix(".md")
        write_text(written, text)
        plots = plot_results(content, output.with_suffix(".png"))
        print("written to " + ", ".join(str(path) for path in (output, written, *plots)))
