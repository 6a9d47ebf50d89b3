"""The table of ``multi-dnn profile contention``: rows are added while it is measured, and a later run continues."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from multi_dnn_ros.common.file_lock import lock_file
from multi_dnn_ros.planning.profile import LayerShape, ProfileError
from multi_dnn_ros.planning.samples import LayerCounts, Load, Sample, Setting, read_samples, write_samples

_REMEDY = "start a new table with `multi-dnn profile contention --replace`, or name another file with --output"


@dataclass
class ContentionTable:
    """The rows of a table, and where they are written. A measurement is that of all layers of a model under one load.

    versions, load_network: those of :class:`Sample`, for the rows that are added. path: None: nothing is written.
    """

    path: Path | None = None
    versions: str = ""
    load_network: str = ""
    rows: list[Sample] = dataclasses.field(default_factory=list)

    def has(self, model: str, setting: Setting, load: Load, rounds: int) -> bool:
        """Whether the table has this measurement, of at least this many rounds.

        Raises ProfileError if it is one with other versions or another network of load dnn.
        """
        found = [row for row in self.rows if _measurement(row) == _key(model, setting, load)]
        for row in found:
            if row.versions != self.versions:
                raise ProfileError(
                    f"{self.path} has {model} measured by {row.versions or 'unknown versions'}, not {self.versions}; "
                    f"{_REMEDY}"
                )
            if load.kind == "dnn" and row.load_network != self.load_network:
                raise ProfileError(
                    f"{self.path} has {model} measured while {row.load_network} was the load, not "
                    f"{self.load_network}; {_REMEDY}"
                )
        return bool(found) and all(row.rounds >= rounds for row in found)

    def expect_layers(self, model: str, setting: Setting, shapes: Sequence[LayerShape]) -> None:
        """Raise ProfileError if the table has other layers of this model in this setting."""
        expected = [(shape.name, LayerCounts.of(shape)) for shape in shapes]
        by_load: dict[Load, list[tuple[str, LayerCounts]]] = {}
        for row in self.rows:
            if _measurement(row) == _key(model, setting, row.load):
                by_load.setdefault(row.load, []).append((row.layer, row.counts))
        if any(layers != expected for layers in by_load.values()):
            raise ProfileError(
                f"{self.path} has layers of another {model}: its file, its version or --batch was another; {_REMEDY}"
            )

    def add(self, samples: Sequence[Sample]) -> None:
        """Add a measurement, which replaces an earlier one, and write the table."""
        added = {_measurement(sample) for sample in samples}
        self.rows = [row for row in self.rows if _measurement(row) not in added]
        self.rows += [
            dataclasses.replace(sample, versions=self.versions, load_network=self.load_network) for sample in samples
        ]
        if self.path is not None:
            write_samples(self.path, self.rows)


@contextmanager
def open_table(path: Path, versions: str, load_network: str, *, replace: bool = False) -> Iterator[ContentionTable]:
    """The table at `path`, with its rows if it exists, locked against a second command in the block.

    replace: without its rows. The file is not changed before rows are added. Raises ProfileError for a file that is no
    table, CommandError while another command adds rows, OSError if the folder cannot be written.
    """
    taken = f"{path} is being measured by another command; wait until it has ended, or name another file with --output"
    with lock_file(path.with_name(f".{path.name}.lock"), taken, "do not measure one table by two commands at once"):
        table = ContentionTable(path, versions, load_network)
        if path.exists() and not replace:
            table.rows = read_samples(path)
        yield table


def _key(model: str, setting: Setting, load: Load) -> tuple[str, Setting, Load]:
    """Identifies a measurement. The limits of a device are themselves measured and differ a little each time."""
    return model, dataclasses.replace(setting, flops_per_s=0.0, bytes_per_s=0.0), load


def _measurement(sample: Sample) -> tuple[str, Setting, Load]:
    return _key(sample.model, sample.setting, sample.load)
