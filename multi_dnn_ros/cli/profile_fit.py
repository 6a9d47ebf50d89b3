"""``multi-dnn profile fit``: whether DNNs at given camera rates fit this machine."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.arguments import camera_name, natural, positive, positive_float, size
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.options import add_device, add_output, add_params_file, add_seed, check_writable, read_config
from multi_dnn_ros.common.errors import UsageError

if TYPE_CHECKING:
    from multi_dnn_ros.engine import DnnTask
    from multi_dnn_ros.pipeline.pipeline import Pipeline
    from multi_dnn_ros.planning.fit import Demand, Verdict
    from multi_dnn_ros.planning.image_sizes import Fit
    from multi_dnn_ros.planning.predictor import Predictor
    from multi_dnn_ros.planning.service import Image, Service
    from multi_dnn_ros.settings.schema import NodeConfig

_DETAILS = """\
If the DNNs of the parameter file cannot serve its cameras at the given rates, the command names the DNN that exceeds
the machine's capacity and what would help. The cost of a frame is measured, alone and with all DNNs running, or
predicted from its layers (--predictor); layers that the predictor does not know are measured.

Exit code 0: fits; 1: does not fit, or --verify found that the frames are not served in time. With --mixes it is 0.
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
        help="size of the camera images in pixels (default: 640x480)")  # fmt: skip
    add("--frames", type=positive, default=20, metavar="N", help="frames measured per DNN (default: %(default)s)")
    add("--verify", type=positive_float, metavar="S",
        help="afterwards send decoded frames for this many seconds and check that they are served in time")  # fmt: skip
    add("--mixes", type=natural, default=0, metavar="N",
        help="instead of the rates, predict N random mixes of these DNNs near capacity (default: 0)")  # fmt: skip
    add_seed(parser, "the mixes")
    add_output(parser, "write the predictions to this JSON file")


def _run(args: argparse.Namespace) -> int:
    from multi_dnn_ros.common.reporting import provenance, write_json
    from multi_dnn_ros.pipeline.build import build
    from multi_dnn_ros.pipeline.fit_check import engine_factory
    from multi_dnn_ros.planning.predictor import read_predictor
    from multi_dnn_ros.planning.service import MAX_LOST_SHARE, lost_frames

    if args.output is not None:
        check_writable("--output", args.output)
    config = read_config(args)
    rates = _rates(args, config)
    predictor = read_predictor(args.predictor) if args.predictor is not None else None
    pipeline = build(config)
    make_engine = engine_factory(config, pipeline)
    predictor = predictor or pipeline.predictor
    if args.mixes:
        measured = _measure_mixes(args, config, pipeline, predictor)
    else:
        measured = _measure_rates(args, config, pipeline, predictor, rates)
    if measured.unpredicted:
        print(f"measured, because the predictor does not know: {'; '.join(measured.unpredicted[:3])}")
    services_ms = {name: vars(service) for name, service in measured.services.items()}
    summary = {"workers": pipeline.servers, "device": str(pipeline.device),
               "unpredicted": list(measured.unpredicted), "services_ms": services_ms}  # fmt: skip
    entries, correct = list[dict[str, Any]](), 0
    for number, (demands, verdict) in enumerate(measured.cases):
        print("\n".join((f"mix {number}:" if args.mixes else "", *_lines(verdict))).lstrip("\n"))
        entry = _entry(demands, verdict)
        if args.verify:
            cameras = {demand.dnn: demand.cameras for demand in demands}
            # Mixes have no deadlines.
            lost = lost_frames(measured.tasks, cameras, make_engine, measured.images, args.verify, late=not args.mixes)
            served = max(lost.values()) <= MAX_LOST_SHARE
            correct += served == verdict.fits
            print(
                f"frames sent for {args.verify:g} s: {'served' if served else 'not served'}, lost "
                + ", ".join(f"{name} {part:.1%}" for name, part in lost.items())
            )
            entry |= {"lost": lost, "served": served}
        entries.append(entry)
        if args.output is not None:  # after each case, as verifying many takes long
            verified = {"seconds": args.verify, "right": correct, "of": len(entries)} if args.verify else None
            write_json(args.output, {**provenance(), **summary, "verified": verified, "cases": entries})
    if args.verify:
        print(f"verdict correct in {correct} of {len(entries)} cases")
    if args.output is not None:
        print(f"written to {args.output}")
    return 0 if args.mixes or all(entry["fits"] and entry.get("served", True) for entry in entries) else 1


@dataclass(frozen=True)
class _Measured:
    """services: the service times of each DNN. unpredicted: see Verdict. cases: the demands of each, with the verdict.

    tasks, images: for --verify; one image per camera, or one for all.
    """

    services: Mapping[str, Service]
    unpredicted: Sequence[str]
    cases: Sequence[tuple[Sequence[Demand], Verdict]]
    tasks: Sequence[DnnTask]
    images: Image | Mapping[str, Image]


def _measure_rates(
    args: argparse.Namespace,
    config: NodeConfig,
    pipeline: Pipeline,
    predictor: Predictor | None,
    rates: Mapping[str, float],
) -> _Measured:
    """The node's own check, for these rates."""
    from multi_dnn_ros.pipeline.fit_check import measure_fit
    from multi_dnn_ros.planning.service import Service

    sizes = dict.fromkeys(config.cameras, args.size)
    fit = measure_fit(config, pipeline, sizes, rates, predictor, args.frames)
    for name, camera in fit.cameras.items():
        if camera.size != args.size:
            print(f"camera {name}: images of {camera.size[0]} x {camera.size[1]}; its DNNs need at least this size")
    services = {each.dnn: Service(each.alone_ms, each.crowded_ms, each.shared_ms, each.batch) for each in fit.demands}
    images = {name: _scene(camera.size, args.seed) for name, camera in fit.cameras.items()}
    tasks = [_after_decoding(task, fit) for task in pipeline.tasks]
    return _Measured(services, fit.unpredicted, [(fit.demands, fit.verdict())], tasks, images)


def _measure_mixes(
    args: argparse.Namespace, config: NodeConfig, pipeline: Pipeline, predictor: Predictor | None
) -> _Measured:
    """Random mixes of the DNNs near capacity, without decoding of images."""
    from multi_dnn_ros.pipeline.fit_check import enlarged, service_times
    from multi_dnn_ros.planning.fit import check_fit
    from multi_dnn_ros.planning.service import random_demands

    image = _scene(enlarged(args.size, pipeline.tasks), args.seed)
    services, unpredicted = service_times(config, pipeline, image, args.frames, predictor)
    gpu = pipeline.device.type == "cuda"
    cases = [
        (demands, check_fit(demands, pipeline.servers, gpu=gpu, unpredicted=unpredicted))
        for demands in random_demands(services, pipeline.servers, args.mixes, args.seed)
    ]
    return _Measured(services, unpredicted, cases, pipeline.tasks, image)


def _scene(size: tuple[int, int], seed: int) -> Image:
    from multi_dnn_ros.training.scenes import SceneGenerator

    return SceneGenerator(*size, seed).scene(0).image


def _after_decoding(task: DnnTask, fit: Fit) -> DnnTask:
    """The DNN with the part of its deadline that is left after decoding, because --verify sends decoded frames."""
    from multi_dnn_ros.planning.image_sizes import megapixels

    if task.deadline_ns is None:
        return task
    of_cameras = (fit.cameras[name] for name in task.cameras)
    decoding_ms = max(camera.decode_ms * megapixels(camera.size) for camera in of_cameras)
    return replace(task, deadline_ns=max(1, task.deadline_ns - round(1e6 * decoding_ms)))


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
        "hz": {demand.dnn: dict(demand.cameras) for demand in demands},
        "fits": verdict.fits,
        "utilization": verdict.utilization,
        "needs": verdict.needs,
        "text": verdict.text,
        "advice": list(verdict.advice),
    }


def _rate(text: str) -> tuple[str, float]:
    camera, separator, hz = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"'{text}' is not CAMERA=HZ")
    return camera_name(camera), positive_float(hz)
