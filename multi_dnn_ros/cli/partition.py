"""``multi-dnn partition``: one batch on several processors at once, divided by measured times."""

from __future__ import annotations

import argparse

from multi_dnn_ros.cli import partition_plan, partition_profile, partition_table

_DESCRIPTION = """\
One batch on several units at once. A unit is a device with a backend and, on a GPU, a share of its SMs:

  cpu                 all cores            cuda:0              a GPU
  cpu:8               8 threads            cuda:0/16sms        16 of its SMs
  cpu:1/torchscript   with this backend    cuda:0/inductor     with this backend

  profile   measure a model on each unit by batch size, into tables
  io        measure the way of images to a unit and back alone
  table     print, plot, merge, drop and measure again what is in tables
  plan      which unit gets how many images of a batch, and when each ends
  run       run a batch as planned; times, utilization, outputs in input order
"""
_EXAMPLES = """\
examples:
  multi-dnn partition profile torchvision:resnet18 --units cpu:1,cpu:2 --max-batch 32
  multi-dnn partition profile torchvision:vgg16 --units cpu,cuda:0/16sms,cuda:0/8sms --max-batch 128 --precision fp16
  multi-dnn partition io torchvision:resnet18 --units cpu:1 --batch 8 --max-batch 64 --increment 8
  multi-dnn partition table torchvision:resnet18 --csv times.csv --plot times.png
  multi-dnn partition plan torchvision:resnet18 --batch 48 --plot gantt.png
  multi-dnn partition run torchvision:resnet18 --batch 48 --compare --report run.json
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser(
        "partition",
        help="one batch on several processors at once",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    partition_profile.add_actions(actions)
    partition_table.add_actions(actions)
    partition_plan.add_actions(actions)
