"""One network with everything that a claim about its decomposition needs, in one command that can be interrupted.

The original is trained unless its file exists, and decomposed; the decomposed network and, as a control, the original
are trained further with several seeds, with the original as teacher. What is finished is a file or a row of the JSON
and is not computed again; what is under way continues from its checkpoint.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from multi_dnn_ros.common.reporting import provenance, table, write_json
from multi_dnn_ros.compression.decompose import decompose, plan_of
from multi_dnn_ros.compression.folding import fold_batch_norm, has_plain_form
from multi_dnn_ros.compression.macs import cost
from multi_dnn_ros.compression.ranks import Ratio
from multi_dnn_ros.models.artifact import Description, save_artifact
from multi_dnn_ros.models.sources import load_network
from multi_dnn_ros.training.checks import CheckedData, check_data
from multi_dnn_ros.training.controlled import Spread
from multi_dnn_ros.training.curve import (
    Settings,
    add_arguments,
    original,
    settings_of,
    trainable_of,
    training_of,
    wanted_rows,
)
from multi_dnn_ros.training.data import open_data
from multi_dnn_ros.training.distributed import existing_device
from multi_dnn_ros.training.loop import Stopped
from multi_dnn_ros.training.retrain import retrain
from multi_dnn_ros.training.setup import MAIN, score_rows

#: In --folder: the networks that were scored, for `multi-dnn benchmark paper --artifacts`, and what they scored.
NETWORKS, MANIFEST = "networks", "networks.json"
DECOMPOSED, CONTROL = "decomposed", "control"
#: Exit code of a run that --minutes has stopped.
EXIT_STOPPED = 75
#: Per training, besides the one that is written when --minutes are over: one of VGG16 has more than 2 GB.
_CHECKPOINTS = 4
_MAIN = MAIN["classes"]

Stop = Callable[[], bool]


def run(
    settings: Settings, ratio: float, seeds: int, data_name: str, folder: Path, out: Path, device: torch.device,
    stop: Stop = lambda: False,
) -> dict[str, Any]:  # fmt: skip
    """Compute what `folder` and `out` do not contain yet. ratio: ranks relative to channels.

    Raises Stopped when `stop` says so, between epochs; ValueError if `out` is of other settings; as `retrain`.
    """
    mine = {"data": data_name, "ratio": ratio, "settings": json.loads(json.dumps(asdict(settings)))}
    known = _read(out, mine)
    content: dict[str, Any] = {**provenance(), "device": str(device), **mine, "runs": known.get("runs", {})}
    data = check_data(open_data(data_name, wanted_rows(settings)), progress=False)
    start = folder / "original.safetensors"
    original(settings, start, data, device, print, stop)
    small = folder / "decomposed.safetensors"
    # Once: the signs of the factors, and with them the weights that training starts from, differ from run to run.
    content["cost"] = known.get("cost") or {}
    if not small.exists() or not content["cost"]:
        content["cost"] = _decompose(settings, ratio, start, small, data)
    content["original"] = {
        "sha256": _sha256(start), **training_of(start, load_network(str(start)), settings, data)["test_scores"]
    }  # fmt: skip
    write_json(out, content)
    for seed in range(settings.retraining.seed, settings.retraining.seed + seeds):
        for who, file in ((DECOMPOSED, small), (CONTROL, start)):
            key, checkpoint = f"{who} {seed}", folder / f"{who}.seed{seed}.ckpt"
            done = key in content["runs"]
            if not done:
                content["runs"][key] = _train(settings, seed, who, file, start, data, device, checkpoint, stop)
                write_json(out, content)
            # Not before the result is written: a kill or a full disk in between would lose the training.
            checkpoint.unlink(missing_ok=True)
            if not done and stop():
                raise Stopped(f"stopped after {who}, seed {seed}")
    content["networks"] = _publish(settings, content, folder, data, device)
    content["summary"] = _summary(content)
    write_json(out, content)
    return content


def _decompose(settings: Settings, ratio: float, start: Path, small: Path, data: CheckedData) -> dict[str, Any]:
    width, height = settings.macs_size
    inputs = (torch.zeros(1, 3, height, width),)
    network = load_network(str(start)).module
    before = cost(network, inputs)
    outcomes = decompose(network, inputs, Ratio(ratio, settings.rounding), linear=settings.linear)
    after = cost(network, inputs)
    description = Description(
        model=settings.model, num_classes=settings.num_classes, input_size=settings.size, labels=data.labels,
        plan=plan_of(outcomes), provenance={**provenance(), "original_sha256": _sha256(start)},
    )  # fmt: skip
    save_artifact(small, network, description)
    return {
        "macs": [before.macs, after.macs], "macs_cut": 1.0 - after.macs / before.macs,
        "parameters": [before.parameters, after.parameters],
        "decomposed_layers": sum(outcome.plan is not None for outcome in outcomes), "layers": len(outcomes),
    }  # fmt: skip


def _train(
    settings: Settings, seed: int, who: str, file: Path, start: Path, data: CheckedData, device: torch.device,
    checkpoint: Path, stop: Stop,
) -> dict[str, Any]:  # fmt: skip
    """Train the network of `file` further with the one of `start` as teacher, and write it beside `checkpoint`."""
    print(f"{settings.model}: {who}, seed {seed}", flush=True)
    student, teacher = (trainable_of(load_network(str(path)), settings) for path in (file, start))
    result = retrain(
        student, [data], replace(settings.retraining, seed=seed), batch_size=settings.batch_size, device=device,
        teacher=teacher, teacher_weight=settings.teacher_weight, checkpoint=checkpoint,
        checkpoint_every=max(1, settings.retraining.epochs // _CHECKPOINTS), stop=stop, say=print,
    )  # fmt: skip
    path = checkpoint.with_suffix(".safetensors")
    description = student.source.description
    assert description is not None
    training = {"data": data.name, "seed": seed, "test_scores": {"before": result.before, "after": result.after}}
    save_artifact(
        path, student.source.module.eval(),
        description.model_copy(update={"provenance": {**description.provenance, "training": training}}),
    )  # fmt: skip
    return {
        "seed": seed, "choice": result.outcome.best, "kept_epoch": result.outcome.epoch, "before": result.before,
        "after": result.after, "seconds": round(result.seconds, 1), "sha256": _sha256(path),
    }  # fmt: skip


def _publish(
    settings: Settings, content: Mapping[str, Any], folder: Path, data: CheckedData, device: torch.device
) -> dict[str, Any]:
    """Write the networks with the best validation scores to their folder, plain where possible, and score these files.

    The scores are those of the files, read again, so that a benchmark of the files is one of the scored networks.
    """
    target = folder / NETWORKS
    target.mkdir(exist_ok=True)
    found: dict[str, Any] = {}
    name = ""
    for who, role in ((DECOMPOSED, DECOMPOSED), (CONTROL, "original")):
        rows = [row for key, row in content["runs"].items() if key.startswith(f"{who} ")]
        best = max(rows, key=lambda row: row["choice"][_MAIN])
        path = folder / f"{who}.seed{best['seed']}.safetensors"
        source = load_network(str(path))
        description = source.description
        assert description is not None
        name, written = settings.model, path
        if has_plain_form(settings.model):
            module, name, plan = fold_batch_norm(
                source.module.eval(), settings.model, settings.num_classes, description.plan
            )
            written = folder / f"{who}.plain.safetensors"
            save_artifact(written, module, description.model_copy(update={"model": name, "plan": dict(plan)}))
        file = target / f"{name.partition(':')[2]}{'' if who == CONTROL else '_decomposed'}.safetensors"
        shutil.copyfile(written, file)
        scored = trainable_of(load_network(str(file)), replace(settings, model=name))
        scores = score_rows(
            scored.network.to(device).eval(), "classes", data.part("test"), scored.inputs, None, data.labels
        )
        found[role] = {
            "file": file.name, "sha256": _sha256(file), "seed": best["seed"], "scores": scores,
            "folded_from": settings.model if name != settings.model else None,
        }  # fmt: skip
    entry = {name.partition(":")[2]: {"data": data.name, "size": list(settings.size), **content["cost"], **found}}
    manifest = target / MANIFEST
    known = json.loads(manifest.read_text(encoding="utf-8")) if manifest.exists() else {}
    write_json(manifest, {**known, **entry})
    return entry


def _summary(content: Mapping[str, Any]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for who in (DECOMPOSED, CONTROL):
        values = [row["after"][_MAIN] for key, row in content["runs"].items() if key.startswith(f"{who} ")]
        summary[who] = {**asdict(Spread.of(values)), "seeds": len(values)}
    return {**summary, "against_control": summary[DECOMPOSED]["mean"] - summary[CONTROL]["mean"]}


def rows_of(contents: list[dict[str, Any]]) -> str:
    """The table of several networks."""
    rows = []
    for content in contents:
        of = content["summary"]
        ((name, entry),) = content["networks"].items()
        spreads = [Spread(of[who]["mean"], of[who]["deviation"]) for who in (CONTROL, DECOMPOSED)]
        rows.append((
            name, f"{content['settings']['size'][0]} px", f"{content['cost']['macs_cut']:.1%}",
            str(of[CONTROL]["seeds"]), *map(str, spreads), f"{of['against_control']:+.4f}",
            entry[DECOMPOSED]["sha256"][:12],
        ))  # fmt: skip
    header = ("network", "input", "MACs gone", "seeds", f"control {_MAIN}", f"decomposed {_MAIN}", "difference", "file")
    return table(header, rows)


def _read(out: Path, mine: Mapping[str, Any]) -> dict[str, Any]:
    """What an earlier run has written. Raises ValueError if it had other settings."""
    if not out.exists():
        return {}
    try:
        known: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{out}: not JSON ({error}); expected what `controlled` writes") from None
    different = [key for key in mine if known.get(key) != mine[key]]
    if different:
        raise ValueError(f"{out} was made with other {', '.join(different)}; remove it or name another file")
    return known


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def add_parser(verbs: Any) -> None:
    verb = verbs.add_parser(
        "controlled", help="one network: original, decomposed and control with several seeds", description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    add_arguments(verb)
    add = verb.add_argument
    add("--ratio", type=float, required=True, help="ranks relative to channels, as `multi-dnn decompose --ranks ratio`")
    add("--seeds", type=int, default=3, help="number of seeds, for the decomposed network and the control")
    add("--folder", type=Path, required=True, help="folder for networks and checkpoints")
    add("--out", type=Path, required=True, help="JSON file to write; what it has is not computed again")
    add("--minutes", type=float, default=0.0,
        help=f"stop after the epoch that ends later than this, with a checkpoint and exit code {EXIT_STOPPED}; "
        "0: never")  # fmt: skip
    verb.set_defaults(run=main, libraries=("scipy", "tensorly"))
    verb = verbs.add_parser("controlled-table", help="the results of several such runs as a table")
    verb.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON that `controlled` wrote")
    verb.set_defaults(run=_table, libraries=())


def main(args: argparse.Namespace) -> int:
    if args.seeds < 1:
        raise ValueError(f"--seeds {args.seeds}: at least 1")
    end = time.monotonic() + args.minutes * 60
    stop = (lambda: time.monotonic() > end) if args.minutes else (lambda: False)
    args.folder.mkdir(parents=True, exist_ok=True)
    settings = settings_of(args, ("ratio",), ())
    try:
        content = run(
            settings, args.ratio, args.seeds, args.data, args.folder, args.out, existing_device(args.device), stop
        )
    except Stopped as stopped:
        print(f"{stopped}; the same command continues")
        return EXIT_STOPPED
    print(rows_of([content]))
    return 0


def _table(args: argparse.Namespace) -> int:
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in args.files]
    for path, content in zip(args.files, contents, strict=True):
        if not isinstance(content, dict) or "summary" not in content:
            raise ValueError(f"{path}: no finished result of `controlled`")
    print(rows_of(contents))
    return 0
