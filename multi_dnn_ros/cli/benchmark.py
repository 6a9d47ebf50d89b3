"""``multi-dnn benchmark``: measurements of this package, each beside its baseline from the same run."""

from __future__ import annotations

import argparse
import importlib

from multi_dnn_ros.cli.commands import Commands, add_command, add_subcommands

_DETAILS = """\
A scenario runs its baselines in the same run, in random order where possible, and prints a table. --output writes the
figures to a JSON file together with the machine, library versions, sample counts and the command.
"""
_EXAMPLES = """\
multi-dnn benchmark board --minutes 15 --output board.json
multi-dnn benchmark paper --set vgg16_x8 --sms 16 --output vgg_16.json
multi-dnn benchmark branches torchvision:googlenet --precision fp16
multi-dnn benchmark soak --minutes 60 --output soak_cpu.json --plot soak_cpu.png
"""
#: Modules `benchmark_<name>` of this package, each of which declares one or more scenarios, in the order of the help.
SCENARIOS = ("branches", "soak", "paper", "board")


def add_parser(subparsers: Commands[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = add_command(
        subparsers, "benchmark", "measure this package against baselines on this machine", details=_DETAILS,
        examples=_EXAMPLES,
    )  # fmt: skip
    scenarios = add_subcommands(parser, "scenario")
    for name in SCENARIOS:
        importlib.import_module(f"multi_dnn_ros.cli.benchmark_{name}").add_scenarios(scenarios)
