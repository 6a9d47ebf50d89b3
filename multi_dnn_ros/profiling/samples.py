"""Training data of a predictor: a CSV with one row per layer and load."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from multi_dnn_ros.common.reporting import write_text
from multi_dnn_ros.models.layers import LayerWork
from multi_dnn_ros.models.operations import KINDS
from multi_dnn_ros.profiling.predictor import FileModel, Limits, Load, LoadKind, ProfileError, Question

_WORK = tuple(field.name for field in fields(LayerWork))


class Machine(FileModel):
    """Where layers were timed; equal in all rows of a table but for the limits, which are themselves measured.

    device: name, threads and precision. spare, flops_per_s, bytes_per_s: see predictor.Limits.
    """

    device: str
    backend: str
    versions: str
    threads: int = Field(ge=0)
    spare: int = Field(ge=0)
    flops_per_s: float = Field(gt=0.0)
    bytes_per_s: float = Field(gt=0.0)

    @property
    def name(self) -> str:
        """Device, backend and versions."""
        return f"{self.device}; {self.backend}; {self.versions}"

    @property
    def limits(self) -> Limits:
        return Limits(self.flops_per_s, self.bytes_per_s, self.spare)


class Sample(Machine):
    """The time of one layer of one model under one load. The fields from `kind` to `pixels` are those of LayerWork.

    ms: median over `rounds`.
    """

    model: str
    layer: str
    kind: Literal[KINDS]  # type: ignore[valid-type]
    macs: int = Field(ge=0)
    flops: int = Field(ge=0)
    parameters: int = Field(ge=0)
    bytes_read: int = Field(ge=0)
    bytes_written: int = Field(ge=0)
    window: int = Field(ge=0)
    groups: int = Field(ge=0)
    channels_in: int = Field(ge=0)
    channels_out: int = Field(ge=0)
    pixels: int = Field(ge=0)
    load_kind: LoadKind
    load_level: int = Field(ge=0)
    ms: float = Field(ge=0.0)
    rounds: int = Field(ge=1)

    @property
    def work(self) -> LayerWork:
        return LayerWork(**{name: getattr(self, name) for name in _WORK})

    @property
    def load(self) -> Load:
        return Load(self.load_kind, self.load_level)

    @property
    def question(self) -> Question:
        """What a predictor is asked."""
        return self.work, self.load

    @property
    def is_timed(self) -> bool:
        """Whether the layer computes something, for longer than the clock's resolution."""
        return self.kind != "view" and self.ms > 0.0


def read_samples(path: Path) -> list[Sample]:
    """Read a table. Raises ProfileError, which names the file, line, column and error."""
    samples: list[Sample] = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                samples.append(Sample.model_validate(row))  # noqa: PERF401, as the error counts them
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error, ValidationError) as error:
        text = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            text = f"line {len(samples) + 2}, {'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ProfileError(f"{path}: not a table of `multi-dnn profile contention`: {text}") from None
    if not samples:
        raise ProfileError(f"{path}: the table is empty")
    return samples


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the same columns to a CSV file, as :func:`write_text` does."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0] if rows else (), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
