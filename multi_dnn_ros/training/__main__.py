"""``python -m multi_dnn_ros.training``: render scenes, train and score the package's networks, plot accuracy curves."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

import torch

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.extras import MissingExtra, require
from multi_dnn_ros.models.weights import existing_file, load_weights, read_state_dict
from multi_dnn_ros.training import distributed, recipes
from multi_dnn_ros.training.datasets import DatasetError, render, road_frames
from multi_dnn_ros.training.loop import TrainingError, train

_DEFAULTS = {"lane": (24, 96, 3e-3), "object": (30, 128, 2e-3), "pedestrian": (30, 128, 2e-3)}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m multi_dnn_ros.training", description=__doc__)
    verbs = top.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("render", help="render the scenes for training and for selecting the best epoch")
    _scene_arguments(verb)
    for role in ("lane", "object", "pedestrian"):
        epochs, batch, lr = _DEFAULTS[role]
        verb = verbs.add_parser(
            role, help=f"train the {role} network", formatter_class=argparse.ArgumentDefaultsHelpFormatter
        )
        _scene_arguments(verb)
        verb.add_argument("--out", type=Path, required=True, help="weights file to write, .safetensors")
        verb.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu, cuda")
        verb.add_argument("--epochs", type=int, default=epochs, help="number of epochs")
        verb.add_argument("--batch-size", type=int, default=batch, help="images per step")
        verb.add_argument("--lr", type=float, default=lr, help="maximum learning rate")
        verb.add_argument("--resume", type=Path, help="checkpoint to write after every epoch, and to resume from")
        verb.add_argument("--quiet", action="store_true", help="no progress bars")
        if role == "lane":
            verb.add_argument(
                "--road", type=Path, help="folder of a road video with lane_masks/, whose first half is also trained on"
            )
            verb.add_argument(
                "--varied", action="store_true",
                help="vary light, wear, occlusion and camera far more than usual, for roads that were never seen",
            )  # fmt: skip
        else:
            verb.set_defaults(libraries=("pycocotools",))  # every epoch is scored
            verb.add_argument(
                "--real",
                type=Path,
                metavar="DIR",
                help="also train on these real images, laid out as coco:DIR of multi-dnn retrain; those without a "
                f"{role} are hard negatives",
            )
        verb.add_argument("--start", type=Path, metavar="FILE", help="initial weights, as written by --out")
    from multi_dnn_ros.training import controlled_run, curve, evaluate

    evaluate.add_parser(verbs)
    curve.add_parser(verbs)
    curve.add_curves_parser(verbs)
    controlled_run.add_parser(verbs)
    return top


def _scene_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--scenes", type=Path, required=True, help="folder of the rendered scenes; created if missing")
    verb.add_argument("--count", type=int, default=24_000, help="number of scenes to train on")
    verb.add_argument("--choice", type=int, default=600, help="number of scenes for selecting the best epoch")
    verb.add_argument("--workers", type=int, default=0, help="rendering processes; 0: one per core")


def main(arguments: list[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    try:
        require(args.verb, *getattr(args, "libraries", ()))
        if "run" in args:  # a verb with its own module
            status: int = args.run(args)
            return status
        device = distributed.existing_device("cpu" if args.verb == "render" else args.device)
        scenes = render(recipes.train_spec(args.count), args.scenes / "train", args.workers)
        validation = render(recipes.validation_spec(args.choice), args.scenes / "choice", args.workers)
        if args.verb == "render":
            return 0
        recipe = recipes.recipe(args.verb, args.epochs, args.batch_size, args.lr)
        data = {"train": scenes.spec, "choice": validation.spec}
        if args.verb == "lane":
            road = road_frames(args.road, "train") if args.road else []
            data["road"] = {"frames": [frame.name for frame in road]}
            if args.varied:
                data["augmentation"] = {"varied": True}
            setup = recipes.lane_setup(recipe, scenes, validation, road, device, varied=args.varied)
        else:
            real = recipes.real_images(recipe, args.real) if args.real else None
            if real is not None:
                data["real"] = {"images": len(real.part("train")), "choice": len(real.part("choice"))}
            setup = recipes.detector_setup(recipe, scenes, validation, device, real)
        network = recipe.network()
        if args.start is not None:
            load_weights(network, read_state_dict(existing_file(str(args.start), "--start")), str(args.start))
            data["start"] = {"weights": args.start.name, "sha256": hashlib.sha256(args.start.read_bytes()).hexdigest()}
        network = network.to(device)
        if device.type == "cuda":
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        outcome = train(
            network, setup.batches, setup.loss, setup.score, recipe.schedule,
            main=setup.main, checkpoint=args.resume, progress=not args.quiet,
            identity={"role": args.verb, "batch_size": recipe.batch_size, "data": data},
        )  # fmt: skip
        training = recipes.provenance(recipe, data, outcome.best, outcome.epoch)
        recipes.export(network, recipe, training, args.out)
        print(json.dumps({"role": args.verb, "epoch": outcome.epoch, **outcome.best}))
        return 0
    except (CommandError, DatasetError, TrainingError, MissingExtra, ValueError, OSError) as error:
        print(f"{error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
