"""The registries: what can be chosen by name, from this package and from other installed packages.

A registry maps a name to a specification object. Ours are listed in :data:`OWN`; another package adds one by an entry
point (:mod:`importlib.metadata`) in the registry's group, whose name is the name to choose it by:

    [project.entry-points."multi_dnn_ros.decoders"]
    centers = "my_package.centers:SPEC"

Listing names reads the metadata of installed packages and imports nothing. A specification is imported when it is used,
so that the node's process, which must stay free of PyTorch, knows the names of decoders without importing one.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

BACKENDS = "multi_dnn_ros.backends"
DECODERS = "multi_dnn_ros.decoders"
MODEL_SOURCES = "multi_dnn_ros.model_sources"
RESULT_KINDS = "multi_dnn_ros.result_kinds"


class ExtensionError(ValueError):
    """A name in a registry is not known or cannot be used; the message says why."""


def names(group: str) -> tuple[str, ...]:
    """Every name in a registry: this package's names in the order of OWN, then those of other packages, sorted."""
    return tuple(_found(group))


def model_forms() -> tuple[str, ...]:
    """How a model can be given, by model source: `builtin:<name>`, or `an .onnx file`."""
    return tuple(_file_form(name) if name.startswith(".") else f"{name}:<name>" for name in names(MODEL_SOURCES))


def _file_form(suffix: str) -> str:
    article = "an" if suffix[1:2] in tuple("aeio") else "a"
    return f"{article} {suffix} file"


def distribution(group: str, name: str) -> str:
    """Name and version of the distribution that provides this name; empty: this package, or the name is not known."""
    return _found(group).get(name, ("", ""))[1]


def display_name(group: str, name: str) -> str:
    """The extension for messages, such as "decoder 'centers' of my-package 0.1"."""
    provided_by = distribution(group, name)
    return f"{_NOUNS[group]} '{name}'" + (f" of {provided_by}" if provided_by else "")


def load(reference: str) -> Any:
    """The object at ``module:attribute``. Raises what importing the module raises, and AttributeError."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


def loaded(value: Any) -> Any:
    """A field of a specification that may be given as ``module:attribute``: the object. Raises as :func:`load`."""
    return load(value) if isinstance(value, str) else value


class Registry(Generic[T]):
    """The specifications of one group. spec: their class, which has an attribute `name`."""

    def __init__(self, spec: type[T], group: str) -> None:
        self._spec = spec
        self._group = group
        self._known: dict[str, T | ExtensionError] = {}

    def names(self) -> tuple[str, ...]:
        """See :func:`names`."""
        return names(self._group)

    def get(self, name: str) -> T:
        """The specification with this name, imported on first use.

        Raises ExtensionError if the name is unknown (the message lists the allowed names), if the specification cannot
        be imported, or if the imported object is not a specification with this name.
        """
        if name not in self.names():
            raise ExtensionError(f"{_NOUNS[self._group]} '{name}' is not known; allowed: {', '.join(self.names())}")
        if name not in self._known:
            self._known[name] = self._load(name)
        found = self._known[name]
        if isinstance(found, ExtensionError):
            raise found
        return found

    def usable(self) -> list[T]:
        """Every specification that can be used, imported now. Logs one warning for each of the others."""
        found = []
        for name in self.names():
            known = name in self._known
            try:
                found.append(self.get(name))
            except ExtensionError as error:
                if not known:
                    log.warning("%s", error)
        return found

    def _load(self, name: str) -> T | ExtensionError:
        reference, _ = _found(self._group)[name]
        unusable = f"{display_name(self._group, name)} cannot be used: {reference}"
        try:
            spec: Any = load(reference)
        except Exception as error:  # whatever a module of another package raises
            return ExtensionError(f"{unusable}: {type(error).__name__}: {error}")
        if not isinstance(spec, self._spec) or getattr(spec, "name", "") != name:
            return ExtensionError(f"{unusable} is not a {self._spec.__name__} with the name '{name}'")
        return spec


@cache
def _found(group: str) -> Mapping[str, tuple[str, str]]:
    """Reference and distribution (empty: this package) by name. Of several with one name the first is used."""
    entries = {name: (f"multi_dnn_ros.{reference}", "") for name, reference in OWN[group].items()}
    points = [(point, f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package")
              for point in entry_points(group=group)]  # fmt: skip
    for point, provided_by in sorted(points, key=lambda pair: (pair[0].name, pair[1])):
        if point.name in entries:
            taken = entries[point.name][1] or "multi_dnn_ros"
            log.warning(
                "%s '%s' of %s is not used: %s has one of this name", _NOUNS[group], point.name, provided_by, taken
            )
        else:
            entries[point.name] = (point.value, provided_by)
    return entries


_NOUNS = {
    BACKENDS: "backend", DECODERS: "decoder", MODEL_SOURCES: "model source", RESULT_KINDS: "result kind",
}  # fmt: skip
#: Specifications of this package: group -> name -> reference to the object, as in an entry point, after the name of
#: this package.
OWN: Mapping[str, Mapping[str, str]] = {
    BACKENDS: {
        "eager": "backends.eager:SPEC",
        "onnxruntime": "backends.onnxruntime_backend:SPEC",
        "cuda_graph": "backends.cuda_graph:SPEC",
        "inductor": "backends.inductor:SPEC",
    },
    DECODERS: {
        "torchvision": "decoders.anchor:SPEC",
        "yolo": "decoders.yolo:SPEC",
        "grid": "decoders.grid:SPEC",
        "segmentation": "decoders.segmentation:SPEC",
        "lane": "decoders.lane_map:SPEC",
        "yolov5": "decoders.yolo:V5",
        "yolox": "decoders.yolo:X",
        "yolo_masks": "decoders.yolo:MASKS",
        "yolo_instances": "decoders.yolo_instances:SPEC",
        "end_to_end": "decoders.yolo:END_TO_END",
        "nanodet": "decoders.nanodet:SPEC",
        "nanodet_plus": "decoders.nanodet:PLUS",
        "picodet": "decoders.nanodet:PICODET",
        "rtdetr": "decoders.detr:RTDETR",
        "rtdetr_selected": "decoders.detr:RTDETR_SELECTED",
        "detr": "decoders.detr:SPEC",
        "detr_sigmoid": "decoders.detr:SIGMOID",
        "postprocessed": "decoders.detr:POSTPROCESSED",
        "ssd": "decoders.grid:SSD",
        "twinlitenet": "decoders.lane_map:TWINLITENET",
        "drivable": "decoders.lane_map:DRIVABLE",
        "ufld": "decoders.ufld:SPEC",
        "ufldv2": "decoders.ufld:V2",
        "lstr": "decoders.lane_curves:SPEC",
        "clrnet": "decoders.lane_curves:CLRNET",
        "yolop": "decoders.yolop:SPEC",
        "yolop_lanes": "decoders.yolop:LANES",
        "yolop_drivable": "decoders.yolop:DRIVABLE",
    },
    MODEL_SOURCES: {
        "builtin": "models.own_sources:BUILTIN",
        "torchvision": "models.own_sources:TORCHVISION",
        ".safetensors": "models.own_sources:SAFETENSORS",
        ".pt2": "models.own_sources:EXPORTED",
        ".onnx": "models.own_sources:ONNX",
    },
    RESULT_KINDS: {
        name: f"vision.result_kinds.{name}:KIND"
        for name in ("lanes", "detections", "semantic_mask", "instance_masks", "drivable_area")
    },
}
