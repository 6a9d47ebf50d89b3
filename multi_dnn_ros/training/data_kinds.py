"""The kinds of data of ``--data KIND:PATH``: one table for the help, the error messages and the code that reads them.

This module does not import PyTorch, so that help and wrong paths take no time.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from multi_dnn_ros.common.resources import cache_folder


class DatasetError(ValueError):
    """A data set is missing, empty or malformed; the message names the file or folder."""


class DataKind(NamedTuple):
    """path: what its path is, PATH or DIR. layout: what is expected there. tasks: what it can hold: "classes", "boxes",
    "lanes".
    """

    path: str
    layout: str
    tasks: tuple[str, ...]


#: By the name before the colon. docs/training.md has a row for the parts of each kind; a test compares them.
DATA_KINDS: Mapping[str, DataKind] = {
    "cifar10": DataKind(
        "PATH",
        "CIFAR-10's binary version: cifar-10-binary.tar.gz, or the folder with data_batch_1.bin and so on",
        ("classes",),
    ),
    "classes": DataKind(
        "DIR",
        "DIR/train/<class>/*.jpg and DIR/val/... or DIR/test/... or both (torchvision's ImageFolder)",
        ("classes",),
    ),
    "coco": DataKind(
        "DIR",
        "DIR/annotations/instances_train*.json and _val*.json, images in DIR/train*/ and DIR/val*/",
        ("boxes",),
    ),
    "yolo": DataKind(
        "DIR",
        "DIR/images/train/NAME.jpg with DIR/labels/train/NAME.txt, the same for val and, if it exists, test; a file "
        "DIR/*.yaml with the class names as `names`",
        ("boxes",),
    ),
    "lanes": DataKind(
        "DIR",
        "DIR/train/images/NAME.jpg with DIR/train/masks/NAME.png (not 0 = lane), DIR/val/...",
        ("lanes",),
    ),
    "road": DataKind(
        "DIR",
        "generated road with exact truth, rendered once into DIR; `road` alone: into the user's cache",
        ("boxes", "lanes"),
    ),
}


def kind_and_path(name: str) -> tuple[str, Path]:
    """Kind and path of ``KIND:PATH``. Raises DatasetError for an unknown kind, and for a path that does not exist."""
    kind, _, path = name.partition(":")
    if kind not in DATA_KINDS:
        raise DatasetError(f"data '{name}': kind '{kind}'; allowed: {', '.join(DATA_KINDS)}, each followed by :PATH")
    if kind == "road":
        return kind, Path(path) if path else cache_folder() / kind
    spec = DATA_KINDS[kind]
    if not path:
        raise DatasetError(f"data '{name}': a path is missing; expected {kind}:{spec.path}, {spec.layout}")
    if not Path(path).exists():
        raise DatasetError(f"data '{name}': {path}: no such file or folder; expected {spec.layout}")
    return kind, Path(path)


def help_text() -> str:
    """A line for each kind: `KIND:PATH` and its layout."""
    return "\n".join(
        textwrap.fill(
            kind.layout, 117, initial_indent=f"  {f'{name}:{kind.path}':<15}", subsequent_indent=" " * 17,
            break_on_hyphens=False, break_long_words=False,
        )
        for name, kind in DATA_KINDS.items()
    )  # fmt: skip
