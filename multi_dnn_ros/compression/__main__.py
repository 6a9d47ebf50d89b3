"""``python -m multi_dnn_ros.compression``: checks of `multi-dnn decompose`, as JSON under results/."""

from __future__ import annotations

import argparse
import copy
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from multi_dnn_ros.common.extras import MissingExtra, require
from multi_dnn_ros.common.reporting import provenance, table, write_json
from multi_dnn_ros.compression.decompose import decompose, output_difference
from multi_dnn_ros.compression.layers import Layer, list_layers
from multi_dnn_ros.compression.macs import cost
from multi_dnn_ros.compression.ranks import Choice, Ratio, ReportProgress, Rounding
from multi_dnn_ros.models.decomposed import TuckerPlan, apply_plan
from multi_dnn_ros.models.sources import load_network

#: (builder, input side, uniform ratio, reduction of MACs in the paper's Fig. 3).
PAPER = (
    ("vgg16", 224, 0.328, 0.81),
    ("resnet152", 224, 0.375, 0.386),
    ("inception_v3", 299, 0.312, 0.628),
    ("regnet_y_32gf", 224, 0.40, 0.358),
)
#: The networks of the engine's tests, with a small input side for short runs.
NETWORKS = (
    ("alexnet", 224),
    ("squeezenet1_1", 224),
    ("vgg16", 64),
    ("resnet18", 128),
    ("resnet50", 96),
    ("resnet152", 64),
    ("inception_v3", 160),
    ("regnet_y_32gf", 64),
    ("mobilenet_v3_large", 128),
    ("densenet121", 96),
    ("ssd300_vgg16", 300),
    ("ssdlite320_mobilenet_v3_large", 320),
    ("lraspp_mobilenet_v3_large", 128),
    ("deeplabv3_mobilenet_v3_large", 128),
)


class FullRank:
    """Every layer at full rank, as a lossless chain of three layers."""

    def choose(self, layers: Sequence[Layer], progress: ReportProgress = lambda: None) -> dict[str, Choice]:
        """See RankPolicy."""
        return {
            layer.name: Choice(TuckerPlan(in_rank=layer.channels[0], out_rank=layer.channels[1]), "")
            for layer in layers
            if not layer.kept
        }


def paper_macs() -> list[dict[str, Any]]:
    """MACs of the paper's four networks before and after decomposition at its uniform ratios; from shapes only."""
    rows = []
    for builder, side, ratio, expected in PAPER:
        network = load_network(f"torchvision:{builder}", weights="random").module
        inputs = (torch.zeros(1, 3, side, side),)
        before = cost(network, inputs)
        choices = Ratio(ratio, Rounding(alignment=1, floor=1)).choose(list_layers(network, inputs))
        apply_plan(network, {name: choice.plan for name, choice in choices.items() if choice.plan}, builder)
        after = cost(network, inputs)
        rows.append(
            {
                "model": builder,
                "input": [side, side],
                "ratio": ratio,
                "macs": {"before": before.macs, "after": after.macs},
                "parameters": {"before": before.parameters, "after": after.parameters},
                "cut": 1.0 - after.macs / before.macs,
                "paper": expected,
            }
        )
    return rows


def full_rank(builder: str, side: int) -> dict[str, Any]:
    """Difference between the original network and its full-rank decomposition."""
    source = load_network(f"torchvision:{builder}", weights="random")
    network = source.network
    generator = torch.Generator().manual_seed(0)
    inputs = (torch.rand(1, 3, side, side, generator=generator),)
    _fit_statistics(network, inputs)
    original = copy.deepcopy(network)
    begin = time.perf_counter()
    outcomes = decompose(network, inputs, FullRank(), iterations=0)
    seconds = time.perf_counter() - begin
    return {
        "model": builder,
        "input": [side, side],
        "layers": sum(outcome.plan is not None for outcome in outcomes),
        "difference": output_difference(original, network, inputs),
        "seconds": seconds,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _fit_statistics(network: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    """Set each batch norm's statistics to those of its inputs, because otherwise activations vanish in untrained deep
    networks.
    """

    def observe(norm: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        assert isinstance(norm, nn.BatchNorm2d)
        if norm.running_mean is None or norm.running_var is None:
            return
        norm.running_mean.copy_(arguments[0].mean((0, 2, 3)))
        norm.running_var.copy_(arguments[0].var((0, 2, 3), unbiased=False).clamp(min=1e-4))

    hooks = [
        layer.register_forward_pre_hook(observe) for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)
    ]
    with torch.no_grad():
        network(*inputs)
    for hook in hooks:
        hook.remove()


def main(arguments: list[str] | None = None) -> int:
    """Run one of the checks; returns 1 if it fails."""
    parser = argparse.ArgumentParser(prog="python -m multi_dnn_ros.compression", description=__doc__)
    parser.add_argument(
        "proof",
        choices=("macs", "full-rank"),
        help="macs: compare the reduction of MACs at the paper's ratios with the paper; full-rank: check that "
        "a decomposition at full rank does not change the outputs",
    )
    parser.add_argument("--models", nargs="+", metavar="BUILDER", help="full-rank: check only these (default: all)")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(arguments)
    if args.proof == "macs":
        rows = paper_macs()
        passed = all(row["cut"] >= row["paper"] for row in rows)
        cells = [[row["model"], str(row["ratio"]), f"{row['cut']:.1%}", f"{row['paper']:.1%}"] for row in rows]
        print(table(("model", "ratio", "MACs cut", "in the paper"), cells))
    else:
        try:
            require(args.proof, "tensorly")
        except MissingExtra as error:
            print(error, file=sys.stderr)
            return 1
        chosen = [entry for entry in NETWORKS if not args.models or entry[0] in args.models]
        rows = [full_rank(*entry) for entry in tqdm(chosen, "full rank", unit="network", disable=None)]
        passed = all(row["difference"] <= 1e-4 for row in rows)
        cells = [
            [row["model"], str(row["layers"]), f"{row['difference']:.1e}", f"{row['seconds']:.1f}"] for row in rows
        ]
        print(table(("model", "layers", "largest relative difference", "s"), cells))
    if args.out is not None:
        origin = provenance()
        origin["command"] = " ".join(
            ["python -m multi_dnn_ros.compression", *(sys.argv[1:] if arguments is None else arguments)]
        )
        write_json(args.out, {**origin, "rows": rows, "passed": passed})
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
