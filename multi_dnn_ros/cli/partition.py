"""``multi-dnn partition``: one batch on several processors at once, divided by measured times."""

from __future__ import annotations

import argparse

from multi_dnn_ros.cli import partition_profile

_DESCRIPTION = """\
One batch on several units at once. A unit is a device with a backend and, on a GPU, a share of its SMs:

  cpu                 all cores            cuda:0              a GPU
  cpu:8               8 threads            cuda:0/16sms        16 of its SMs
  cpu:1/torchscript   with this backend    cuda:0/inductor     with this backend

  profile   measure a model on each unit by batch size, into tables
  io        measure the way of images to a unit and back alone
"""
_EXAMPLES = """\
examples:
  multi-dnn partition profile torchvision:resnet18 --units cpu:1,cpu:2 --max-batch 32
  multi-dnn partition profile torchvision:vgg16 --units cpu,cuda:0/16sms,cuda:0/8sms --max-batch 128 --precision fp16
  multi-dnn partition io torchvision:resnet18 --units cpu:1 --batch 8 --max-batch 64 --increment 8
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
