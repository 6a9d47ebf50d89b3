"""Reads the metadata of a model (class names, input size, normalization) from the model file and from files beside it.

Sources are the metadata that Ultralytics writes into ONNX files, and YAML or JSON files beside the model in the format
of this package, of Ultralytics, of Hugging Face (preprocessor_config.json, config.json) or of PaddleDetection
(infer_cfg.yml). Parameters of the DNN have precedence over all of them.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.settings.params_file import StrictLoader

_SUFFIXES = (".yaml", ".yml", ".json")
#: Files of exporters that are not named after the model; read if the model is the only one in its folder.
_BY_EXPORTERS = ("infer_cfg.yml", "metadata.yaml", "preprocessor_config.json", "config.json")
_Triple = tuple[float, float, float]


def _in_order(names: Any) -> Any:
    """Names by index from a mapping of numbers 0, 1, 2 ... to names; anything else as it is."""
    if not isinstance(names, dict):
        return names
    numbered = {int(key): name for key, name in names.items()}
    if sorted(numbered) != list(range(len(numbered))):
        raise ValueError(f"its numbers are {sorted(numbered)[:5]} ...; expected 0 to {len(numbered) - 1}")
    return [numbered[index] for index in range(len(numbered))]


_Labels = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_in_order), Field(max_length=65_536)
]
_Side = Annotated[int, Field(ge=0, le=8192, strict=True)]


class _Own(BaseModel, extra="forbid"):
    """This package's own format; its keys have the meaning of the parameters of the same names."""

    labels: _Labels = ()
    input_width: _Side = 0
    input_height: _Side = 0
    resize: Literal["stretch", "letterbox"] | None = None
    color: Literal["rgb", "bgr"] | None = None
    mean: _Triple | None = None
    std: _Triple | None = None
    decoder: str = ""


class _Loader(StrictLoader):
    """Rejects aliases, with which a few bytes can stand for a value of any size. Keys may be numbers, as in `names`."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        return yaml.SafeLoader.construct_mapping(self, node, deep)


@dataclass(frozen=True)
class Metadata:
    """Metadata of a model.

    labels: class names by index. size: (width, height) for sides that the graph leaves free. preprocess: keyword
    arguments of Preprocess. decoder: name of the decoder; empty: not stated. decoder_of_rows: replaces `decoder` if the
    output is (1, N, 6). task: such as detect; empty: not stated. stride: width and height must be multiples of this
    number.
    """

    labels: tuple[str, ...] = ()
    size: tuple[int, int] = (0, 0)
    preprocess: dict[str, Any] = field(default_factory=dict)
    decoder: str = ""
    decoder_of_rows: str = ""
    task: str = ""
    stride: int = 1


def describe(path: Path, properties: Mapping[str, str]) -> Metadata:
    """The metadata in `properties` (of the ONNX file `path`) and in the files beside it. A file that has the name of
    the model has precedence over other files.

    Raises ModelError, which names the file and the key, for values of the wrong kind.
    """
    parts: list[dict[str, Any]] = []
    if "names" in properties and properties.keys() & {"task", "stride", "imgsz"}:
        values = {key: _literal(properties[key], key) for key in ("names", "imgsz", "stride") if key in properties}
        parts.append(_ultralytics({**properties, **values}, "metadata"))
    alone = sum(1 for _ in path.parent.glob("[!.]*.onnx")) == 1
    beside = [path.parent / name for name in _BY_EXPORTERS] if alone else []
    beside += [path.with_suffix(suffix) for suffix in _SUFFIXES]
    parts += [_read(file) for file in beside if file.is_file()]
    found: dict[str, Any] = {"preprocess": {}}
    for part in parts:
        preprocess = {**found["preprocess"], **part.pop("preprocess", {})}
        if part.get("decoder"):
            found["decoder_of_rows"] = ""
        found |= {key: value for key, value in part.items() if value} | {"preprocess": preprocess}
    return Metadata(**found)


def _read(file: Path) -> dict[str, Any]:
    """The fields of Metadata that a file states."""
    try:
        text = file.read_text(encoding="utf-8")
        values = json.loads(text) if file.suffix == ".json" else yaml.load(text, _Loader)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ModelError(f"{file} beside it cannot be read: {summarize_error(error)}") from None
    keys = values.keys() if isinstance(values, dict) else set()
    if "names" in keys:
        return _ultralytics(values, str(file))
    if keys & {"Preprocess", "label_list"}:
        return _paddle(values, str(file))
    if keys & {"id2label", "image_mean", "image_processor_type"}:
        return _hugging_face(values, str(file))
    if file.name in _BY_EXPORTERS:  # describes something else
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in keys):
        allowed = ", ".join(_Own.model_fields)
        raise ModelError(f"{file} beside it holds {type(values).__name__}; expected keys: {allowed}")
    return _own(values, str(file))


def _own(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    own: _Own = _valid(_Own, values, where)
    preprocess: dict[str, Any] = {key: getattr(own, key) for key in ("mean", "std") if getattr(own, key) is not None}
    if own.resize is not None:
        preprocess["fit"] = own.resize
    if own.color is not None:
        preprocess["bgr"] = own.color == "bgr"
    size = (own.input_width, own.input_height)
    return {"labels": own.labels, "size": size if all(size) else None, "preprocess": preprocess, "decoder": own.decoder}


def _ultralytics(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Ultralytics trains on letterboxed RGB images, 0..1; RT-DETR on stretched ones."""
    side = values.get("imgsz") or [0, 0]
    height, width = _valid(tuple[_Side, _Side], [side, side] if isinstance(side, int) else side, f"{where}: imgsz")
    labels = _valid(_Labels, values["names"], f"{where}: names")
    head = str(values.get("head", ""))
    transformer = head == "RTDETRDecoder" or "rtdetr" in str(values.get("description", "")).lower()
    # Without a head in the metadata (before May 2026), rows of 6 numbers may also be boxes with scores of two classes.
    selected = transformer and (bool(head) or len(labels) != 2)
    return {
        "labels": labels, "size": (width, height) if width and height else None,
        "preprocess": {"fit": "stretch" if transformer else "letterbox"},
        "decoder": "rtdetr" if transformer else "", "decoder_of_rows": "rtdetr_selected" if selected else "",
        "task": str(values.get("task", ""))[:40],
        "stride": _valid(Annotated[int, Field(ge=1, le=1024)], values.get("stride", 1), f"{where}: stride"),
    }  # fmt: skip


def _hugging_face(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """config.json names the classes; preprocessor_config.json gives size and normalization."""
    preprocess: dict[str, Any] = {}
    if values.keys() & {"image_mean", "image_processor_type"}:
        preprocess["fit"] = "stretch"
    if values.get("do_normalize", "image_mean" in values):
        for key, name in (("mean", "image_mean"), ("std", "image_std")):
            if values.get(name) is not None:
                preprocess[key] = _valid(_Triple, values[name], f"{where}: {name}")
    if values.get("do_rescale") is False:  # values stay 0..255
        preprocess["mean"] = tuple(each / 255 for each in preprocess.get("mean", (0.0, 0.0, 0.0)))
        preprocess["std"] = tuple(each / 255 for each in preprocess.get("std", (1.0, 1.0, 1.0)))
    size, sides = values.get("size"), None
    if isinstance(size, dict) and size.keys() >= {"width", "height"}:
        sides = _valid(tuple[_Side, _Side], (size["width"], size["height"]), f"{where}: size")
    labels = _valid(_Labels, values.get("id2label") or [], f"{where}: id2label")
    return {"labels": labels, "size": sides, "preprocess": preprocess}


def _paddle(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """PaddleDetection's list of preprocessing steps."""
    found: dict[str, Any] = {"labels": _valid(_Labels, values.get("label_list") or [], f"{where}: label_list")}
    preprocess = found["preprocess"] = {}
    for step in _valid(list[dict[str, Any]], values.get("Preprocess") or [], f"{where}: Preprocess"):
        if step.get("type") == "Resize" and "target_size" in step:
            height, width = _valid(tuple[_Side, _Side], step["target_size"], f"{where}: target_size")
            found["size"] = (width, height)
            preprocess["fit"] = "letterbox" if step.get("keep_ratio") else "stretch"
        if step.get("type") == "NormalizeImage":
            scale = 1.0 if step.get("is_scale", True) else 255.0
            given = {} if step.get("norm_type", "mean_std") == "none" else step
            for key, default in (("mean", [0, 0, 0]), ("std", [1, 1, 1])):
                numbers = _valid(_Triple, given.get(key, default), f"{where}: {key}")
                preprocess[key] = tuple(each / scale for each in numbers)
    return found


def _literal(text: str, key: str) -> Any:
    """Parse a Python literal, such as {0: 'person'}, as Ultralytics writes it."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ModelError(f"metadata {key} is {text[:60]!r}; expected a list or names by number") from None


def _valid(kind: Any, given: Any, where: str) -> Any:
    """`given` as a value of the type `kind`. Raises ModelError, which names `where` and the first problem."""
    try:
        return TypeAdapter(kind).validate_python(given)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "extra_forbidden":
            raise ModelError(
                f"{where}: unknown key {str(first['loc'][0])[:80]!r}; allowed: {', '.join(_Own.model_fields)}"
            ) from None
        place = " ".join(str(part) for part in first["loc"][:1] if kind is _Own)
        where = f"{where}: {place}" if place else where
        missing = f"value {int(first['loc'][-1]) + 1} is missing" if first["type"] == "missing" else first["msg"]
        raise ModelError(f"{where} is {str(first['input'])[:80]!r}: {missing}") from None
