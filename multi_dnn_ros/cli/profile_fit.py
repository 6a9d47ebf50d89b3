"""``multi-dnn profile fit``: whether DNNs at given camera rates fit this machine."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.cli.arguments import camera_name, positive_float
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.options import (
    add_device,
    add_output,
    add_params_file,
    check_writable,
    read_config,
    write_figures,
)
from multi_dnn_ros.common.errors import UsageError

if TYPE_CHECKING:
    from multi_dnn_ros.settings.schema import NodeConfig

_DETAILS = """\
The time of each DNN is measured on black images of 640x480 pixels, alone and together with the others, or predicted
from its layers (--predictor). From these times follow the utilization of the device at the rates of the cameras, and a
bound of the time from an image to its result, which is compared with `deadline_ms`. If the DNNs do not fit, the command
names the one that exceeds the capacity, and the rate at which it would fit. Decoding of images is not included;
`multi-dnn benchmark board` measures the highest rate with real images.

Exit code 0: fits; 1: does not fit.
"""
_EXAMPLES = """\
multi-dnn profile fit
multi-dnn profile fit --params-file my_robot.yaml --rate front=30
"""
_RATE = 10.0


def add_action(actions: Commands[argparse.ArgumentParser]) -> None:
    """Declare fit."""
    parser = add_command(
        actions, "fit", "say whether the DNNs of a parameter file keep up with given camera rates", details=_DETAILS,
        examples=_EXAMPLES, run=_run,
    )  # fmt: skip
    add = parser.add_argument
    add_params_file(parser)
    add("--rate", type=_rate, action="append", default=[], metavar="CAMERA=HZ",
        help=f"frames per second of a camera; may be repeated (default: the camera's parameter rate_hz, "
        f"or {_RATE:g})")  # fmt: skip
    add_device(parser, default=None)
    add("--predictor", type=Path, metavar="JSON",
        help="predictor.json of `multi-dnn profile learn` (default: that of the parameter file)")  # fmt: skip
    add_output(parser, "write times and verdict to this JSON file")


def _run(args: argparse.Namespace) -> int:
    from multi_dnn_ros.pipeline.build import build
    from multi_dnn_ros.pipeline.fit_check import measure_fit

    if args.output is not None:
        check_writable("--output", args.output)
    config = read_config(args, **({} if args.predictor is None else {"predictor": str(args.predictor)}))
    rates = _rates(args, config)
    pipeline = build(config)
    fit = measure_fit(config, pipeline, rates, pipeline.predictor)
    verdict = fit.verdict()
    if fit.unpredicted:
        print(f"measured, because the predictor does not know: {'; '.join(fit.unpredicted[:3])}")
    for demand in fit.demands:
        print(
            f"{demand.dnn}: {demand.inference_ms:.2f} ms alone for {demand.batch} image"
            f"{'s' if demand.batch > 1 else ''}, at most {fit.latency_ms(demand):.1f} ms from image to result"
        )
    print("\n".join((verdict.text, *(f"  {advice}" for advice in verdict.advice))))
    write_figures(args.output, {"device": str(pipeline.device), **asdict(fit), "verdict": asdict(verdict)})
    return 0 if verdict.fits else 1


def _rates(args: argparse.Namespace, config: NodeConfig) -> dict[str, float]:
    rates = {name: camera.rate_hz or _RATE for name, camera in config.cameras.items()}
    for camera, hz in args.rate:
        if camera not in rates:
            raise UsageError(f"--rate names camera '{camera}'; the parameters have {', '.join(rates)}")
        rates[camera] = hz
    return rates


def _rate(text: str) -> tuple[str, float]:
    camera, separator, hz = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"'{text}' is not CAMERA=HZ")
    return camera_name(camera), positive_float(hz)
