"""``multi-dnn benchmark ground``: how accurate lane points in metres are on generated roads."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from multi_dnn_ros.cli.arguments import natural, positive, size
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.options import add_output, add_plot, add_seed, check_files, write_figures
from multi_dnn_ros.common.errors import CommandError

_DETAILS = """\
Generated roads have a known camera and known lines. The lane lines of a DNN, and as the baseline the true lines in
pixels, are projected onto the ground as in the node. The table has the median lateral error of the lines at several
distances, and in brackets the share of the visible lines that were found there.
"""


def add_scenarios(scenarios: Commands[argparse.ArgumentParser]) -> None:
    """Declare ground."""
    parser = add_command(
        scenarios, "ground", "measure the errors of lane points in metres on generated roads", details=_DETAILS,
        examples="multi-dnn benchmark ground --count 200 --output ground.json --plot ground.png", run=_run,
    )  # fmt: skip
    add = parser.add_argument
    add("--model", default="builtin:lane", help="lane DNN (default: %(default)s)")
    add("--count", type=positive, default=200, metavar="N", help="scenes per condition (default: %(default)s)")
    add("--size", type=size, default=(640, 480), metavar="WxH", help="size of the images in pixels (default: 640x480)")
    add("--shown", type=natural, default=0, metavar="N", help="number of the scene in the plot (default: %(default)s)")
    add_seed(parser, "the generated scenes")
    add_output(parser)
    add_plot(parser, "a scene, and its lane lines seen from above")


def _run(args: argparse.Namespace) -> int:
    check_files(args, "output", "plot")
    import multi_dnn_ros.ros  # noqa: F401  reports a missing ROS 2
    from multi_dnn_ros.benchmark.ground_truth import Condition, measure_ground, true_pixels, whole_pixels
    from multi_dnn_ros.common.reporting import table

    lanes_of = _lanes_of(args.model)
    conditions = (
        Condition("true pixels", True, False, true_pixels),
        Condition("true pixels, rounded to whole ones", True, False, whole_pixels),
        Condition(f"{args.model}", True, False, lanes_of),
        Condition(f"{args.model}, mean pose of a moving camera", True, True, lanes_of),
        Condition("true pixels, hills", False, False, true_pixels),
        Condition(f"{args.model}, hills", False, False, lanes_of),
    )

    def keep(rows: list[dict[str, Any]]) -> None:
        write_figures(
            args.output, {"scenes": args.count, "size": list(args.size), "seed": args.seed, "rows": rows},
            scenario="ground",
        )  # fmt: skip

    rows = measure_ground(conditions, args.count, args.size, args.seed, keep)
    distances = list(rows[0]["found"])
    cells = [
        [
            row["condition"],
            *(
                f"{row['error_m'][distance]['p50']:.3f} ({row['found'][distance]:.0%})"
                if distance in row["error_m"]
                else "-"
                for distance in distances
            ),
        ]
        for row in rows
    ]
    print(table(["lines, median error in m", *(f"at {distance} m" for distance in distances)], cells))
    if args.plot is not None:
        _plot(args.plot, args, lanes_of)
    return 0


def _lanes_of(model: str) -> Any:
    """A function that finds the lanes of a scene with this DNN."""
    import torch

    from multi_dnn_ros.models.errors import ModelError
    from multi_dnn_ros.models.load import load_dnn
    from multi_dnn_ros.settings.schema import DnnConfig

    try:
        dnn = load_dnn("lane", DnnConfig(role="lane", model=model))
    except ModelError as error:
        raise CommandError(f"--model: {error}") from None

    def lanes_of(scene: Any) -> Any:
        with torch.inference_mode():
            outputs = dnn.module(*dnn.preprocess(torch.from_numpy(scene.image)))
            return dnn.decoder((outputs,), scene.image.shape[:2])

    return lanes_of


def _plot(path: Path, args: argparse.Namespace, lanes_of: Any) -> None:
    from multi_dnn_ros.benchmark.ground_plot import plot_ground
    from multi_dnn_ros.benchmark.ground_truth import metres_of, scene_of, view_of

    _, scene = scene_of(args.shown, args.size, args.seed, flat=True)
    lanes = lanes_of(scene)
    plot_ground(path, scene, lanes, metres_of(lanes, view_of(scene.camera)))
