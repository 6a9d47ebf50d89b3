"""Training data of the predictor: a CSV with one row per layer, load and setting."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from multi_dnn_ros.common.reporting import write_text
from multi_dnn_ros.graph.operations import KINDS
from multi_dnn_ros.planning.profile import Distribution, LayerShape, ProfileError

LoadKind = Literal["none", "compute", "memory", "dnn"]
LOAD_KINDS: tuple[LoadKind, ...] = ("none", "compute", "memory", "dnn")
_MAX_BYTES = 256 << 20


@dataclass(frozen=True)
class LayerCounts:
    """The properties of a layer that the predictor uses. kind: one of graph.operations.KINDS.

    channels_in, channels_out: size of axis 1 of the first input and output (0: none). pixels: output positions per
    channel, over all images of the batch.
    """

    kind: str
    macs: int
    flops: int
    parameters: int
    bytes_read: int
    bytes_written: int
    window: int
    groups: int
    channels_in: int
    channels_out: int
    pixels: int

    @classmethod
    def of(cls, layer: LayerShape) -> LayerCounts:
        first = layer.inputs[0] if layer.inputs else ()
        last = layer.outputs[0] if layer.outputs else ()
        return cls(
            kind=layer.kind,
            **dict(layer.work),
            window=layer.window,
            groups=layer.groups,
            channels_in=first[1] if len(first) > 1 else 0,
            channels_out=last[1] if len(last) > 1 else 0,
            pixels=math.prod(last) // last[1] if len(last) > 1 and last[1] else math.prod(last),
        )


@dataclass(frozen=True)
class Setting:
    """Where a layer ran. device: name, threads and precision. cores: of a CPU; 0 for a GPU. sms: of a slice; 0: all.

    flops_per_s, bytes_per_s: limits of the device or slice.
    """

    device: str
    backend: str
    precision: str
    threads: int
    cores: int
    sms: int
    flops_per_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Load:
    """Background load. level: number of threads on a CPU or of streams on a GPU; 0 if kind is "none"."""

    kind: LoadKind = "none"
    level: int = 0

    def __str__(self) -> str:
        return f"{self.level} x {self.kind}" if self.level else "alone"


@dataclass(frozen=True)
class Sample:
    """One layer of one model under one load.

    ms, ms_mean, ms_p25, ms_p75: median, mean and quartiles over `rounds`. versions: of the libraries. load_network: of
    loads of kind dnn. Both are empty in tables of earlier versions of this package.
    """

    model: str
    layer: str
    counts: LayerCounts
    setting: Setting
    load: Load
    ms: float
    ms_mean: float
    ms_p25: float
    ms_p75: float
    rounds: int
    versions: str = ""
    load_network: str = ""

    @classmethod
    def of(cls, model: str, layer: LayerShape, times: Distribution, setting: Setting, load: Load) -> Sample:
        return cls(
            model, layer.name, LayerCounts.of(layer), setting, load, times.p50, times.mean, times.p25, times.p75,
            times.samples,
        )  # fmt: skip


def _fields(kind: type, prefix: str = "") -> dict[str, Any]:
    """Column names of a data class, nested ones included, with their types."""
    types = typing.get_type_hints(kind)
    columns: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(types[field.name]):
            nested = "load_" if types[field.name] is Load else ""
            columns |= _fields(types[field.name], nested)
        else:
            columns[prefix + field.name] = types[field.name]
    return columns


COLUMNS = _fields(Sample)
#: Columns that tables of earlier versions of this package do not have, and what they are then.
_LATER_COLUMNS = {"versions": "", "load_network": ""}


def write_samples(path: Path, samples: Iterable[Sample]) -> None:
    """Write the table atomically."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for sample in samples:
        values = {**_flat(sample.counts), **_flat(sample.setting)}
        values |= {"load_kind": sample.load.kind, "load_level": sample.load.level}
        row = {**_flat(sample), **values}
        writer.writerow([f"{row[name]:.6g}" if COLUMNS[name] is float else row[name] for name in COLUMNS])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text.getvalue())


def read_samples(path: Path) -> list[Sample]:
    """Read a table. Raises ProfileError, which names the file, line, column and error."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ProfileError(f"{path}: larger than {_MAX_BYTES >> 20} MiB; expected a table of layer times")
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (*(reader.fieldnames or ()), *_LATER_COLUMNS)]
            if missing:
                raise ProfileError(
                    f"{path}: has no column {', '.join(missing)}; expected a table of profile contention"
                )
            samples = [_sample(row, f"{path}, line {number}") for number, row in enumerate(reader, start=2)]
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ProfileError(f"{path}: not a table: {error}") from None
    if not samples:
        raise ProfileError(f"{path}: the table is empty")
    return samples


def known_layers(samples: Sequence[Sample]) -> list[Sample]:
    """Samples with a meaningful time: no views, and no layers below the clock's resolution."""
    return [sample for sample in samples if sample.counts.kind != "view" and sample.ms > 0.0]


def _flat(part: Any) -> dict[str, Any]:
    return {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}


def _sample(row: dict[str, Any], where: str) -> Sample:
    values: dict[str, Any] = {}
    for name, kind in COLUMNS.items():
        text = row.get(name, _LATER_COLUMNS.get(name))
        if kind in (int, float):
            try:
                values[name] = kind(text)
            except (TypeError, ValueError):
                raise ProfileError(f"{where}: {name} is '{text}'; expected a number") from None
            if not (math.isfinite(values[name]) and values[name] >= 0):
                raise ProfileError(f"{where}: {name} is {text}; expected 0 or more")
        else:
            values[name] = text
    for name in ("flops_per_s", "bytes_per_s"):
        if not values[name]:
            raise ProfileError(f"{where}: {name} is {row[name]}; expected more than 0")
    if values["kind"] not in KINDS:
        raise ProfileError(f"{where}: kind is '{values['kind']}'; expected one of {', '.join(KINDS)}")
    if values["load_kind"] not in LOAD_KINDS:
        raise ProfileError(f"{where}: load_kind is '{values['load_kind']}'; expected {', '.join(LOAD_KINDS)}")

    def part(kind: type, prefix: str = "") -> Any:
        return kind(**{field.name: values[prefix + field.name] for field in dataclasses.fields(kind)})

    names = ("model", "layer", "ms", "ms_mean", "ms_p25", "ms_p75", "rounds", *_LATER_COLUMNS)
    plain = {name: values[name] for name in names}
    return Sample(**plain, counts=part(LayerCounts), setting=part(Setting), load=part(Load, "load_"))
