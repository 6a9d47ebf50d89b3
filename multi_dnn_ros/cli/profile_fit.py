"""``multi-dnn profile fit``: whether DNNs at given camera rates fit this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.arguments import camera_name, natural, positive, positive_float, size
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.options import add_device, add_output, add_params_file, add_seed, check_writable, read_config
from multi_dnn_ros.common.errors import UsageError

if TYPE_CHECKING:
    from multi_dnn_ros.planning.fit import Demand, Verdict
    from multi_dnn_ros.settings.schema import NodeConfig

_DETAILS = """\
If the DNNs of the parameter file cannot serve its cameras at the given rates, the command names the DNN that exceeds
the machine's capacity and what would help. The cost of a frame is measured, alone and with all DNNs running, or
predicted from its layers (--predictor); layers that the predictor does not know are measured.

Exit code 0: fits; 1: does not fit.
"""
_EXAMPLES = """\
multi-dnn profile fit
multi-dnn profile fit --params-file my_robot.yaml --rate front=30 --verify 10
"""
_RATE = 10.0


def add_action(actions: Commands[argparse.ArgumentParser]) -> None:
    """Declare fit."""
    parser = add_command(
        actions, "fit", "predict whether the DNNs of a parameter file can serve given camera rates", details=_DETAILS,
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
    add("--size", type=size, default=(640, 480), metavar="WxH",
        help="size of the camera images in pixels, for the cost of decoding (default: 640x480)")  # fmt: skip
    add("--frames", type=positive, default=20, metavar="N", help="frames measured per DNN (default: %(default)s)")
    add("--verify", type=positive_float, metavar="S",
        help="then send frames for this many seconds and check that they are served in time")  # fmt: skip
    add("--mixes", type=natural, default=0, metavar="N",
        help="instead of the rates, predict N random mixes of these DNNs near capacity (default: 0)")  # fmt: skip
    add_seed(parser, "the mixes")
    add_output(parser, "write the predictions to this JSON file")


def _run(args: argparse.Namespace) -> int:
    from multi_dnn_ros.common.reporting import cpu_count, provenance, write_json
    from multi_dnn_ros.pipeline.build import build
    from multi_dnn_ros.pipeline.fit_check import engine_factory, make_demands, service_times
    from multi_dnn_ros.planning.fit import Decoding, check_fit
    from multi_dnn_ros.planning.image_costs import decode_ms
    from multi_dnn_ros.planning.image_sizes import megapixels
    from multi_dnn_ros.planning.predictor import read_predictor
    from multi_dnn_ros.planning.service import MAX_LOST_SHARE, lost_frames, random_demands
    from multi_dnn_ros.training.scenes import SceneGenerator

    if args.output is not None:
        check_writable("--output", args.output)
    config = read_config(args)
    rates = _rates(args, config)
    predictor = read_predictor(args.predictor) if args.predictor is not None else None
    pipeline = build(config)
    predictor = predictor or pipeline.predictor
    make_engine = engine_factory(config, pipeline)
    width, height = args.size
    image = SceneGenerator(width, height, args.seed).scene(0).image
    services, unpredicted = service_times(config, pipeline, image, args.frames, predictor)
    if unpredicted:
        print(f"measured, because the predictor does not know: {'; '.join(unpredicted[:3])}")
    decoding: list[Decoding] = []
    if args.mixes:
        cases = random_demands(services, pipeline.servers, args.mixes, args.seed)
    else:
        cases = [make_demands(config, pipeline, services, rates)]
        decoding = [
            Decoding(name, rates[name], decode_ms(camera.transport) * megapixels(args.size))
            for name, camera in config.cameras.items()
        ]
    entries, right = [], 0
    for number, demands in enumerate(cases):
        verdict = check_fit(demands, pipeline.servers, gpu=pipeline.device.type == "cuda", unpredicted=unpredicted,
                            decoding=decoding, cores=cpu_count())  # fmt: skip
        print("\n".join((f"mix {number}:" if args.mixes else "", *_lines(verdict))).lstrip("\n"))
        entry = _entry(demands, verdict)
        if args.verify:
            cameras = {of.dnn: of.cameras for of in demands}
            # Mixes have no deadlines.
            lost = lost_frames(pipeline.tasks, cameras, make_engine, image, args.verify, late=not args.mixes)
            served = max(lost.values()) <= MAX_LOST_SHARE
            right += served == verdict.fits
            print(
                f"frames sent for {args.verify:g} s: {'served' if served else 'not served'}, lost "
                + ", ".join(f"{name} {part:.1%}" for name, part in lost.items())
            )
            entry |= {"lost": lost, "served": served}
        entries.append(entry)
    if args.verify:
        print(f"verdict correct in {right} of {len(cases)} cases")
    if args.output is not None:
        summary = {"workers": pipeline.servers, "device": str(pipeline.device), "unpredicted": list(unpredicted),
                   "services_ms": {name: vars(of) for name, of in services.items()}}  # fmt: skip
        verified = {"seconds": args.verify, "right": right, "of": len(cases)} if args.verify else None
        write_json(args.output, {**provenance(), **summary, "verified": verified, "cases": entries})
        print(f"written to {args.output}")
    return 0 if args.mixes or all(entry["fits"] for entry in entries) else 1


def _rates(args: argparse.Namespace, config: NodeConfig) -> dict[str, float]:
    rates = {name: camera.rate_hz or _RATE for name, camera in config.cameras.items()}
    for camera, hz in args.rate:
        if camera not in rates:
            raise UsageError(f"--rate names camera '{camera}'; the parameters have {', '.join(rates)}")
        rates[camera] = hz
    return rates


def _lines(verdict: Verdict) -> list[str]:
    return [verdict.text, *(f"  {advice}" for advice in verdict.advice)]


def _entry(demands: Sequence[Demand], verdict: Verdict) -> dict[str, Any]:
    return {
        "hz": {of.dnn: dict(of.cameras) for of in demands},
        "fits": verdict.fits,
        "utilization": verdict.utilization,
        "needs": verdict.needs,
        "text": verdict.text,
        "advice": list(verdict.advice),
    }


def _rate(text: str) -> tuple[str, float]:
    camera, _, hz = text.partition("=")
    return camera_name(camera), positive_float(hz)
