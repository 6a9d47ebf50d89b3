"""Class names from the parameter `labels`: a list, a file, or the name of a set that many models were trained with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.registry import existing_file
from multi_dnn_ros.settings.schema import DnnConfig

#: The classes of COCO by their category numbers; numbers without a class are empty.
_COCO = (
    "person,bicycle,car,motorcycle,airplane,bus,train,truck,boat,traffic light,fire hydrant,,stop sign,parking meter,"
    "bench,bird,cat,dog,horse,sheep,cow,elephant,bear,zebra,giraffe,,backpack,umbrella,,,handbag,tie,suitcase,frisbee,"
    "skis,snowboard,sports ball,kite,baseball bat,baseball glove,skateboard,surfboard,tennis racket,bottle,,wine glass,"
    "cup,fork,knife,spoon,bowl,banana,apple,sandwich,orange,broccoli,carrot,hot dog,pizza,donut,cake,chair,couch,"
    "potted plant,bed,,dining table,,,toilet,,tv,laptop,mouse,remote,keyboard,cell phone,microwave,oven,toaster,sink,"
    "refrigerator,,book,clock,vase,scissors,teddy bear,hair drier,toothbrush"
)

#: The sets that the parameter can name, as in `labels: [coco80]`. coco80: numbered from 0 without gaps, as in most
#: detectors. coco91: by category number, 0 being the background, as in torchvision and DETR; a number without a class
#: is named like "N/A 12".
LABEL_SETS: Mapping[str, tuple[str, ...]] = {
    "coco80": tuple(name for name in _COCO.split(",") if name),
    "coco91": ("background", *(name or f"N/A {number}" for number, name in enumerate(_COCO.split(","), start=1))),
}


def configured_labels(name: str, config: DnnConfig) -> tuple[str, ...]:
    """The names from parameter `dnn.<name>.labels`; empty: it is not set.

    Raises ModelError, which names a file that cannot be read or its first line without a name.
    """
    if len(config.labels) != 1:
        return tuple(config.labels)
    only = config.labels[0]
    if only in LABEL_SETS:
        return LABEL_SETS[only]
    if "/" not in only and Path(only).suffix not in (".txt", ".names"):
        return (only,)
    file = existing_file(only, f"parameter dnn.{name}.labels")
    try:
        text = file.read_text(encoding="utf-8-sig")  # with or without a byte order mark
    except UnicodeDecodeError:
        raise ModelError(f"parameter dnn.{name}.labels is '{only}': not a text file") from None
    names = tuple(line.strip() for line in text.rstrip().splitlines())
    if "" in names:  # skipping it would give each later name to the class before
        raise ModelError(
            f"parameter dnn.{name}.labels is '{only}': line {names.index('') + 1} is empty; each class needs a name"
        )
    return names


def assumed_labels(classes: int) -> tuple[str, ...]:
    """Parameter `labels` for a model without class names: the set with this number of classes, else numbered names."""
    fitting = [key for key, names in LABEL_SETS.items() if len(names) == classes]
    return (fitting[0],) if fitting else tuple(f"class_{number}" for number in range(classes))
