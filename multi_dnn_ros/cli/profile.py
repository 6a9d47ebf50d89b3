"""``multi-dnn profile``: the time of every layer, alone, under load and in training, and predictions from it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.cli import profile_fit
from multi_dnn_ros.cli.arguments import natural, positive, positive_float, size
from multi_dnn_ros.cli.commands import Commands, add_command, add_subcommands
from multi_dnn_ros.cli.network_arguments import add_model, check_backend
from multi_dnn_ros.cli.options import add_device, check_writable
from multi_dnn_ros.cli.progress import progress_bar
from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.errors import UsageError
from multi_dnn_ros.common.extras import require
from multi_dnn_ros.settings.precisions import TRAINING_PRECISIONS

if TYPE_CHECKING:
    from multi_dnn_ros.planning.timing import Target

_DETAILS = """\
`layers` times every layer of a network. `contention` and `learn` make a predictor of layer times under load. `fit` says
whether the DNNs of a parameter file keep up with their cameras. `training` times the layers of a distributed training
step. Stop other programs meanwhile: times of a busy machine are too long.
"""
_EXAMPLES = """\
multi-dnn profile layers builtin:object
multi-dnn profile contention torchvision:resnet18 builtin:lane builtin:object --output samples.csv
multi-dnn profile learn samples.csv --output out/learnt
multi-dnn profile layers torchvision:resnet34 --jobs 8 --cut predicted --predictor out/learnt/predictor.json
multi-dnn profile fit --params-file config/multi_dnn.yaml --rate front=30
multi-dnn profile training torchvision:resnet50 --processes 2 --batch 64
"""
_LAYERS = """\
Every layer is timed as a stage of its own, by the backend that serves it, with the data that it finds in the network.
The command prints the slowest layers, the kinds of layers, the jobs, and the sum of the layers beside the network.

The bound of a layer is that of the roofline model: the longer of its arithmetic at the device's highest rate and its
bytes at the highest memory bandwidth. Both rates are measured first. A layer can be faster than
its bound if its data is in a cache.
"""
_LAYERS_EXAMPLES = """\
multi-dnn profile layers torchvision:resnet50 --jobs 8 --cut measured --output out/profile
multi-dnn profile layers people.onnx --device cuda --backend cuda_graph --precision fp16
"""
_CONTENTION = """\
Every layer of the models is timed while background threads (on a CPU) or streams (on a GPU) repeat one kind of load:

  compute   products of matrices
  memory    copies of memory larger than the caches
  dnn       a whole network, the first MODEL

The CSV file has a row per layer and load, and is the input of `multi-dnn profile learn`. The rows of each model and
load are written as soon as they are measured; an interrupted command continues when it is started again, and other
models, loads and levels are added to an existing table.
"""
_LEARN = """\
Two things are learned from tables of `multi-dnn profile contention`. A decision tree per kind of layer shows which
quantities determine its time. Two regressors predict times: a linear model (arithmetic and bytes at the limits of the
device, launches, each times the load) and a random forest.

Both are scored on networks and load levels that were held out, one after another, beside two baselines. The one with
the smaller mean error is written to predictor.json.
"""
_TRAINING = """\
Several processes train copies of a network on random images with PyTorch's DistributedDataParallel. For each module the
command prints the times of its forward and backward pass and of the all-reduce of its gradients, from the profiler's
traces, its operations and bytes, and the bound of the device's roofline. Communication is exposed while nothing else is
computed. Processes on several hosts are started by torchrun:

  torchrun --nnodes 2 --nproc-per-node N ... -m multi_dnn_ros.cli.main profile training MODEL
"""
_TRAINING_EXAMPLES = """\
multi-dnn profile training torchvision:resnet50 --processes 2 --batch 64 --output out/training
multi-dnn profile training torchvision:vgg16 --bucket-mib 0.001   # an all-reduce for every parameter
"""
_LOADS = ("compute", "memory", "dnn")


def add_parser(subparsers: Commands[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = add_command(
        subparsers, "profile", "time the layers of DNNs, and predict whether DNNs fit this machine",
        details=_DETAILS, examples=_EXAMPLES,
    )  # fmt: skip
    actions = add_subcommands(parser, "action")
    _add_layers(actions)
    _add_contention(actions)
    _add_learn(actions)
    profile_fit.add_action(actions)
    _add_training(actions)


def _add_layers(actions: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        actions, "layers", "time every layer and job of networks, compared with the device's limits",
        details=_LAYERS, examples=_LAYERS_EXAMPLES, run=_layers,
    )  # fmt: skip
    add_model(parser, several=True, what="networks to profile")
    add = parser.add_argument
    _add_size(parser)
    add("--jobs", type=positive, default=4, metavar="N",
        help="jobs that the network is cut into (default: %(default)s)")  # fmt: skip
    add("--cut", choices=("estimate", "measured", "predicted"), default="estimate",
        help="what is balanced between the jobs: estimated cost (operations and bytes), measured or predicted times "
        "(default: %(default)s)")  # fmt: skip
    add("--predictor", type=Path, metavar="JSON",
        help="for --cut predicted: predictor.json of `multi-dnn profile learn`")  # fmt: skip
    _add_target(parser, repeats=25, threads="0; with --predictor: as many as it was trained with")
    add("--output", type=Path, metavar="DIR",
        help="folder for profile.json, layers.csv and roofline.png; with several models a subfolder each")  # fmt: skip


def _add_contention(actions: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        actions, "contention", "time layers under background load and write a table", details=_CONTENTION,
        examples="multi-dnn profile contention torchvision:resnet18 builtin:lane --output samples.csv",
        run=_contention,
    )  # fmt: skip
    add_model(parser, several=True, what="networks to time")
    add = parser.add_argument
    add("--output", type=Path, required=True, metavar="CSV", help="table to write or to continue")
    add("--loads", type=_loads, default=_LOADS, metavar="LOAD,...",
        help="kinds of load (default: compute,memory,dnn)")  # fmt: skip
    add("--levels", type=_numbers, default=(0, 1, 2, 4, 8), metavar="N,...",
        help="numbers of background threads or streams (default: 0,1,2,4,8)")  # fmt: skip
    _add_target(parser, repeats=10, threads="1")


def _add_learn(actions: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        actions, "learn", "learn a predictor of layer times from tables of `contention`", details=_LEARN,
        examples="multi-dnn profile learn samples.csv --output out/learnt", run=_learn,
        libraries=("sklearn",),
    )  # fmt: skip
    add = parser.add_argument
    add("tables", metavar="CSV", nargs="+", type=Path, help="tables of `multi-dnn profile contention`")
    add("--output", type=Path, required=True, metavar="DIR",
        help="folder for predictor.json and learnt.json")  # fmt: skip


def _add_training(actions: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        actions, "training", "time a distributed training step layer by layer", details=_TRAINING,
        examples=_TRAINING_EXAMPLES, run=_training,
    )  # fmt: skip
    add_model(parser, what="network to train")
    add = parser.add_argument
    _add_size(parser)
    add("--processes", type=positive, metavar="N",
        help="processes, each on its own GPU or on a part of the CPU's cores (default: one per GPU, or 2)")  # fmt: skip
    add("--batch", type=positive, default=8, metavar="N", help="images per process (default: %(default)s)")
    add_device(parser)
    add("--precision", choices=TRAINING_PRECISIONS, default="bf16",
        help="precision of the forward pass on a GPU; CPUs compute in fp32 (default: %(default)s)")  # fmt: skip
    add("--repeats", type=positive, default=10, metavar="N",
        help="steps of each kind, of which medians are reported (default: %(default)s)")  # fmt: skip
    add("--bucket-mib", type=positive_float, default=25.0, metavar="MIB",
        help="size of the messages, which hold the gradients of several layers (default: %(default)s)")  # fmt: skip
    add("--output", type=Path, metavar="DIR", help="folder for training.json and layers.csv")


def _add_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=size, metavar="WxH", help="input size in pixels (default: the model's own)")


def _add_target(parser: argparse.ArgumentParser, *, repeats: int, threads: str) -> None:
    group = parser.add_argument_group("how to measure")
    add = group.add_argument
    add_device(group)
    backends = ", ".join(("auto", *extensions.names(extensions.BACKENDS)))
    add("--backend", default="auto", metavar="NAME",
        help=f"backend, as parameter dnn.<dnn>.backend of the node: {backends} (default: %(default)s)")  # fmt: skip
    add("--precision", choices=("auto", "fp16", "bf16"), default="auto", help="precision (default: %(default)s)")
    add("--batch", type=positive, default=1, metavar="N", help="images per inference (default: %(default)s)")
    add("--threads", type=natural, metavar="N",
        help=f"threads inside one CPU operation; 0: one per core (default: {threads})")  # fmt: skip
    add("--repeats", type=positive, default=repeats, metavar="N",
        help="repeats, of which medians are reported (default: %(default)s)")  # fmt: skip


@contextmanager
def _open_target(args: argparse.Namespace, threads: int = 0) -> Iterator[Target]:
    """The device and backend of the options. PyTorch uses --threads threads inside the context.

    threads: number if --threads is not given; 0: one per core.
    """
    import torch

    from multi_dnn_ros.common.reporting import cpu_count
    from multi_dnn_ros.common.torch_threads import torch_threads
    from multi_dnn_ros.pipeline import choices
    from multi_dnn_ros.planning.timing import Target
    from multi_dnn_ros.profiling.limits import busy_warning

    check_backend(args)
    device = choices.choose_device(args.device, "--device is")
    name = choices.check_backend(
        args.backend, device, args.precision, backend_from="--backend", precision_from="--precision"
    )
    wanted = threads if args.threads is None else args.threads
    threads = wanted or (cpu_count() if device.type == "cpu" else torch.get_num_threads())
    make_backend = partial(
        choices.choose_backend, name, device, args.precision,
        providers=choices.automatic_providers(args.backend, device),
    )  # fmt: skip
    if busy := busy_warning(device):
        print(f"warning: {busy}")
    with torch_threads(threads):
        yield Target(device, name, make_backend, args.precision, args.batch, args.repeats)


def _layers(args: argparse.Namespace) -> int:
    folders = [args.output] if len(args.models) == 1 else [
        args.output and args.output / Path(model).name.replace(":", "_") for model in args.models
    ]  # fmt: skip
    if args.output is not None:
        require("--output", "matplotlib")
        check_writable("--output", args.output / "profile.json")
        if len(set(folders)) < len(folders):
            raise UsageError("--output: two models have the same name; profile them separately")
    if (args.cut == "predicted") != (args.predictor is not None):
        raise UsageError("--cut predicted and --predictor must be given together")
    from multi_dnn_ros.common.reporting import provenance
    from multi_dnn_ros.planning.predictor import read_predictor
    from multi_dnn_ros.profiling import layer_profile
    from multi_dnn_ros.profiling.limits import measure_limits
    from multi_dnn_ros.profiling.network import load

    predictor = None if args.predictor is None else read_predictor(args.predictor)
    with _open_target(args, threads=predictor.threads if predictor is not None else 0) as target:
        networks = [load(model, size=args.size) for model in args.models]
        limits = measure_limits(target)
        for network, folder in zip(networks, folders, strict=True):
            with progress_bar(network.name) as progress:
                profile = layer_profile.profile_network(
                    network, target, limits, jobs=args.jobs, measured_cut=args.cut == "measured",
                    predictor=predictor, progress=progress,
                )  # fmt: skip
            print(f"\n{profile.model}: {len(profile.layers)} layers, {profile.target}\n")
            for text in (layer_profile.layer_table, layer_profile.kind_table, layer_profile.job_table):
                print(text(profile), end="\n\n")
            print("\n".join(layer_profile.closing_lines(profile)))
            if profile.unpredicted:
                print(f"cut by estimated cost, because the predictor does not cover it: {profile.unpredicted[0]}")
            if folder is not None:
                layer_profile.write_profile(folder, profile, **provenance(), cut=args.cut)
                print(f"written to {folder}")
    return 0


def _contention(args: argparse.Namespace) -> int:
    check_writable("--output", args.output)
    from multi_dnn_ros.profiling.contention import loads_of, machine_of, measure_contention
    from multi_dnn_ros.profiling.limits import measure_limits
    from multi_dnn_ros.profiling.network import load

    with _open_target(args, threads=1) as target:
        networks = [load(model) for model in args.models]
        machine = machine_of(target, measure_limits(target))
        with progress_bar("contention", "load") as progress:
            rows = measure_contention(
                networks, target, machine, loads_of(args.loads, args.levels), args.output, load_network=networks[0],
                progress=progress,
            )  # fmt: skip
    print(f"{len(rows)} layer times under {len({row.load for row in rows})} loads; written to {args.output}")
    return 0


def _learn(args: argparse.Namespace) -> int:
    check_writable("--output", args.output / "predictor.json")
    from tqdm import tqdm

    from multi_dnn_ros.common.reporting import provenance, table, write_json
    from multi_dnn_ros.planning.predictor import write_predictor
    from multi_dnn_ros.profiling.importances import importances
    from multi_dnn_ros.profiling.learn import learn
    from multi_dnn_ros.profiling.samples import read_samples

    samples = [sample for path in args.tables for sample in read_samples(path)]
    with tqdm(unit="group", desc="held out", disable=None, leave=False) as bar:
        predictor = learn(samples, progress=bar.update, **provenance())
    found = importances(samples)
    write_predictor(args.output / "predictor.json", predictor)
    figures = {
        "device": predictor.device,
        "backend": predictor.backend,
        **{key: predictor.provenance[key] for key in ("models", "samples", "regressor")},
        "median_absolute_errors": [scores.model_dump() for scores in predictor.scores],
        "importances": [{**vars(importance), "text": importance.text()} for importance in found],
    }
    write_json(args.output / "learnt.json", {**provenance(), **figures})
    print("\n".join(importance.text() for importance in found), end="\n\n")
    methods = list(dict.fromkeys(name for scores in predictor.scores for name in scores.layer))
    rows = [
        [scores.held_out, what, *(f"{errors[method]:.1%}" if method in errors else "" for method in methods)]
        for scores in predictor.scores
        for what, errors in (("layer", scores.layer), ("network", scores.network))
    ]
    print(f"median absolute error\n\n{table(('held out', 'error of a', *methods), rows)}\n")
    best = predictor.provenance["regressor"]
    print(f"chosen: {best}, for {predictor.device}, {predictor.backend}; written to {args.output}")
    return 0


def _training(args: argparse.Namespace) -> int:
    if args.output is not None:
        check_writable("--output", args.output / "training.json")
    # Read when PyTorch is loaded: its profiler reports an error on machines without a GPU.
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    import torch

    from multi_dnn_ros.backends.eager import Eager
    from multi_dnn_ros.common.reporting import cpu_count, provenance
    from multi_dnn_ros.common.torch_threads import torch_threads
    from multi_dnn_ros.pipeline.choices import choose_device
    from multi_dnn_ros.planning.timing import Target
    from multi_dnn_ros.profiling import training_report
    from multi_dnn_ros.profiling.limits import measure_limits
    from multi_dnn_ros.profiling.processes import local_processes, run_here, run_processes
    from multi_dnn_ros.profiling.training import Request, measure_training

    device = choose_device(args.device, "--device is")
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    processes = local_processes() or args.processes or gpus or 2
    if gpus and processes > gpus:
        raise UsageError(f"--processes is {processes}, but PyTorch sees {gpus} GPUs here; at most one process per GPU")
    precision = args.precision if gpus else "fp32"
    threads = max(1, cpu_count() // processes)
    request = Request(args.model, args.size, args.batch, precision, args.repeats, threads, args.bucket_mib)
    with progress_bar(args.model, "step") as progress:
        if local_processes():
            profile = run_here(measure_training, request, device, progress)
        else:
            profile = run_processes(measure_training, request, processes, device, progress)
    if profile is None:  # another process prints
        return 0
    with torch_threads(threads):
        target = Target(device, "eager", Eager, "auto" if precision == "fp32" else precision)
        limits = measure_limits(target)
        print(f"{args.model}: {profile.processes} processes, {args.batch} images each, {target.device_name}\n")
    print(training_report.layer_table(profile, limits), end="\n\n")
    print("\n".join(training_report.closing_lines(profile, limits)))
    if args.output is not None:
        training_report.write_profile(args.output, profile, limits, **provenance())
        print(f"written to {args.output}")
    return 0


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(natural(part) for part in text.split(",")))


def _loads(text: str) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(text.split(",")))
    if not set(chosen) <= set(_LOADS):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of {', '.join(_LOADS)}")
    return chosen
