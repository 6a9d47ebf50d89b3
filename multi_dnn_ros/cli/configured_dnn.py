"""Options of commands that take a DNN from a parameter file instead of MODEL."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.cli.options import read_config
from multi_dnn_ros.common.errors import CommandError, UsageError

if TYPE_CHECKING:
    from multi_dnn_ros.settings.schema import NodeConfig


def add_configured_dnn(parser: argparse._ActionsContainer) -> None:
    """--params-file and --dnn."""
    add = parser.add_argument
    add("--params-file", type=Path, metavar="YAML",
        help="instead of MODEL: a DNN of this parameter file, with its crop and all its results")  # fmt: skip
    add("--dnn", metavar="NAME", help="the DNN of --params-file (default: its only one)")


def check_configured(args: argparse.Namespace, models: object, model_options: Mapping[str, object]) -> None:
    """Check that either MODEL or --params-file is given, and only options that belong to it.

    models: the value of MODEL. model_options: options that are allowed only with MODEL, with their defaults. Raises
    UsageError; CommandError for a parameter file that does not exist.
    """
    if args.params_file is None:
        if args.dnn is not None:
            raise UsageError("--dnn names a DNN of --params-file, which is missing")
        if not models:
            raise UsageError("expected MODEL, or --params-file")
        return
    if not args.params_file.is_file():
        raise CommandError(f"--params-file is {args.params_file}: no such file")
    for option, default in model_options.items():
        if getattr(args, option.replace("-", "_")) != default:
            raise UsageError(f"--{option} is for MODEL; a DNN of --params-file has its parameters there")
    if models:
        raise UsageError("MODEL and --params-file both name a model; give only one of them")


def read_configured(args: argparse.Namespace) -> tuple[str, NodeConfig]:
    """Name of the DNN and the parameters. Raises UsageError, ParameterError."""
    config = read_config(args)
    names = ", ".join(config.dnns)
    if args.dnn is None and len(config.dnns) == 1:
        return next(iter(config.dnns)), config
    if args.dnn is None:
        raise UsageError(f"--dnn is missing; the parameter file has: {names}")
    if args.dnn not in config.dnns:
        raise UsageError(f"--dnn is {args.dnn!r}; the parameter file has: {names}")
    return str(args.dnn), config
