"""Time the layers of DNNs, and predict whether DNNs fit this machine.

`layers` times every layer of a network. `contention` and `learn` make a predictor of layer times under load. `fit` says
whether the DNNs of a parameter file keep up with their cameras. `training` times the layers of a distributed training
step. Stop other programs meanwhile: times of a busy machine are too long.

examples:
  multi-dnn profile layers builtin:object
  multi-dnn profile fit --params-file config/multi_dnn.yaml --rate front=30
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.cli import networks, options
from multi_dnn_ros.cli.figures import progress_bar, rows_table, write_figures
from multi_dnn_ros.cli.options import Commands, add_command, add_options, natural, positive, positive_float
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.common.extras import require
from multi_dnn_ros.settings.forms import TRAINING_PRECISIONS

if TYPE_CHECKING:
    from multi_dnn_ros.planning.timing import Target

#: Rate of a camera without parameter rate_hz, in Hz.
_RATE = 10.0


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    actions = options.add_subcommands(add_command(commands, "profile", __doc__), "action")

    parser = add_command(actions, "layers", layers.__doc__, layers)
    add_options(parser, "model", "--size")
    add = parser.add_argument
    add("--jobs", type=positive, default=4, metavar="N", help="jobs that the network is cut into (default: 4)")
    add("--cut", choices=("estimate", "measured"), default="estimate",
        help="what is balanced between the jobs: estimated or measured times (default: estimate)")  # fmt: skip
    _add_target(parser, repeats=25)
    add_options(parser, "--output", metavar="DIR", help="folder for profile.json, layers.csv and roofline.png")

    parser = add_command(actions, "contention", contention.__doc__, contention)
    add_options(parser, "models")
    add_options(parser, "--output", metavar="CSV", required=True, help="table to write or to continue")
    parser.add_argument("--levels", type=lambda text: tuple(dict.fromkeys(map(natural, text.split(",")))),
                        default=(0, 1, 2, 4, 8), metavar="N,...",
                        help="numbers of background threads or streams (default: 0,1,2,4,8)")  # fmt: skip
    _add_target(parser, repeats=10, threads=1)

    parser = add_command(actions, "learn", learn.__doc__, learn, libraries=("sklearn",))
    parser.add_argument("tables", metavar="CSV", nargs="+", type=Path, help="tables of `multi-dnn profile contention`")
    add_options(parser, "--output", metavar="DIR", required=True, help="folder for predictor.json and learnt.json")

    parser = add_command(actions, "fit", fit.__doc__, fit)
    add_options(parser, "--params-file", "--output")
    parser.add_argument("--predictor", type=Path, metavar="JSON", help="predictor.json of `learn` (default: none)")
    add_options(parser, "--device", **options.CONFIGURED_DEVICE)
    rate = options.assignment("=", "CAMERA=HZ", positive_float)
    parser.add_argument("--rate", type=rate, action="append", default=[], metavar="CAMERA=HZ",
                        help="frames per second of a camera; may be repeated (default: the camera's parameter "
                        f"rate_hz, or {_RATE:g})")  # fmt: skip

    parser = add_command(actions, "training", training.__doc__, training)
    add_options(parser, "model", "--size", "--device")
    add = parser.add_argument
    add("--processes", type=positive, metavar="N",
        help="processes, each on its own GPU or on a part of the CPU's cores (default: one per GPU, or 2)")  # fmt: skip
    add_options(parser, "--batch", default=8, help="images per process (default: 8)")
    add_options(parser, "--precision", choices=TRAINING_PRECISIONS, default="bf16",
                help="precision of the forward pass on a GPU; CPUs compute in fp32 (default: bf16)")  # fmt: skip
    add_options(parser, "--repeats", default=10)
    add("--bucket-mib", type=positive_float, default=25.0, metavar="MIB",
        help="size of the messages, which hold the gradients of several layers (default: %(default)s)")  # fmt: skip
    add_options(parser, "--output", metavar="DIR", help="folder for training.json and layers.csv")


def _add_target(parser: argparse.ArgumentParser, *, repeats: int, threads: int = 0) -> None:
    add_options(parser, "--device", "--backend", "--precision")
    add_options(parser, "--batch", default=1)
    add_options(parser, "--repeats", default=repeats)
    parser.add_argument("--threads", type=natural, default=threads, metavar="N",
                        help="CPU threads; 0: one per core (default: %(default)s)")  # fmt: skip


@contextmanager
def _open_target(args: argparse.Namespace) -> Iterator[Target]:
    """The device and backend of the options. PyTorch uses --threads threads inside the context."""
    import torch

    from multi_dnn_ros.common.resources import cpu_count
    from multi_dnn_ros.profiling.limits import torch_threads

    target = networks.read_target(args)
    with torch_threads(args.threads or (cpu_count() if target.device.type == "cpu" else torch.get_num_threads())):
        yield target


def layers(args: argparse.Namespace) -> int:
    """Time every layer and job of a network, compared with the device's limits.

    Every layer is timed by the backend that serves it. Its bound is that of the roofline model: the longer of its
    arithmetic at the device's highest rate and its bytes at the highest memory bandwidth, which are measured first.

    examples:
      multi-dnn profile layers torchvision:resnet50 --jobs 8 --cut measured --output out/profile
    """
    if args.output is not None:
        require("--output", "matplotlib")
    networks.check_files(args)
    from multi_dnn_ros.common.reporting import provenance
    from multi_dnn_ros.profiling import layer_profile
    from multi_dnn_ros.profiling.limits import measure_limits
    from multi_dnn_ros.profiling.network import load

    with _open_target(args) as target, progress_bar(args.model) as progress:
        profile = layer_profile.profile_network(
            load(args.model, size=args.size), target, measure_limits(target), jobs=args.jobs,
            measured_cut=args.cut == "measured", progress=progress,
        )  # fmt: skip
    print(f"{profile.model}: {len(profile.layers)} layers, {profile.target}\n")
    for text in (layer_profile.layer_table, layer_profile.kind_table, layer_profile.job_table):
        print(text(profile), end="\n\n")
    print(*layer_profile.closing_lines(profile), sep="\n")
    if args.output is not None:
        layer_profile.write_profile(args.output, profile, **provenance(), cut=args.cut)
        print(f"written to {args.output}")
    return 0


def contention(args: argparse.Namespace) -> int:
    """Time layers under background load and write a table.

    Every layer of the models is timed while background threads (on a CPU) or streams (on a GPU) repeat one kind of
    load: products of matrices, copies of memory larger than the caches, or the first MODEL as a whole. The CSV file
    has a row per layer and load. An interrupted command continues when it is started again; other models and levels
    are added to an existing table.

    examples:
      multi-dnn profile contention torchvision:resnet18 builtin:lane --output samples.csv
    """
    networks.check_files(args)
    from multi_dnn_ros.profiling.contention import loads_of, machine_of, measure_contention
    from multi_dnn_ros.profiling.limits import measure_limits
    from multi_dnn_ros.profiling.network import load

    with _open_target(args) as target:
        found = [load(model) for model in args.models]
        machine = machine_of(target, measure_limits(target))
        with progress_bar("contention", "load") as progress:
            rows = measure_contention(
                found, target, machine, loads_of(("compute", "memory", "dnn"), args.levels), args.output,
                load_network=found[0], progress=progress,
            )  # fmt: skip
    print(f"{len(rows)} layer times under {len({row.load for row in rows})} loads; written to {args.output}")
    return 0


def learn(args: argparse.Namespace) -> int:
    """Learn a predictor of layer times from tables of `contention`.

    A decision tree per kind of layer shows which quantities determine its time. A linear model and a random forest are
    scored on networks and load levels that were held out, beside a baseline; the better one is predictor.json.

    examples:
      multi-dnn profile learn samples.csv --output out/learnt
    """
    from tqdm import tqdm

    from multi_dnn_ros.profiling.importances import importances
    from multi_dnn_ros.profiling.learn import learn as learn_from
    from multi_dnn_ros.profiling.predictor import write_predictor
    from multi_dnn_ros.profiling.samples import read_samples

    samples = [sample for path in args.tables for sample in read_samples(path)]
    with tqdm(unit="group", desc="held out", disable=None, leave=False) as bar:
        predictor, scores = learn_from(samples, bar.update)
    found = importances(samples)
    print("\n".join(importance.text() for importance in found), end="\n\n")
    methods = dict.fromkeys(name for each in scores for name in each.layer)
    rows = [
        {"held out": each.held_out, "error of a": what, **{name: errors.get(name) for name in methods}}
        for each in scores
        for what, errors in (("layer", each.layer), ("network", each.network))
    ]
    print(f"median absolute error, as a share of the time\n\n{rows_table(rows)}\n")
    best = predictor.model.regressor
    print(f"chosen: {best}, for {predictor.device}, {predictor.backend}")
    write_predictor(args.output / "predictor.json", predictor)
    write_figures(args.output / "learnt.json", {
        "device": predictor.device, "backend": predictor.backend,
        "models": sorted({sample.model for sample in samples}), "samples": len(samples), "regressor": best,
        "median_absolute_errors": [vars(each) for each in scores],
        "importances": [{**vars(each), "text": each.text()} for each in found],
    })  # fmt: skip
    return 0


def fit(args: argparse.Namespace) -> int:
    """Say whether the DNNs of a parameter file keep up with given camera rates.

    The time of each DNN is measured on black images of 640x480 pixels while the others run, too, or predicted
    from its layers (--predictor). From these follow the utilization of the device and a bound of the time from an image
    to its result, without decoding, which is compared with `deadline_ms`.

    Exit code 0: fits; 1: does not fit.

    examples:
      multi-dnn profile fit --params-file my_robot.yaml --rate front=30
    """
    config = options.read_config(args)
    rates = {name: camera.rate_hz or _RATE for name, camera in config.cameras.items()}
    for camera, hz in args.rate:
        if camera not in rates:
            raise UsageError(f"--rate names camera '{camera}'; the parameters have {', '.join(rates)}")
        rates[camera] = hz
    from multi_dnn_ros.profiling.predictor import read_predictor
    from multi_dnn_ros.serving.build import build
    from multi_dnn_ros.serving.configure import measure_fit

    predict = None if args.predictor is None else read_predictor(args.predictor).predict_dnn
    pipeline = build(config)
    found = measure_fit(config, pipeline, rates, predict)
    verdict = found.verdict()
    if found.unpredicted:
        print(f"measured, because the predictor does not know: {'; '.join(found.unpredicted[:3])}")
    for demand in found.demands:
        print(f"{demand.dnn}: {demand.inference_ms:.2f} ms per inference (of {demand.batch}), at most "
              f"{found.latency_ms(demand):.1f} ms from image to result")  # fmt: skip
    print("\n".join((verdict.text, *(f"  {advice}" for advice in verdict.advice))))
    write_figures(args.output, {"device": str(pipeline.device), **asdict(found), "verdict": asdict(verdict)})
    return 0 if verdict.fits else 1


def training(args: argparse.Namespace) -> int:
    """Time a distributed training step layer by layer.

    Several processes train copies of a network on random images with PyTorch's DistributedDataParallel; forward and
    backward pass and all-reduce of each module are timed. Processes on several hosts are started by torchrun:

      torchrun --nnodes 2 --nproc-per-node N ... -m multi_dnn_ros.cli.main profile training MODEL

    examples:
      multi-dnn profile training torchvision:resnet50 --processes 2 --batch 64 --output out/training
    """
    networks.check_files(args)
    # Read when PyTorch is loaded: its profiler reports an error on machines without a GPU.
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    import torch

    from multi_dnn_ros.backends.eager import Eager
    from multi_dnn_ros.common.reporting import provenance
    from multi_dnn_ros.common.resources import cpu_count
    from multi_dnn_ros.planning.timing import Target
    from multi_dnn_ros.profiling import training_report
    from multi_dnn_ros.profiling.limits import measure_limits, torch_threads
    from multi_dnn_ros.profiling.processes import local_processes, run_here, run_processes
    from multi_dnn_ros.profiling.training import measure_training
    from multi_dnn_ros.serving.choices import choose_device

    device = choose_device(args.device, "--device is")
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    processes = local_processes() or args.processes or gpus or 2
    if gpus and processes > gpus:
        raise UsageError(f"--processes is {processes}, but PyTorch sees {gpus} GPUs here; at most one process per GPU")
    precision = args.precision if gpus else "fp32"
    threads = max(1, cpu_count() // processes)
    work = partial(
        measure_training, model=args.model, size=args.size, batch=args.batch, precision=precision, repeats=args.repeats,
        threads=threads, bucket_mib=args.bucket_mib,
    )  # fmt: skip
    with progress_bar(args.model, "step") as progress:
        profile = (
            run_here(work, device, progress) if local_processes()
            else run_processes(work, processes, device, progress)
        )  # fmt: skip
    if profile is None:  # another process prints
        return 0
    target = Target(device, "eager", Eager, "auto" if precision == "fp32" else precision)
    with torch_threads(threads):
        limits = measure_limits(target)
        print(f"{args.model}: {profile.processes} processes, {args.batch} images each, {target.device_name}\n")
    print(training_report.layer_table(profile, limits), end="\n\n")
    print("\n".join(training_report.closing_lines(profile, limits)))
    if args.output is not None:
        training_report.write_profile(args.output, profile, limits, **provenance())
        print(f"written to {args.output}")
    return 0
