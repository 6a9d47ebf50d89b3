"""The kinds of data of ``--data KIND:PATH``: one table for the help, the error messages and the code that reads them.

This module does not import PyTorch, so that the command line can read the table for its help.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class DataKind:
    """One kind of data set.

    path: what its path is, PATH or DIR. layout: what is expected there, for the help and for messages. tasks: what it
    can hold: "classes", "boxes", "lanes". data: "module:function" that makes a
    :class:`~multi_dnn_ros.training.data.Data` from (name, path, DataRequest). needs_path: whether the path must be
    given.
    """

    path: str
    layout: str
    tasks: tuple[str, ...]
    data: str
    needs_path: bool = True


#: By the name before the colon. docs/training.md has a row for the parts of each kind; a test compares them.
DATA_KINDS: Mapping[str, DataKind] = {
    "cifar10": DataKind(
        "PATH",
        "CIFAR-10: its binary archive, or a folder or archive with train/<class>/*.jpg and test/<class>/*.jpg",
        ("classes",),
        "multi_dnn_ros.training.data:open_cifar10",
    ),
    "classes": DataKind(
        "DIR",
        "DIR/train/<class>/*.jpg and DIR/val/... (torchvision's ImageFolder), and DIR/test/ if it exists",
        ("classes",),
        "multi_dnn_ros.training.data:open_classes",
    ),
    "coco": DataKind(
        "DIR",
        "DIR/annotations/instances_train*.json and _val*.json, images in DIR/train*/ and DIR/val*/",
        ("boxes",),
        "multi_dnn_ros.training.data:open_coco",
    ),
    "yolo": DataKind(
        "DIR",
        "DIR/images/train/NAME.jpg with DIR/labels/train/NAME.txt, the same for val and, if it exists, test; a file "
        "DIR/*.yaml with the class names as `names`",
        ("boxes",),
        "multi_dnn_ros.training.data:open_yolo",
    ),
    "lanes": DataKind(
        "DIR",
        "DIR/train/images/NAME.jpg with DIR/train/masks/NAME.png (not 0 = lane), DIR/val/...",
        ("lanes",),
        "multi_dnn_ros.training.data:open_lanes",
    ),
    "road": DataKind(
        "DIR",
        "generated road with exact truth, rendered once into DIR; `road` alone: into the user's cache",
        ("boxes", "lanes"),
        "multi_dnn_ros.training.data:open_road",
        needs_path=False,
    ),
}


def help_text() -> str:
    """A line for each kind: `KIND:PATH` and its layout."""
    return "\n".join(
        textwrap.fill(
            kind.layout, 117, initial_indent=f"  {f'{name}:{kind.path}':<15}", subsequent_indent=" " * 17,
            break_on_hyphens=False, break_long_words=False,
        )
        for name, kind in DATA_KINDS.items()
    )  # fmt: skip
