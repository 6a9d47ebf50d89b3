"""Trains, decomposes and retrains one network, and retrains the original as a control; can be interrupted.

The original is trained unless its file exists, and then decomposed. The decomposed network and, as a control, the
original are retrained with several seeds, with the original as teacher. Finished steps are kept as files or as rows of
the JSON file and are not repeated; an unfinished training continues from its checkpoint.

Once the original is trained, the same command may run in several processes, each on a GPU of its own: each training is
done by one of them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.file_lock import exclusive_lock, lock_file
from multi_dnn_ros.common.json_files import read_json_object
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

#: In --folder: the networks that were scored, for `multi-dnn benchmark paper --artifacts`, and their scores.
NETWORKS, MANIFEST = "networks", "networks.json"
DECOMPOSED, CONTROL = "decomposed", "control"
#: Exit code of a run that --minutes has stopped.
EXIT_STOPPED = 75
#: Number per training, besides the one written when --minutes are over; few, because one of VGG16 has over 2 GB.
_CHECKPOINTS = 4
_MAIN = MAIN["classes"]

#: For a file system without locks.
_UNPROTECTED = "run only one process"

Stop = Callable[[], bool]
_EXPECTED = "what `controlled` writes"


class TrainedByOthers(Exception):
    """This process has nothing left to do; the message says what others still train."""


def run(
    settings: Settings, ratio: float, seeds: int, data_name: str, folder: Path, out: Path, device: torch.device,
    stop: Stop = lambda: False,
) -> dict[str, Any]:  # fmt: skip
    """Compute what `folder` and `out` do not contain yet. ratio: ranks relative to channels.

    Raises Stopped, between epochs, if `stop` returns True; TrainedByOthers if all that is left is being trained by
    other processes; ValueError if `out` was written with other settings; CommandError if another process trains the
    original; also what `retrain` raises.
    """
    identity = {"data": data_name, "ratio": ratio, "settings": json.loads(json.dumps(asdict(settings)))}
    data = check_data(open_data(data_name, wanted_rows(settings)), progress=False)
    original_path, decomposed_path = folder / "original.safetensors", folder / "decomposed.safetensors"
    _read(out, identity)  # both before a training that takes hours
    _read_manifest(folder)
    if not original_path.exists():
        in_use = f"{original_path} is being trained by another process; run this command when that has ended"
        with lock_file(folder / "original.lock", in_use, _UNPROTECTED):
            original(settings, original_path, data, device, print, stop)
    keys = {
        f"{variant} {seed}": (seed, variant)
        for seed in range(settings.retraining.seed, settings.retraining.seed + seeds)
        for variant in (DECOMPOSED, CONTROL)
    }
    with exclusive_lock(folder / "prepare.lock", _UNPROTECTED):  # the others wait for the decomposed network
        earlier = _read(out, identity)
        if earlier.get("summary") and keys.keys() <= earlier["runs"].keys():
            return earlier
        # Once only: the signs of the factors, and so the weights that training starts from, differ from run to run.
        costs = earlier.get("cost") or {}
        if not decomposed_path.exists() or not costs:
            costs = _decompose(settings, ratio, original_path, decomposed_path, data)
        training = training_of(original_path, load_network(str(original_path)), settings, data)
        scores = {"sha256": _sha256(original_path), **training["test_scores"]}
        content: dict[str, Any] = {**provenance(), "device": str(device), **identity, "runs": earlier.get("runs", {})}
        content |= {"cost": costs, "original": scores}
        with _results_locked(folder):
            _add_runs(content, out, identity)
    files = {DECOMPOSED: decomposed_path, CONTROL: original_path}
    for key, (seed, variant) in keys.items():
        checkpoint = folder / f"{variant}.seed{seed}.ckpt"
        try:
            lock = lock_file(checkpoint.with_suffix(".lock"), key, _UNPROTECTED)
        except CommandError:
            continue  # another process trains it
        with lock:
            done = key in _read(out, identity)["runs"]
            if not done:
                row = _train(settings, seed, variant, files[variant], original_path, data, device, checkpoint, stop)
                with _results_locked(folder):
                    _add_runs(content, out, identity, {key: row})
            # Not before the result is written: a kill or a full disk in between would lose the training.
            checkpoint.unlink(missing_ok=True)
        if not done and stop():
            raise Stopped(f"stopped after {variant}, seed {seed}")
    with _results_locked(folder):
        content["runs"] = runs = _read(out, identity)["runs"]
        missing = [key for key in keys if key not in runs]
        if missing:
            raise TrainedByOthers(
                f"{', '.join(missing)}: trained by other processes; the last one to end writes the summary"
            )
        content["networks"] = _publish(settings, content, folder, data, device)
        content["summary"] = _summary(content)
        write_json(out, content)
    return content


def _results_locked(folder: Path) -> AbstractContextManager[None]:
    """Lock the results against other processes with the same folder."""
    return exclusive_lock(folder / "results.lock", _UNPROTECTED)


def _add_runs(
    content: dict[str, Any], out: Path, identity: Mapping[str, Any], new: Mapping[str, Any] | None = None
) -> None:
    """Write `content` with the runs that `out` has and `new`, in the order of seeds."""
    runs = {**_read(out, identity).get("runs", {}), **(new or {})}
    order = sorted(runs, key=lambda key: (runs[key]["seed"], key.startswith(CONTROL)))
    content["runs"] = {key: runs[key] for key in order}
    write_json(out, content)


def _decompose(
    settings: Settings, ratio: float, original_path: Path, decomposed_path: Path, data: CheckedData
) -> dict[str, Any]:
    width, height = settings.macs_size
    inputs = (torch.zeros(1, 3, height, width),)
    network = load_network(str(original_path)).module
    before = cost(network, inputs)
    outcomes = decompose(network, inputs, Ratio(ratio, settings.rounding), linear=settings.linear)
    after = cost(network, inputs)
    description = Description(
        model=settings.model, num_classes=settings.num_classes, input_size=settings.size, labels=data.labels,
        plan=plan_of(outcomes), provenance={**provenance(), "original_sha256": _sha256(original_path)},
    )  # fmt: skip
    save_artifact(decomposed_path, network, description)
    return {
        "macs": [before.macs, after.macs], "macs_cut": 1.0 - after.macs / before.macs,
        "parameters": [before.parameters, after.parameters],
        "decomposed_layers": sum(outcome.plan is not None for outcome in outcomes), "layers": len(outcomes),
    }  # fmt: skip


def _train(
    settings: Settings, seed: int, variant: str, file: Path, original_path: Path, data: CheckedData,
    device: torch.device, checkpoint: Path, stop: Stop,
) -> dict[str, Any]:  # fmt: skip
    """Retrain the network of `file`, with that of `original_path` as teacher, and write it next to `checkpoint`."""
    print(f"{settings.model}: {variant}, seed {seed}", flush=True)
    student, teacher = (trainable_of(load_network(str(path)), settings) for path in (file, original_path))
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
    """Write the networks with the best validation scores to folder NETWORKS, without batch normalization if possible.

    The scores are computed from these files, read again, so that a benchmark of the files measures the scored networks.
    """
    target = folder / NETWORKS
    target.mkdir(exist_ok=True)
    found: dict[str, Any] = {}
    name = ""
    for variant, role in ((DECOMPOSED, DECOMPOSED), (CONTROL, "original")):
        rows = [row for key, row in content["runs"].items() if key.startswith(f"{variant} ")]
        best = max(rows, key=lambda row: row["choice"][_MAIN])
        path = folder / f"{variant}.seed{best['seed']}.safetensors"
        source = load_network(str(path))
        description = source.description
        assert description is not None
        name, written = settings.model, path
        if has_plain_form(settings.model):
            module, name, plan = fold_batch_norm(
                source.module.eval(), settings.model, settings.num_classes, description.plan
            )
            written = folder / f"{variant}.plain.safetensors"
            save_artifact(written, module, description.model_copy(update={"model": name, "plan": dict(plan)}))
        file = target / f"{name.partition(':')[2]}{'' if variant == CONTROL else '_decomposed'}.safetensors"
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
    write_json(target / MANIFEST, {**_read_manifest(folder), **entry})
    return entry


def _summary(content: Mapping[str, Any]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for variant in (DECOMPOSED, CONTROL):
        values = [row["after"][_MAIN] for key, row in content["runs"].items() if key.startswith(f"{variant} ")]
        summary[variant] = {**asdict(Spread.of(values)), "seeds": len(values)}
    return {**summary, "against_control": summary[DECOMPOSED]["mean"] - summary[CONTROL]["mean"]}


def rows_of(contents: list[dict[str, Any]]) -> str:
    """The results of several networks as a table."""
    rows = []
    for content in contents:
        summary = content["summary"]
        ((name, entry),) = content["networks"].items()
        spreads = [Spread(summary[variant]["mean"], summary[variant]["deviation"]) for variant in (CONTROL, DECOMPOSED)]
        rows.append((
            name, f"{content['settings']['size'][0]} px", f"{content['cost']['macs_cut']:.1%}",
            str(summary[CONTROL]["seeds"]), *map(str, spreads), f"{summary['against_control']:+.4f}",
            entry[DECOMPOSED]["sha256"][:12],
        ))  # fmt: skip
    scores = (f"control {_MAIN}", f"decomposed {_MAIN}")
    return table(("network", "input", "MACs removed", "seeds", *scores, "difference", "file"), rows)


def _read_manifest(folder: Path) -> dict[str, Any]:
    """The networks that are in the folder. Raises ValueError, which names the file, if it is damaged."""
    manifest = folder / NETWORKS / MANIFEST
    return read_json_object(manifest, _EXPECTED) if manifest.exists() else {}


def _read(out: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """The results of an earlier run, if there are any. Raises ValueError if it had other settings."""
    if not out.exists():
        return {}
    earlier = _read_result(out)
    different = [key for key in identity if earlier.get(key) != identity[key]]
    if different:
        raise ValueError(f"{out} was written with other {', '.join(different)}; remove it or name another file")
    return earlier


def _read_result(path: Path) -> dict[str, Any]:
    content = read_json_object(path, _EXPECTED)
    if missing := {"settings", "runs"} - content.keys():
        raise ValueError(f"{path}: no result of `controlled`; it lacks {', '.join(sorted(missing))}")
    return content


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
    add("--out", type=Path, required=True, help="JSON file to write; results in it are not computed again")
    add("--minutes", type=float, default=0.0,
        help=f"stop at the end of the first epoch after this time, with a checkpoint and exit code {EXIT_STOPPED}; "
        "0: never")  # fmt: skip
    verb.set_defaults(run=main, libraries=("scipy", "tensorly"))
    verb = verbs.add_parser("controlled-table", help="the results of several `controlled` runs as a table")
    verb.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON that `controlled` wrote")
    verb.set_defaults(run=_table, libraries=())


def main(args: argparse.Namespace) -> int:
    if args.seeds < 1:
        raise ValueError(f"--seeds {args.seeds}: must be at least 1")
    end = time.monotonic() + args.minutes * 60
    stop = (lambda: time.monotonic() > end) if args.minutes else (lambda: False)
    args.folder.mkdir(parents=True, exist_ok=True)
    settings = settings_of(args, ("ratio",), ())
    try:
        content = run(
            settings, args.ratio, args.seeds, args.data, args.folder, args.out, existing_device(args.device), stop
        )
    except Stopped as stopped:
        print(f"{stopped}; repeat the command to continue")
        return EXIT_STOPPED
    except TrainedByOthers as left:
        print(left)
        return 0
    print(rows_of([content]))
    return 0


def _table(args: argparse.Namespace) -> int:
    finished, unfinished = [], []
    for path in args.files:
        content = _read_result(path)
        if "summary" in content:
            finished.append(content)
        else:
            unfinished.append(f"{path}: unfinished; further trainings that are finished: {len(content['runs'])}")
    if finished:
        print(rows_of(finished))
    for line in unfinished:
        print(line)
    return 0
