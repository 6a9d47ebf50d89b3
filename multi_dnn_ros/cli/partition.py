"""``multi-dnn partition``: split one batch over several devices, by measured times."""

from __future__ import annotations

import argparse

from multi_dnn_ros.cli import partition_plan, partition_profile, partition_run, partition_table
from multi_dnn_ros.cli.commands import Commands, add_command, add_subcommands

_DETAILS = """\
The images of a batch run on several units at once, so that the last unit finishes as early as possible. First
`profile` measures a network on each unit; `plan` and `run` use these tables.

A unit is a device with a backend and, on a GPU, a share of its SMs:
  cpu                 all cores            cuda:0              a GPU
  cpu:8               8 threads            cuda:0/16sms        16 of its SMs
  cpu:1/torchscript   with this backend    cuda:0/inductor     with this backend
"""
_EXAMPLES = """\
multi-dnn partition profile torchvision:resnet18 --units cpu:1,cpu:2 --max-batch 32
multi-dnn partition profile torchvision:vgg16 --units cpu,cuda:0/16sms,cuda:0/8sms --max-batch 128 --precision fp16
multi-dnn partition io torchvision:resnet18 --units cpu:1 --batch 8 --max-batch 64 --increment 8
multi-dnn partition table torchvision:resnet18 --csv times.csv --plot times.png
multi-dnn partition plan torchvision:resnet18 --batch 48 --plot gantt.png
multi-dnn partition run torchvision:resnet18 --batch 48 --compare --report run.json
"""


def add_parser(subparsers: Commands[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = add_command(
        subparsers, "partition", "split one large batch over several devices", details=_DETAILS, examples=_EXAMPLES
    )
    actions = add_subcommands(parser, "action")
    partition_profile.add_actions(actions)
    partition_table.add_action(actions)
    partition_plan.add_action(actions)
    partition_run.add_action(actions)
