"""``multi-dnn retrain``: train a DNN, usually to recover the accuracy that its decomposition cost."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

import filelock

from multi_dnn_ros.cli import networks, options
from multi_dnn_ros.cli.figures import rows_table, write_figures
from multi_dnn_ros.cli.options import Commands, add_command, add_options, fraction, positive
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.settings.forms import TRAINING_PRECISIONS

_TEXT = f"""\
Train a DNN, for example to recover the accuracy that decomposition cost.

The network is trained, scored on data that is used neither for training nor for choosing the epoch, and written as one
file that the node loads (parameter dnn.<dnn>.model: FILE).

The weights of the best epoch are kept, or the original ones if no epoch is better. Epochs are compared by top-1,
mAP@0.5 or lane F1 on a separate part of the data. With --checkpoint, repeating the command continues an interrupted run
and produces the same weights as an uninterrupted one.

{networks.DATA_HELP}
Several processes, on several GPUs or on a CPU:

  torchrun --nproc-per-node N -m multi_dnn_ros.cli.main retrain ...

examples:
  multi-dnn retrain object.safetensors --output better.safetensors --data road --teacher builtin:object --epochs 8
  multi-dnn retrain torchvision:vgg16 --weights random --num-classes 10 --data cifar10:c --output vgg16.safetensors
  multi-dnn retrain people.pt2 --labels person --data coco:coco --output better.pt2 --lr 1e-4
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(commands, "retrain", _TEXT, run, libraries=("pycocotools",))
    add_options(parser, "model", help=f"network to train, often a file of `multi-dnn decompose`: {options.MODEL_HELP}")
    add_options(parser, "--output", metavar="FILE", required=True, help="file to write; an existing one is replaced")
    add_options(parser, "--data", "--scenes", "--device", "--report", *options.NETWORK)
    add = parser.add_argument_group("teacher (knowledge distillation)").add_argument
    add("--teacher", metavar="MODEL",
        help="network whose outputs are also training targets, such as the original (default: none)")  # fmt: skip
    add("--teacher-weight", type=fraction, default=0.5, metavar="X",
        help="the teacher's part of the loss, 0..1 (default: %(default)s)")  # fmt: skip
    schedule = parser.add_argument_group("schedule")
    add = schedule.add_argument
    add("--epochs", type=positive, default=10, metavar="N", help="number of epochs (default: %(default)s)")
    add_options(schedule, "--batch-size", help="images per step, over all processes together (default: 64)")
    add("--optimizer", choices=("adamw", "sgd"), default="adamw", help="optimizer (default: %(default)s)")
    add("--lr", type=options.positive_float, default=1e-3, metavar="X",
        help="maximum learning rate; it decays to zero along a cosine (default: %(default)s)")  # fmt: skip
    add("--label-smoothing", type=fraction, default=0.1, metavar="X",
        help="for classifiers: label smoothing, 0..1 (default: %(default)s)")  # fmt: skip
    add("--average", type=fraction, default=0.999, metavar="X",
        help="decay of the moving average of the weights, per step; 0: no average (default: %(default)s)")  # fmt: skip
    add_options(schedule, "--precision", choices=TRAINING_PRECISIONS, default="bf16",
                help="precision of the forward pass on a GPU; CPUs compute in fp32 (default: bf16)")  # fmt: skip
    add_options(schedule, "--seed", help="random seed of order, augmentation and dropout (default: 0)")
    add("--checkpoint", type=Path, metavar="FILE",
        help="file for the state of training, written after every epoch; training continues from it")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Train, write the artifact and print the scores."""
    networks.check_files(args, args.data)
    from multi_dnn_ros.serving.choices import choose_device
    from multi_dnn_ros.training import distributed
    from multi_dnn_ros.training.loop import Schedule, set_training
    from multi_dnn_ros.training.retrain import retrain

    networks.check_weights(args)
    if args.teacher and args.weights == "random" and networks.takes_weights(args.teacher):
        raise UsageError(f"--teacher {args.teacher} would have random weights; name a trained network")
    if args.checkpoint is not None and args.checkpoint.absolute() == args.output.absolute():
        raise UsageError(f"--checkpoint and --output are both {args.output}; expected two different files")
    student = networks.read_trainable(args, args.model, smoothing=args.label_smoothing)
    networks.check_suffix(args.output, args.model, student.source)
    teacher = networks.read_trainable(args, args.teacher) if args.teacher else None
    sets = networks.read_data(args, student)
    schedule = Schedule(
        args.epochs, args.lr, args.optimizer, ema=args.average, precision=args.precision, seed=args.seed
    )
    with distributed.process_group(str(choose_device(args.device, "--device is"))) as device, ExitStack() as stack:
        writes = distributed.rank() == 0
        if writes and args.checkpoint is not None:
            try:
                stack.enter_context(filelock.FileLock(f"{args.checkpoint}.lock", timeout=0))
            except filelock.Timeout:
                raise CommandError(
                    f"{args.checkpoint} is written by another training; end it first, or give another --checkpoint"
                ) from None
        training = retrain(
            student, sets, schedule, batch_size=args.batch_size, device=device, teacher=teacher,
            teacher_weight=args.teacher_weight, checkpoint=args.checkpoint,
        )  # fmt: skip
    if not writes:
        return 0
    before, labels = student.source.description, sets[0].labels if student.task == "classes" else student.labels
    set_training(student.source.module, False)
    networks.write_artifact(
        args, student.source, student.source.module, student.size, labels,
        before.plan if before is not None else {}, {"training": training},
    )  # fmt: skip
    first, last = training["test_scores"].values()
    print(rows_table([
        {"test part": name, "before": f"{first[name]:.4f}", "after": f"{value:.4f}",
         "change": f"{value - first[name]:+.4f}"}
        for name, value in last.items()
    ]))  # fmt: skip
    epoch = training["kept_epoch"] + 1
    kept = f"epoch {epoch} kept" if epoch else "no epoch was better: the initial weights are kept"
    print(f"{kept}, {training['seconds']:.0f} s of training; written to {args.output}")
    write_figures(args.report and args.report / "retrain.json", {"model": args.model, "training": training})
    return 0
