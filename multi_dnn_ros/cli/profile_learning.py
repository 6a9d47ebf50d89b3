"""``multi-dnn profile contention`` and ``learn``: layer times under load, and a predictor of them."""

from __future__ import annotations

import argparse
import dataclasses
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.arguments import natural
from multi_dnn_ros.cli.commands import Commands, add_command
from multi_dnn_ros.cli.network_arguments import add_model
from multi_dnn_ros.cli.options import add_seed, check_writable
from multi_dnn_ros.cli.profile_target import add_target, open_target
from multi_dnn_ros.cli.progress import progress_bar

if TYPE_CHECKING:
    from multi_dnn_ros.planning.predictor import Predictor
    from multi_dnn_ros.profiling.analysis import Importance

_CONTENTION = """\
Every layer of the models is timed while background threads (on a CPU) or streams (on a GPU) repeat one kind of load:

  compute   products of matrices that fit in a cache
  memory    copies of memory larger than the caches
  dnn       a whole network (--load-dnn)

The CSV file gets one row per layer and load, and is the input of `multi-dnn profile learn`. The rows of each model and
load are written as soon as they are measured. An interrupted command continues when it is started again; other models,
loads, levels and slices are added to an existing table.
"""
_LEARN = """\
Two things are learned from tables of `multi-dnn profile contention`. A decision tree per kind of layer shows which
quantities determine its time. Three regressors predict times: a linear model (arithmetic at the highest rate, bytes at
full bandwidth, launches), gradient-boosted trees, and the linear model corrected by trees.

The regressors are scored on models and load levels that were held out, one after another, and compared with two
baselines. The regressor with the smallest mean error is written to predictor.json.
"""
_LOADS = ("compute", "memory", "dnn")


def add_actions(actions: Commands[argparse.ArgumentParser]) -> None:
    """Declare contention and learn."""
    parser = add_command(
        actions, "contention", "time layers under background load and write a table", details=_CONTENTION,
        examples="multi-dnn profile contention torchvision:resnet18 builtin:lane --output samples.csv",
        run=_contention,
    )  # fmt: skip
    add_model(parser, several=True, what="networks to time")
    add = parser.add_argument
    add("--output", type=Path, required=True, metavar="CSV", help="table to write")
    add("--loads", type=_loads, default=_LOADS, metavar="LOAD,...",
        help="kinds of load (default: compute,memory,dnn)")  # fmt: skip
    add("--levels", type=_numbers, default=(0, 1, 2, 4, 8), metavar="N,...",
        help="numbers of background threads or streams (default: 0,1,2,4,8)")  # fmt: skip
    add("--load-dnn", default="builtin:object", metavar="MODEL", help="network of load dnn (default: %(default)s)")
    add("--replace", action="store_true", help="start a new table, replacing the existing one")
    add("--slices", type=_numbers, default=(0,), metavar="SMS,...",
        help="numbers of SMs of a GPU to run on, such as 0,16,66; 0: all (default: 0)")  # fmt: skip
    add_target(parser, repeats=10, threads=1)
    parser = add_command(
        actions, "learn", "learn a predictor of layer times from tables of `contention`", details=_LEARN,
        examples="multi-dnn profile learn samples.csv --output out/learnt", run=_learn,
        libraries=("scipy", "sklearn", "matplotlib"),
    )  # fmt: skip
    add = parser.add_argument
    add("tables", metavar="CSV", nargs="+", type=Path, help="tables of `multi-dnn profile contention`")
    add("--output", type=Path, required=True, metavar="DIR",
        help="folder for predictor.json, learnt.json and importances.png")  # fmt: skip
    add_seed(parser, "the trees")


def _contention(args: argparse.Namespace) -> int:
    from multi_dnn_ros.planning.device import busy_warning, default_path, limits_of
    from multi_dnn_ros.profiling.contention import check_slices, loads_of, measure_contention
    from multi_dnn_ros.profiling.contention_table import open_table
    from multi_dnn_ros.profiling.network import load

    check_writable("--output", args.output)
    with ExitStack() as stack:
        target = stack.enter_context(open_target(args))
        check_slices(args.slices, target)
        table = stack.enter_context(open_table(args.output, target.versions(), args.load_dnn, replace=args.replace))
        before = set(table.rows)
        networks = [load(model) for model in args.models]
        busy = busy_warning(target.device)
        if busy:
            print(f"warning: {busy}")
        limits = limits_of(target, args.limits or default_path(), keep=not busy)
        with progress_bar("contention", "block") as progress:
            rows = measure_contention(
                networks,
                target,
                limits,
                loads_of(args.loads, args.levels),
                load_network=load(args.load_dnn) if "dnn" in args.loads else None,
                slices=args.slices,
                table=table,
                seed=args.seed,
                progress=progress,
            )
        conditions = len({(row.load, dataclasses.replace(row.setting, flops_per_s=0, bytes_per_s=0)) for row in rows})
        kept = len(before.intersection(rows))
        earlier = f", {kept} of them from an earlier run" if kept else ""
        print(f"{len(rows)} layer times under {conditions} conditions{earlier}; written to {args.output}")
    return 0


def _learn(args: argparse.Namespace) -> int:
    check_writable("--output", args.output / "predictor.json")
    from tqdm import tqdm

    from multi_dnn_ros.common.reporting import provenance, write_json
    from multi_dnn_ros.planning.predictor import write_predictor
    from multi_dnn_ros.planning.samples import read_samples
    from multi_dnn_ros.profiling.analysis import explain, importances, plot_importances
    from multi_dnn_ros.profiling.learn import learn

    samples = [sample for table in args.tables for sample in read_samples(table)]
    with tqdm(unit="group", desc="held out", disable=None, leave=False) as bar:
        predictor = learn(samples, seed=args.seed, progress=bar.update, **provenance())
    found = importances(samples, args.seed)
    args.output.mkdir(parents=True, exist_ok=True)
    write_predictor(args.output / "predictor.json", predictor)
    plot_importances(args.output / "importances.png", found)
    sentences = [explain(importance) for importance in found]
    if not found:
        print("no kind of layer has enough samples to learn what determines its time")
    write_json(args.output / "learnt.json", {**provenance(), **_figures(predictor, found, sentences)})
    print("\n".join(sentences), end="\n\n")
    print(_scores_table(predictor), end="\n\n")
    best = predictor.provenance["regressor"]
    print(f"chosen: {best}, for {predictor.device}, {predictor.backend}; written to {args.output}")
    return 0


def _figures(predictor: Predictor, found: list[Importance], sentences: list[str]) -> dict[str, Any]:
    return {
        "device": predictor.device,
        "backend": predictor.backend,
        "models": predictor.provenance["models"],
        "samples": predictor.provenance["samples"],
        "regressor": predictor.provenance["regressor"],
        "median_absolute_errors": [scores.model_dump() for scores in predictor.scores],
        "importances": [
            {
                "kind": importance.kind,
                "samples": importance.samples,
                "shares": dict(importance.shares),
                "explained_on_held_out_models": importance.explained,
                "slowdown_under_greatest_load": dict(importance.slowdown),
                "words": sentence,
            }
            for importance, sentence in zip(found, sentences, strict=True)
        ],
    }


def _scores_table(predictor: Predictor) -> str:
    from multi_dnn_ros.common.reporting import table

    methods = list(dict.fromkeys(name for scores in predictor.scores for name in scores.layer))
    rows = [
        [scores.held_out, what, *(f"{errors[method]:.1%}" if method in errors else "" for method in methods)]
        for scores in predictor.scores
        for what, errors in (("layer", scores.layer), ("network", scores.whole))
    ]
    return "median absolute error\n\n" + table(("held out", "error of a", *methods), rows)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(natural(part) for part in text.split(",")))


def _loads(text: str) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(text.split(",")))
    if not set(chosen) <= set(_LOADS):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of {', '.join(_LOADS)}")
    return chosen
