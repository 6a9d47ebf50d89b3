"""Accuracy over MACs: one network, decomposed by several policies to several sizes, each retrained and scored.

Extends the single point of the paper's figures 3 and 4 to a curve. The original is trained first if its file does not
exist. Each finished point is written immediately, so that an interrupted run can be resumed.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision.models.regnet import ResBottleneckBlock
from torchvision.models.resnet import BasicBlock, Bottleneck

from multi_dnn_ros.common.json_files import read_json_object
from multi_dnn_ros.common.reporting import provenance, write_json
from multi_dnn_ros.compression.decompose import decompose, plan_of
from multi_dnn_ros.compression.layers import Layer, list_layers
from multi_dnn_ros.compression.macs import cost
from multi_dnn_ros.compression.rank_policies import RANK_POLICIES, RankRequest
from multi_dnn_ros.compression.ranks import RankPolicy, Rounding
from multi_dnn_ros.models.artifact import Description, save_artifact
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.sources import load_network
from multi_dnn_ros.training.curve_plot import MAX_ACCURACY_LOSS, plot
from multi_dnn_ros.training.data import Data, DataRequest, open_data
from multi_dnn_ros.training.datasets import DatasetError
from multi_dnn_ros.training.distributed import existing_device
from multi_dnn_ros.training.loop import Schedule
from multi_dnn_ros.training.retrain import Result, retrain
from multi_dnn_ros.training.setup import MAIN
from multi_dnn_ros.training.trainable import Trainable, make_trainable

_STEPS = 18
_RESIDUAL = (BasicBlock, Bottleneck, ResBottleneckBlock)


@dataclass(frozen=True)
class Settings:
    """macs_size: (width, height) for which MACs are reduced and reported; training may use a smaller input.

    linear: whether large fully connected layers are decomposed, too.
    """

    model: str
    num_classes: int
    size: tuple[int, int]
    macs_size: tuple[int, int]
    original: Schedule
    retraining: Schedule
    batch_size: int
    teacher_weight: float
    policies: tuple[str, ...]
    cuts: tuple[float, ...]
    rounding: Rounding = field(default_factory=Rounding)
    linear: bool = False


#: Policies with a parameter, which determines how much is removed.
_POLICIES = tuple(name for name, spec in RANK_POLICIES.items() if spec.option is not None)


def policy_for(
    name: str, layers: Sequence[Layer], total: int, cut: float, rounding: Rounding
) -> tuple[RankPolicy, str]:
    """The named policy with the parameter that removes the share `cut` of `total` MACs, and that parameter as text.

    The parameter of budget is the share. Others are found by bisection: a smaller value has to remove more. Raises
    ValueError if no parameter removes that much.
    """

    def make(value: float) -> RankPolicy:
        return RANK_POLICIES[name].make(RankRequest(rounding, total, value))

    if name == "budget":
        return make(cut), f"macs_cut {cut:.3f}"

    def reached(value: float) -> float:
        choices = make(value).choose(layers)
        return sum(layer.macs() - layer.macs(choices[layer.name].plan) for layer in layers if not layer.kept) / total

    low, high = 1e-3, 1.0
    if reached(low) < cut:
        raise ValueError(f"{name}: no parameter cuts {cut:.1%} of the MACs")
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if reached(middle) >= cut else (low, middle)
    return make(low), f"{name} {low:.4f}"


def original(
    settings: Settings, path: Path, data: Data, device: torch.device, say: Callable[[str], None],
    stop: Callable[[], bool] | None = None,
) -> Result | None:  # fmt: skip
    """Train the original and write it to `path`; returns None if the file exists already. stop: see `train`."""
    if path.exists():
        return None
    student = trainable_of(load_network(settings.model, weights="random", num_classes=settings.num_classes), settings)
    reinitialize(student.source.module, settings.original.seed)
    say(f"{settings.model}: training the original for {settings.original.epochs} epochs at {settings.size}")
    result = retrain(
        student, [data], settings.original, batch_size=settings.batch_size, device=device, say=say,
        checkpoint=path.with_suffix(".ckpt"), checkpoint_every=max(1, settings.original.epochs // 8),
        stop=stop,
    )  # fmt: skip
    description = Description(
        model=settings.model, num_classes=settings.num_classes, input_size=settings.size, labels=data.labels,
        provenance={**provenance(), "training": {"data": data.name, "schedule": asdict(settings.original),
                                                 **result.provenance()}},
    )  # fmt: skip
    save_artifact(path, student.source.module.eval(), description)
    return result


def reinitialize(network: nn.Module, seed: int) -> None:
    """Initialize the weights for training (He et al. 2015), in place, independently of the builder's initialization.

    The initial weights of torchvision's InceptionV3 are so large that it hardly trains for ten epochs. Residual
    branches start at zero (Goyal et al. 2017): a deep network then learns from the first step on, like a shallow one.
    """
    torch.manual_seed(seed)
    for layer in network.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            else:
                nn.init.normal_(layer.weight, std=0.01)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, _RESIDUAL):
            nn.init.zeros_(_branch_scale(layer).weight)


def _branch_scale(block: nn.Module) -> nn.BatchNorm2d:
    """The scale of a residual block's branch: its last batch normalization that is not on the shortcut."""
    return [
        part
        for name, part in block.named_modules()
        if isinstance(part, nn.BatchNorm2d) and not name.startswith(("downsample", "proj"))
    ][-1]


def point(
    settings: Settings, source: Source, policy_name: str, cut: float, data: Data, device: torch.device,
    say: Callable[[str], None], keep: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Decompose a copy of the original by the share `cut`, retrain it with the original as teacher, and score it."""
    begin = time.monotonic()
    width, height = settings.macs_size
    inputs = (torch.zeros(1, 3, height, width),)
    network = copy.deepcopy(source.module)
    layers = list_layers(network, inputs, linear=settings.linear)
    before = cost(network, inputs)
    policy, parameter = policy_for(policy_name, layers, before.macs, cut, settings.rounding)
    outcomes = decompose(network, inputs, policy, layers=layers)
    after = cost(network, inputs)
    seconds = time.monotonic() - begin
    student = trainable_of(replace(source, module=network, description=None), settings)
    teacher = trainable_of(copy.deepcopy(source), settings)
    result = retrain(
        student, [data], settings.retraining, batch_size=settings.batch_size, device=device, teacher=teacher,
        teacher_weight=settings.teacher_weight, say=say,
    )  # fmt: skip
    row = {
        "policy": policy_name,
        "parameter": parameter,
        "asked_cut": cut,
        "macs": after.macs,
        "macs_cut": 1.0 - after.macs / before.macs,
        "parameters": after.parameters,
        "decomposed_layers": sum(outcome.plan is not None for outcome in outcomes),
        "layers": len(outcomes),
        "decompose_seconds": round(seconds, 1),
        "epochs": settings.retraining.epochs,
        "retrain_seconds": round(result.seconds, 1),
        "scores_before_retraining": result.before,
        "scores": result.after,
    }
    if keep is not None:
        description = Description(
            model=settings.model, num_classes=settings.num_classes, input_size=settings.size, labels=data.labels,
            plan=plan_of(outcomes), provenance={**provenance(), "point": row},
        )  # fmt: skip
        save_artifact(keep / f"{policy_name}_{cut:.3f}.safetensors", network, description)
    return row


def run(
    settings: Settings, data_name: str, folder: Path, out: Path, device: torch.device, keep: bool
) -> dict[str, Any]:
    """Compute all points that `out` does not contain yet; `folder` stores the original."""
    if out.suffix == ".png":
        raise ValueError(f"{out}: is the name of the plot, which would replace the points; use a .json file")
    data = open_data(data_name, wanted_rows(settings))
    earlier = _read(out) if out.exists() else {}
    identity = {"data": data_name, "settings": json.loads(json.dumps(asdict(settings)))}
    _check_same(out, earlier, identity)
    content: dict[str, Any] = {**provenance(), "device": str(device), **identity, "points": earlier.get("points", [])}
    path = folder / f"{settings.model.partition(':')[2]}.safetensors"
    trained = original(settings, path, data, device, print)
    source = load_network(str(path))
    training = training_of(path, source, settings, data)
    width, height = settings.macs_size
    original_cost = cost(source.module, (torch.zeros(1, 3, height, width),))
    content["original"] = {
        "macs": original_cost.macs, "parameters": original_cost.parameters, "scores": training["test_scores"]["after"],
        "epochs": training["schedule"]["epochs"], "seconds": training["seconds"], "trained_now": trained is not None,
    }  # fmt: skip
    write_json(out, content)
    done = {(row["policy"], row["asked_cut"]) for row in content["points"]}
    main = MAIN["classes"]
    for cut in settings.cuts:
        for policy in settings.policies:
            if (policy, cut) in done:
                continue
            try:
                row = point(settings, source, policy, cut, data, device, print, folder if keep else None)
            except DatasetError:
                raise  # an unreadable image says nothing about the point, which is computed in the next run
            except ValueError as error:
                row = {"policy": policy, "asked_cut": cut, "error": str(error)}
            content["points"].append(row)
            write_json(out, content)
            if "scores" in row:
                print(f"{policy} {row['macs_cut']:.1%} of the MACs removed: {main} {row['scores'][main]:.4f}, "
                      f"original {content['original']['scores'][main]:.4f}")  # fmt: skip
            else:
                print(row["error"])
    content["largest_cut_within"] = largest_cut(content)
    write_json(out, content)
    plot(out.with_suffix(".png"), [content])
    return content


def training_of(path: Path, source: Source, settings: Settings, data: Data) -> dict[str, Any]:
    """How the original was trained. Raises ValueError if model, labels, input size or kind of data differ from the
    settings, which the file's name does not show.
    """
    description = source.description
    assert description is not None
    training: dict[str, Any] = description.provenance.get("training", {})
    names = training.get("data", "")
    (name,) = names if isinstance(names, list) and len(names) == 1 else (names,)
    found = (description.model, tuple(description.labels), description.input_size, str(name).partition(":")[0])
    wanted = (settings.model, tuple(data.labels), settings.size, data.name.partition(":")[0])
    if description.plan or found != wanted:
        raise ValueError(
            f"{path}: holds {'a decomposed ' if description.plan else ''}{_describe(*found)}; required: "
            f"{_describe(*wanted)}; name another --folder"
        )
    return training


def _describe(model: str, labels: tuple[str, ...], size: tuple[int, int], kind: str) -> str:
    return f"{model} of {len(labels)} classes at {size[0]}x{size[1]}, trained on {kind or 'unknown data'}"


def _check_same(out: Path, earlier: dict[str, Any], identity: dict[str, Any]) -> None:
    """Raise ValueError if `out` holds points with other settings; points of other cuts and policies may be added."""
    if not earlier:
        return
    free = ("policies", "cuts")
    for content in (earlier, identity):
        content["same"] = [content.get("data"), {k: v for k, v in content["settings"].items() if k not in free}]
    if earlier.pop("same") != identity.pop("same"):
        raise ValueError(f"{out} holds points computed with other data or settings; remove it or name another file")


def _read(path: Path) -> dict[str, Any]:
    """Read a file written by `curve`. Raises ValueError for any other file."""
    content = read_json_object(path, "what `curve` writes")
    if not {"data", "settings", "original", "points"} <= content.keys():
        raise ValueError(f"{path}: not what `curve` writes")
    return content


def largest_cut(content: dict[str, Any]) -> dict[str, Any] | None:
    """The point with the largest reduction that loses at most MAX_ACCURACY_LOSS of accuracy; None if there is none."""
    main = MAIN["classes"]
    min_score = content["original"]["scores"][main] - MAX_ACCURACY_LOSS
    good = [row for row in content["points"] if "scores" in row and row["scores"][main] >= min_score]
    best = max(good, key=lambda row: row["macs_cut"], default=None)
    return best and {key: best[key] for key in ("policy", "parameter", "macs_cut", "scores")}


def wanted_rows(settings: Settings) -> DataRequest:
    from multi_dnn_ros.vision.preprocess import Preprocess

    return DataRequest("classes", Preprocess(*settings.size))


def trainable_of(source: Source, settings: Settings) -> Trainable:
    return make_trainable(source, settings.model, size=settings.size)


def add_parser(verbs: Any) -> None:
    verb = verbs.add_parser(
        "curve", help="accuracy against MACs of one network", description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    add_arguments(verb)
    add = verb.add_argument
    add("--policies", nargs="+", choices=_POLICIES, default=list(_POLICIES))
    add(
        "--cuts",
        nargs="+",
        type=_cut,
        metavar="SHARE",
        default=[0.5, 0.7, 0.8, 0.9],
        help="shares of the MACs to remove",
    )
    add("--folder", type=Path, required=True, help="folder for the original")
    add("--keep", action="store_true", help="also store the decomposed networks in --folder")
    add("--out", type=Path, required=True, help="JSON file to write; a .png is written next to it")
    verb.set_defaults(run=main, libraries=("scipy", "tensorly", "matplotlib"))


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Options of :func:`settings_of`."""
    add = verb.add_argument
    add("model", help="torchvision:<classifier>")
    add("--data", required=True, help="cifar10:PATH or classes:DIR, as for multi-dnn retrain")
    add("--num-classes", type=int, default=10)
    add("--size", type=int, default=64, help="side of the input while training, pixels")
    add("--macs-size", type=int, default=224, help="side of the input for which MACs are cut and reported")
    add("--epochs", type=int, default=30, help="number of epochs of the original")
    add("--small-epochs", type=int, default=0, help="number of these, the first ones, on smaller images, to save time")
    add("--small-size", type=int, default=0, help="side of those images, pixels; 0: two thirds of --size")
    add("--lr", type=float, default=1e-3, help="learning rate for the original")
    add("--optimizer", choices=("adamw", "sgd"), default="adamw", help="optimizer for the original")
    add("--weight-decay", type=float, default=0.05, help="weight decay for the original; with sgd about 5e-4")
    add("--retrain-epochs", type=int, default=6)
    add("--retrain-lr", type=float, default=4e-4)
    add("--batch-size", type=int, default=256)
    add("--teacher-weight", type=float, default=0.7)
    add("--mix", type=float, default=0.5, help="share of the images mixed with others (CutMix)")
    add("--linear", action="store_true", help="also decompose large fully connected layers, by truncated SVD")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")


def _cut(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0.0 < share < 1.0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a share of the MACs between 0 and 1, such as 0.81")
    return share


def add_curves_parser(verbs: Any) -> None:
    verb = verbs.add_parser("curves", help="several curves in one picture")
    verb.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON that `curve` wrote")
    verb.add_argument("--out", type=Path, required=True, help="PNG to write")
    verb.set_defaults(run=draw, libraries=("matplotlib",))


def draw(args: argparse.Namespace) -> int:
    plot(args.out, [_read(file) for file in args.files])
    return 0


def settings_of(args: argparse.Namespace, policies: Sequence[str], cuts: Sequence[float]) -> Settings:
    return Settings(
        model=args.model,
        num_classes=args.num_classes,
        size=(args.size, args.size),
        macs_size=(args.macs_size, args.macs_size),
        original=Schedule(
            args.epochs,
            args.lr,
            args.optimizer,
            args.weight_decay,
            warmup_epochs=2.0,
            score_every=5,
            mix=args.mix,
            small=args.small_size / args.size if args.small_size else 2 / 3,
            small_epochs=args.small_epochs,
        ),
        retraining=Schedule(
            args.retrain_epochs,
            args.retrain_lr,
            weight_decay=0.02,
            warmup_epochs=0.5,
            ema=0.998,
            score_every=2,
            mix=args.mix,
        ),
        batch_size=args.batch_size,
        teacher_weight=args.teacher_weight,
        policies=tuple(policies),
        cuts=tuple(cuts),
        linear=args.linear,
    )


def main(args: argparse.Namespace) -> int:
    settings = settings_of(args, args.policies, args.cuts)
    content = run(settings, args.data, args.folder, args.out, existing_device(args.device), args.keep)
    print(json.dumps({"original": content["original"]["scores"], "largest_cut_within": content["largest_cut_within"]}))
    return 0
