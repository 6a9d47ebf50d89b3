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
multi-dnn benchmark cpu --output results/benchmark_cpu.json
multi-dnn benchmark cpu --params-file my_robot.yaml --frames 50
multi-dnn benchmark cpu --alone builtin:object --alone torchvision:resnet50
multi-dnn benchmark precisions builtin:object torchvision:resnet50
multi-dnn benchmark overhead
multi-dnn benchmark branches torchvision:googlenet --precision fp16
multi-dnn benchmark siblings torchvision:googlenet --device cpu
multi-dnn benchmark load --minutes 10 --output results/load_cpu.json --plot results/load_cpu.png
multi-dnn benchmark load --params-file my_robot.yaml --camera front=1280x720@30:rgb8 --camera rear=640x480@10:jpeg
multi-dnn benchmark camera-faults --seconds 15
multi-dnn benchmark cycles --repeats 50 --device cuda
multi-dnn benchmark isolation --params-file config/heavy_gpu.yaml --camera front=1280x720@30:rgb8
multi-dnn benchmark paper --set vgg16_x8 --sms 16 --output results/vgg_16.json
multi-dnn benchmark deadlines
multi-dnn benchmark chaos --minutes 10 --output results/chaos_cpu.json
multi-dnn benchmark soak --minutes 60 --output results/soak_cpu.json --plot results/soak_cpu.png
multi-dnn benchmark host --output results/host_cpu.json
multi-dnn benchmark ground --output ground.json --plot ground.png
multi-dnn benchmark board --minutes 15 --output board.json
multi-dnn benchmark compare before.json after.json --output compare.html
"""
#: Modules `benchmark_<name>` of this package, each of which declares one or more scenarios, in the order of the help.
SCENARIOS = (
    *("compute", "precisions", "branches", "siblings", "node", "chaos", "soak", "host", "paper", "deadlines", "ground"),
    *("board", "compare"),
)


def add_parser(subparsers: Commands[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = add_command(
        subparsers, "benchmark", "measure this package against baselines on this machine", details=_DETAILS,
        examples=_EXAMPLES,
    )  # fmt: skip
    scenarios = add_subcommands(parser, "scenario")
    for name in SCENARIOS:
        importlib.import_module(f"multi_dnn_ros.cli.benchmark_{name}").add_scenarios(scenarios)
