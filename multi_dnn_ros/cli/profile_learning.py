"""``multi-dnn profile contention`` and ``multi-dnn profile learn``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multi_dnn_ros.cli.arguments import natural
from multi_dnn_ros.cli.network_arguments import MODEL_HELP, check_writable
from multi_dnn_ros.cli.profile_target import add_target, open_target, progress_bar

if TYPE_CHECKING:
    from multi_dnn_ros.planning.predictor import Predictor
    from multi_dnn_ros.profiling.analysis import Importance

_CONTENTION = """\
Time every layer of the models while background threads (a CPU) or streams (a GPU) repeat one stated thing: products of
matrices that stay in a cache (compute), copies of memory larger than the caches (memory), a whole DNN (dnn). One row
for each layer and load goes into a CSV file; `multi-dnn profile learn` reads it.
"""
_LEARN = """\
From tables of `multi-dnn profile contention`: a decision tree for each kind of layer, whose importances say what
decides its time; and regressors: a linear model on arithmetic at peak rate, bytes at full bandwidth and launches,
gradient-boosted trees, and the former corrected by the latter. Whole models and whole load levels are held out in turn,
and the errors stand beside those of two baselines. The one with the least error in the mean of all that was held out is
written to predictor.json, a file of numbers.
"""
_LOADS = ("compute", "memory", "dnn")


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare both."""
    parser = actions.add_parser(
        "contention", help="layer times beside other work, as CSV", description=_CONTENTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("models", metavar="MODEL", nargs="+", help=MODEL_HELP)
    add("--output", type=Path, required=True, metavar="CSV", help="table to write")
    add("--loads", type=_loads, default=_LOADS, help="of compute,memory,dnn (default: all)")
    add("--levels", type=_numbers, default=(0, 1, 2, 4, 8), help="background threads or streams (default: 0,1,2,4,8)")
    add("--load-dnn", default="builtin:object", metavar="MODEL", help="what a dnn load runs (default: %(default)s)")
    add("--slices", type=_numbers, default=(0,), metavar="SMS",
        help="numbers of SMs of a GPU to run on, such as 0,16,66; 0: all (default)")  # fmt: skip
    add_target(parser, repeats=10, threads=1)
    parser.set_defaults(run=_contention)
    parser = actions.add_parser(
        "learn", help="what decides layer times, and a predictor of them", description=_LEARN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("tables", metavar="CSV", nargs="+", type=Path, help="tables of `multi-dnn profile contention`")
    add("--output", type=Path, required=True, metavar="DIR",
        help="write predictor.json, learnt.json and importances.png there")  # fmt: skip
    add("--seed", type=natural, default=0, help="of the trees (default: %(default)s)")
    parser.set_defaults(run=_learn, libraries=("scipy", "sklearn", "matplotlib"))


def _contention(args: argparse.Namespace) -> int:
    from multi_dnn_ros.planning.device import busy_warning, default_path, limits_of
    from multi_dnn_ros.planning.samples import write_samples
    from multi_dnn_ros.profiling.contention import check_slices, loads_of, measure_contention
    from multi_dnn_ros.profiling.network import load

    check_writable("--output", args.output)
    with open_target(args) as target:
        check_slices(args.slices, target)
        networks = [load(model) for model in args.models]
        busy = busy_warning(target.device)
        if busy:
            print(f"warning: {busy}")
        limits = limits_of(target, args.limits or default_path(), keep=not busy)
        with progress_bar("contention", "condition") as progress:
            samples = measure_contention(
                networks,
                target,
                limits,
                loads_of(args.loads, args.levels),
                load_network=load(args.load_dnn) if "dnn" in args.loads else None,
                slices=args.slices,
                seed=args.seed,
                progress=progress,
            )
        write_samples(args.output, samples)
        conditions = len({(sample.load, sample.setting) for sample in samples})
        print(f"{len(samples)} times of layers under {conditions} loads, {target.name()}; written to {args.output}")
    return 0


def _learn(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from multi_dnn_ros.common.reporting import provenance, write_json
    from multi_dnn_ros.planning.predictor import write_predictor
    from multi_dnn_ros.planning.samples import read_samples
    from multi_dnn_ros.profiling.analysis import explain, importances, plot_importances
    from multi_dnn_ros.profiling.learn import learn

    check_writable("--output", args.output / "predictor.json")
    samples = [sample for table in args.tables for sample in read_samples(table)]
    with tqdm(unit="group", desc="held out", disable=None, leave=False) as bar:
        predictor = learn(samples, seed=args.seed, progress=bar.update, **provenance())
    found = importances(samples, args.seed)
    args.output.mkdir(parents=True, exist_ok=True)
    write_predictor(args.output / "predictor.json", predictor)
    plot_importances(args.output / "importances.png", found)
    sentences = [explain(importance) for importance in found]
    if not found:
        print("no kind of layer has enough samples to say what decides its time")
    write_json(args.output / "learnt.json", {**provenance(), **_figures(predictor, found, sentences)})
    print("\n".join(sentences), end="\n\n")
    print(_scores_table(predictor), end="\n\n")
    best = predictor.provenance["regressor"]
    print(f"{best}: chosen, for {predictor.device}, {predictor.backend}; written to {args.output}")
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
        for what, errors in (("layer", scores.layer), ("whole", scores.whole))
    ]
    return "median absolute error\n\n" + table(("held out", "of a", *methods), rows)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(natural(part) for part in text.split(",")))


def _loads(text: str) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(text.split(",")))
    if not set(chosen) <= set(_LOADS):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of {', '.join(_LOADS)}")
    return chosen
