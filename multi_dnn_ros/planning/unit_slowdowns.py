"""How much longer units take while all of a set compute, kept beside their tables.

Tables are measured with one unit running. `multi-dnn partition run` measures the same units together; plans for exactly
these units are then made with tables that are multiplied by the measured factors.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from multi_dnn_ros.common.file_lock import waiting_lock
from multi_dnn_ros.common.reporting import write_json
from multi_dnn_ros.planning.batch_plan import UnitTimes, slowed_by
from multi_dnn_ros.planning.batch_table import BatchTable, table_path
from multi_dnn_ros.planning.checked_file import ProfileError, read_checked
from multi_dnn_ros.planning.file_model import FileModel

log = logging.getLogger(__name__)

_WRITER = "multi-dnn partition run"


class UnitSet(FileModel):
    """One set of units. devices: by unit, what the tables contain. factors: time of a unit while all of the set
    compute, over the time in its table. images: in the measured batch. table_ms: time of these images in the table at
    that time. These three are of the units that had images. measured_at: ISO 8601, UTC.
    """

    devices: dict[str, str]
    factors: dict[str, Annotated[float, Field(gt=0.0)]] = Field(min_length=1)
    images: dict[str, Annotated[int, Field(ge=1)]]
    table_ms: dict[str, float]
    measured_at: str

    def is_of(self, tables: Mapping[str, BatchTable]) -> bool:
        """Whether these are the units, on the same devices, and the tables have not been measured again since then."""
        if self.devices != _devices(tables):
            return False
        return all(
            images <= tables[name].largest and tables[name].predict_ms(images) == self.table_ms.get(name)
            for name, images in self.images.items()
            if name in tables
        )


class UnitSlowdowns(FileModel):
    """The slowdowns of all sets of units that were measured for one model at one precision."""

    format: Literal["multi_dnn_ros units together 1"] = "multi_dnn_ros units together 1"
    model: str
    precision: str
    sets: tuple[UnitSet, ...] = ()

    def find(self, tables: Mapping[str, BatchTable]) -> UnitSet | None:
        """The set of exactly these units with these tables; None if it was not measured."""
        return next((each for each in self.sets if each.is_of(tables)), None)

    def times(self, tables: Mapping[str, BatchTable]) -> Mapping[str, UnitTimes]:
        """The tables, multiplied by the factors if these units have been measured together."""
        found = self.find(tables)
        return tables if found is None else slowed_by(tables, found.factors)

    def with_set(
        self, tables: Mapping[str, BatchTable], factors: Mapping[str, float], images: Mapping[str, int]
    ) -> UnitSlowdowns:
        """A copy with this measurement, which replaces an earlier one of the same units. images: by unit."""
        counts = {name: count for name, count in images.items() if count}
        measured = UnitSet(
            devices=_devices(tables), factors=dict(factors), images=counts,
            table_ms={name: tables[name].predict_ms(count) for name, count in counts.items()},
            measured_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )  # fmt: skip
        others = tuple(each for each in self.sets if each.devices.keys() != tables.keys())
        return self.model_copy(update={"sets": (*others, measured)})


def slowdowns_path(folder: Path, model: str, precision: str) -> Path:
    """Path of the file, in the folder of the model's tables."""
    return table_path(folder, model, "", precision).with_name(f"together-{precision}.json")


def read_slowdowns(folder: Path, model: str, precision: str) -> UnitSlowdowns:
    """What was measured; nothing if there is no file, or, with a warning, if it has other content or cannot be read."""
    path = slowdowns_path(folder, model, precision)
    if path.exists():
        try:
            return read_checked(path, UnitSlowdowns, "file of units that were measured together", _WRITER)
        except ProfileError as error:
            log.warning("%s; ignored, the next `%s` of these units writes it again", error, _WRITER)
    return UnitSlowdowns(model=model, precision=precision)


def record_slowdowns(
    folder: Path, model: str, precision: str, tables: Mapping[str, BatchTable], factors: Mapping[str, float],
    images: Mapping[str, int],
) -> None:  # fmt: skip
    """Add a measurement to the file, which is written atomically. It replaces an earlier one of the same units.

    The last three arguments are those of UnitSlowdowns.with_set. Other processes that add measurements wait meanwhile,
    because each of them writes what it has read. Raises OSError if the file cannot be written.
    """
    path = slowdowns_path(folder, model, precision)
    with waiting_lock(path.with_suffix(".lock")):
        slowdowns = read_slowdowns(folder, model, precision).with_set(tables, factors, images)
        write_json(path, slowdowns.model_dump(mode="json"))


def _devices(tables: Mapping[str, BatchTable]) -> dict[str, str]:
    return {name: table.device for name, table in tables.items()}
