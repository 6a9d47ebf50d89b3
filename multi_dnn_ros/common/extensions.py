"""The registries: what can be chosen by name, from this package and from other installed packages.

A registry maps a name to a specification object. Ours are listed in :data:`OWN`; another package adds one by an entry
point (:mod:`importlib.metadata`) in the registry's group, whose name is the name to choose it by:

    [project.entry-points."multi_dnn_ros.decoders"]
    centers = "my_package.centers:SPEC"

Listing names reads the metadata of installed packages and imports nothing. A specification is imported when it is used,
so that the node's process, which must stay free of PyTorch, knows the names of decoders without importing one.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from multi_dnn_ros.common.error_text import summarize_error

log = logging.getLogger(__name__)

T = TypeVar("T")

BACKENDS = "multi_dnn_ros.backends"
DECODERS = "multi_dnn_ros.decoders"
MODEL_SOURCES = "multi_dnn_ros.model_sources"
RESULT_KINDS = "multi_dnn_ros.result_kinds"

#: Specifications of this package: group -> name -> reference to the object, as in an entry point.
OWN: Mapping[str, Mapping[str, str]] = {
    BACKENDS: {
        "eager": "multi_dnn_ros.backends.eager:SPEC",
        "torchscript": "multi_dnn_ros.backends.torchscript:SPEC",
        "onnxruntime": "multi_dnn_ros.backends.onnxruntime_backend:SPEC",
        "cuda_graph": "multi_dnn_ros.backends.cuda_graph:SPEC",
        "inductor": "multi_dnn_ros.backends.inductor:SPEC",
    },
    DECODERS: {
        "torchvision": "multi_dnn_ros.vision.decoders.anchor:SPEC",
        "yolo": "multi_dnn_ros.vision.decoders.yolo:SPEC",
        "grid": "multi_dnn_ros.vision.decoders.grid:SPEC",
        "segmentation": "multi_dnn_ros.vision.decoders.segmentation:SPEC",
        "lane": "multi_dnn_ros.vision.decoders.lane:SPEC",
        "yolov5": "multi_dnn_ros.vision.decoders.yolov5:SPEC",
        "yolox": "multi_dnn_ros.vision.decoders.yolox:SPEC",
        "yolo_masks": "multi_dnn_ros.vision.decoders.yolo_masks:SPEC",
        "yolo_instances": "multi_dnn_ros.vision.decoders.yolo_instances:SPEC",
        "end_to_end": "multi_dnn_ros.vision.decoders.end_to_end:SPEC",
        "nanodet": "multi_dnn_ros.vision.decoders.nanodet:SPEC",
        "nanodet_plus": "multi_dnn_ros.vision.decoders.nanodet_plus:SPEC",
        "picodet": "multi_dnn_ros.vision.decoders.picodet:SPEC",
        "rtdetr": "multi_dnn_ros.vision.decoders.rtdetr:SPEC",
        "rtdetr_selected": "multi_dnn_ros.vision.decoders.rtdetr_selected:SPEC",
        "detr": "multi_dnn_ros.vision.decoders.detr:SPEC",
        "detr_sigmoid": "multi_dnn_ros.vision.decoders.detr_sigmoid:SPEC",
        "postprocessed": "multi_dnn_ros.vision.decoders.postprocessed:SPEC",
        "ssd": "multi_dnn_ros.vision.decoders.ssd:SPEC",
        "twinlitenet": "multi_dnn_ros.vision.decoders.twinlitenet:SPEC",
        "drivable": "multi_dnn_ros.vision.decoders.drivable:SPEC",
        "ufld": "multi_dnn_ros.vision.decoders.ufld:SPEC",
        "ufldv2": "multi_dnn_ros.vision.decoders.ufldv2:SPEC",
        "lstr": "multi_dnn_ros.vision.decoders.lstr:SPEC",
        "clrnet": "multi_dnn_ros.vision.decoders.clrnet:SPEC",
        "yolop": "multi_dnn_ros.vision.decoders.yolop:SPEC",
        "yolop_lanes": "multi_dnn_ros.vision.decoders.yolop:LANES",
        "yolop_drivable": "multi_dnn_ros.vision.decoders.yolop:DRIVABLE",
    },
    MODEL_SOURCES: {
        "builtin": "multi_dnn_ros.models.builtin_source:SPEC",
        "torchvision": "multi_dnn_ros.models.torchvision_source:SPEC",
        ".safetensors": "multi_dnn_ros.models.safetensors_source:SPEC",
        ".pt2": "multi_dnn_ros.models.exported_source:SPEC",
        ".onnx": "multi_dnn_ros.models.onnx_source:SPEC",
    },
    RESULT_KINDS: {
        "lanes": "multi_dnn_ros.vision.result_kinds.lanes:KIND",
        "detections": "multi_dnn_ros.vision.result_kinds.detections:KIND",
        "semantic_mask": "multi_dnn_ros.vision.result_kinds.semantic_mask:KIND",
        "instance_masks": "multi_dnn_ros.vision.result_kinds.instance_masks:KIND",
        "drivable_area": "multi_dnn_ros.vision.result_kinds.drivable_area:KIND",
    },
}
_NOUNS = {
    BACKENDS: "backend", DECODERS: "decoder", MODEL_SOURCES: "model source", RESULT_KINDS: "result kind",
}  # fmt: skip
_NAME = re.compile(r"\.?[a-z][a-z0-9_]*")
_NAME_RULE = f"lower-case letters, digits and _, a letter first, after an optional dot ({_NAME.pattern})"


class ExtensionError(ValueError):
    """A name in a registry is not known or cannot be used; the message says why."""


class UnknownExtension(ExtensionError):
    """No entry point has this name."""


@dataclass(frozen=True)
class _Entry:
    """Where a specification is. distribution: name and version of the one that provides it; empty: this package."""

    reference: str
    distribution: str


def names(group: str) -> tuple[str, ...]:
    """Every name in a registry: this package's names in the order of OWN, then those of other packages, sorted."""
    return tuple(_found(group)[0])


def model_forms() -> tuple[str, ...]:
    """How a model can be given, by model source: `builtin:<name>`, or `an .onnx file`."""
    return tuple(_file_form(name) if name.startswith(".") else f"{name}:<name>" for name in names(MODEL_SOURCES))


def _file_form(suffix: str) -> str:
    article = "an" if suffix[1:2] in tuple("aeio") else "a"
    return f"{article} {suffix} file"


def distribution(group: str, name: str) -> str:
    """Name and version of the distribution that provides this name; empty: this package, or the name is not known."""
    entry = _found(group)[0].get(name)
    return entry.distribution if entry is not None else ""


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
        self._loaded: dict[str, T] = {}
        self._failed: dict[str, ExtensionError] = {}
        self._reported: set[str] = set()

    def names(self) -> tuple[str, ...]:
        """See :func:`names`."""
        return names(self._group)

    def get(self, name: str) -> T:
        """The specification with this name, imported on first use.

        Raises UnknownExtension if the name is unknown (the message lists the allowed names), ExtensionError if it is
        one that no extension may have, if the specification cannot be imported, or if the imported object is not a
        specification with this name.
        """
        if name not in self._loaded:
            if name in self._failed:  # importing again would take as long as before
                raise ExtensionError(str(self._failed[name])) from self._failed[name]
            try:
                self._loaded[name] = self._load(name)
            except ExtensionError as error:
                if name in self.names():
                    self._failed[name] = error
                raise
        return self._loaded[name]

    def usable(self) -> list[T]:
        """Every specification that can be used, imported now; see :meth:`report_broken` for the others."""
        found = []
        for name in self.names():
            with contextlib.suppress(ExtensionError):
                found.append(self.get(name))
        return found

    def report_broken(self, report: Callable[[str], object] = log.warning) -> None:
        """Import the specifications of other packages and call `report`, once per process, for each unusable one.

        It gets a line with the distribution and the problem. The other names of the registry are not affected.
        """
        entries, problems = _found(self._group)
        lines = [line for _, line in problems]
        for name, entry in entries.items():
            if entry.distribution:
                try:
                    self.get(name)
                except ExtensionError as error:
                    lines.append(str(error))
        for line in lines:
            self.report_once(line, report)

    def report_once(self, line: str, report: Callable[[str], object] = log.warning) -> None:
        """Call `report` with the line, unless it was reported before in this process."""
        if line not in self._reported:
            self._reported.add(line)
            report(line)

    def _load(self, name: str) -> T:
        noun, (entries, problems) = _NOUNS[self._group], _found(self._group)
        entry = entries.get(name)
        if entry is None:
            if name in dict(problems):
                raise ExtensionError(dict(problems)[name])
            raise UnknownExtension(f"{noun} '{name}' is not known; allowed: {', '.join(entries)}")
        unusable = f"{noun} '{name}' of {entry.distribution or 'multi_dnn_ros'} cannot be used: {entry.reference}"
        try:
            spec = load(entry.reference)
        except (Exception, SystemExit) as error:  # whatever a module of another package raises
            raise ExtensionError(f"{unusable}: {type(error).__name__}: {summarize_error(error)}") from error
        if not isinstance(spec, self._spec):
            raise ExtensionError(f"{unusable} is of type {type(spec).__name__}; expected {self._spec.__name__}")
        spec_name: Any = getattr(spec, "name", None)
        if spec_name != name:
            raise ExtensionError(f"{unusable} has the name {spec_name!r}; expected {name!r}, as its entry point")
        return spec


@cache
def _found(group: str) -> tuple[Mapping[str, _Entry], tuple[tuple[str, str], ...]]:
    """Entries by name, and name and a line for each entry point that is not used. Of several with one name the first is
    used.
    """
    entries = {name: _Entry(reference, "") for name, reference in OWN[group].items()}
    problems = []
    points = [(f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package", point)
              for point in entry_points(group=group)]  # fmt: skip
    for provided_by, point in sorted(points, key=lambda pair: (pair[1].name, pair[0])):
        unusable = f"{_NOUNS[group]} '{point.name}' of {provided_by} is not used"
        if not _NAME.fullmatch(point.name):
            problems.append((point.name, f"{unusable}: allowed names: {_NAME_RULE}"))
        elif point.name in entries:
            taken = entries[point.name].distribution or "multi_dnn_ros"
            problems.append((point.name, f"{unusable}: {taken} has one of this name"))
        else:
            entries[point.name] = _Entry(point.value, provided_by)
    return entries, tuple(problems)
