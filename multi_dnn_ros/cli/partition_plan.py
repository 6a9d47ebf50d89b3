"""``multi-dnn partition plan``: how many images of a batch each unit gets."""

from __future__ import annotations

import argparse

from multi_dnn_ros.cli.arguments import positive
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.options import add_output, add_plot, check_files
from multi_dnn_ros.cli.partition_arguments import add_model, add_search, add_units, stored_tables, tables_folder
from multi_dnn_ros.cli.partition_report import plan_json, plan_table, slowdown_text, subset_table

_DETAILS = """\
The batch is divided so that the last unit finishes as early as possible, according to the times in the tables of
`multi-dnn partition profile`. Times between two measured batch sizes are interpolated linearly. If `multi-dnn partition
run` has measured the same units together, the tables are multiplied by the ratio of these times to those of the tables.
"""


def add_action(actions: Commands[argparse.ArgumentParser]) -> None:
    """Declare plan."""
    parser = add_command(
        actions, "plan", "compute how many images of a batch each unit gets", details=_DETAILS, run=_run,
        examples="multi-dnn partition plan torchvision:resnet18 --batch 48 --plot gantt.png",
    )  # fmt: skip
    add_model(parser)
    add_units(parser, required=False)
    add_search(parser)
    add = parser.add_argument
    add("--batch", type=positive, required=True, metavar="N", help="images in the batch")
    add("--unchecked", action="store_true", help="also use tables measured on other machines or library versions")
    add_plot(parser, "a Gantt chart")
    add_output(parser, "write the plans to this JSON file")


def _run(args: argparse.Namespace) -> int:
    from multi_dnn_ros.common.reporting import provenance, write_json
    from multi_dnn_ros.planning.batch_plan import plan_subsets, plan_together
    from multi_dnn_ros.planning.unit_slowdowns import read_slowdowns

    check_files(args, "plot", "output")
    _, tables = stored_tables(args, check=not args.unchecked)
    slowdowns = read_slowdowns(tables_folder(args), args.model, args.precision)
    plan = plan_together(tables, args.batch, args.search, slowdowns.times)
    subsets = plan_subsets(tables, args.batch, args.search, together=slowdowns.times)
    print(plan_table(plan, tables))
    print(slowdown_text(slowdowns.find(tables)), end="")
    print(f"\n{subset_table(subsets, tables)}")
    if args.plot is not None:
        from multi_dnn_ros.partition.plots import plan_bars, write_gantt

        write_gantt(args.plot, f"{args.model}, batch {args.batch}", {"predicted": plan_bars(plan)})
        print(f"\nGantt chart in {args.plot}")
    if args.output is not None:
        write_json(args.output, {**provenance(), "model": args.model, "plan": plan_json(plan),
                                 "subsets": [plan_json(each) for each in subsets.values() if each]})  # fmt: skip
    return 0
