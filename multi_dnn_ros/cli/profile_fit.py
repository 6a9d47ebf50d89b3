"""``multi-dnn profile fit``: do these DNNs at these rates fit this machine?"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.arguments import camera_name, natural, positive, positive_float, size
from multi_dnn_ros.cli.network_arguments import check_writable
from multi_dnn_ros.common.errors import UsageError

if TYPE_CHECKING:
    from multi_dnn_ros.planning.fit import Demand, Verdict
    from multi_dnn_ros.settings.schema import NodeConfig

_DESCRIPTION = """\
Whether the DNNs of a parameter file can serve its cameras at the given rates on this machine; if not, which DNN breaks
it and what would help. A frame's cost is measured, alone and with all DNNs at work, or predicted from its layers
(--predictor); what the predictor was not taught is measured.

Exit code 0: fits; 1: does not.
"""
_RATE = 10.0


def add_action(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare it."""
    parser = actions.add_parser(
        "fit", help="do these DNNs and rates fit this machine?", description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--params-file", type=Path, help="as for `multi-dnn run` (default: the package's)")
    add("--rate", type=_rate, action="append", default=[], metavar="CAMERA=HZ",
        help=f"frames a second of a camera, repeatable; others: their parameter rate_hz, else {_RATE:g}")  # fmt: skip
    add("--device", help="in place of the parameter file's: auto, cpu, cuda, cuda:<number>")
    add(
        "--predictor",
        type=Path,
        metavar="JSON",
        help="a file of `multi-dnn profile learn` (default: the parameter file's)",
    )
    add("--size", type=size, default=(640, 480), metavar="WxH",
        help="of the cameras' images, whose decoding counts too (default: 640x480)")  # fmt: skip
    add("--frames", type=positive, default=20, help="measured of each DNN (default: %(default)s)")
    add(
        "--verify",
        type=positive_float,
        metavar="SECONDS",
        help="then offer frames for so long, and see whether they are served, and by their deadlines",
    )
    add("--mixes", type=natural, default=0, metavar="N",
        help="judge N random mixes of these DNNs around the machine's capacity in place of the rates")  # fmt: skip
    add("--seed", type=natural, default=0, help="of the mixes (default: %(default)s)")
    add("--output", type=Path, metavar="JSON", help="write the verdicts there")
    parser.set_defaults(run=_run)


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
    config = _config(args)
    rates = _rates(args, config)
    predictor = read_predictor(args.predictor) if args.predictor is not None else None
    pipeline = build(config)
    predictor = predictor or pipeline.predictor
    make_engine = engine_factory(config, pipeline)
    width, height = args.size
    image = SceneGenerator(width, height, args.seed).scene(0).image
    services, doubts = service_times(config, pipeline, image, args.frames, predictor)
    if doubts:
        print(f"measured, as the predictor does not know this: {'; '.join(doubts[:3])}")
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
        verdict = check_fit(demands, pipeline.servers, gpu=pipeline.device.type == "cuda", doubts=doubts,
                            decoding=decoding, cores=cpu_count())  # fmt: skip
        print("\n".join((f"mix {number}:" if args.mixes else "", *_lines(verdict))).lstrip("\n"))
        entry = _entry(demands, verdict)
        if args.verify:
            cameras = {of.dnn: of.cameras for of in demands}
            # What is asked of mixes is no deadline.
            lost = lost_frames(pipeline.tasks, cameras, make_engine, image, args.verify, late=not args.mixes)
            served = max(lost.values()) <= MAX_LOST_SHARE
            right += served == verdict.fits
            print(
                f"offered for {args.verify:g} s: {'served' if served else 'not served'}, lost "
                + ", ".join(f"{name} {part:.1%}" for name, part in lost.items())
            )
            entry |= {"lost": lost, "served": served}
        entries.append(entry)
    if args.verify:
        print(f"right in {right} of {len(cases)}")
    if args.output is not None:
        summary = {"workers": pipeline.servers, "device": str(pipeline.device), "doubts": list(doubts),
                   "services_ms": {name: vars(of) for name, of in services.items()}}  # fmt: skip
        verified = {"seconds": args.verify, "right": right, "of": len(cases)} if args.verify else None
        write_json(args.output, {**provenance(), **summary, "verified": verified, "cases": entries})
        print(f"written to {args.output}")
    return 0 if args.mixes or all(entry["fits"] for entry in entries) else 1


def _config(args: argparse.Namespace) -> NodeConfig:
    from multi_dnn_ros.common.resources import config_file
    from multi_dnn_ros.settings.params_file import read_params_file
    from multi_dnn_ros.settings.schema import NodeConfig

    config = read_params_file(args.params_file or config_file("multi_dnn.yaml"))
    return config if args.device is None else NodeConfig.model_validate({**config.model_dump(), "device": args.device})


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
