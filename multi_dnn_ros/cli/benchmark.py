"""``multi-dnn benchmark``: measurements of this package, each beside its baseline from the same run."""

from __future__ import annotations

import argparse

from multi_dnn_ros.cli import (
    benchmark_board,
    benchmark_branches,
    benchmark_chaos,
    benchmark_compare,
    benchmark_compute,
    benchmark_deadlines,
    benchmark_ground,
    benchmark_host,
    benchmark_node,
    benchmark_paper,
    benchmark_precisions,
    benchmark_siblings,
    benchmark_soak,
)
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


def add_parser(subparsers: Commands[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = add_command(
        subparsers, "benchmark", "measure this package against baselines on this machine", details=_DETAILS,
        examples=_EXAMPLES,
    )  # fmt: skip
    scenarios = add_subcommands(parser, "scenario")
    benchmark_compute.add_scenarios(scenarios)
    benchmark_precisions.add_scenarios(scenarios)
    benchmark_branches.add_scenarios(scenarios)
    benchmark_siblings.add_scenarios(scenarios)
    benchmark_node.add_scenarios(scenarios)
    benchmark_chaos.add_scenarios(scenarios)
    benchmark_soak.add_scenarios(scenarios)
    benchmark_host.add_scenarios(scenarios)
    benchmark_paper.add_scenarios(scenarios)
    benchmark_deadlines.add_scenarios(scenarios)
    benchmark_ground.add_scenarios(scenarios)
    benchmark_board.add_scenarios(scenarios)
    benchmark_compare.add_scenarios(scenarios)
