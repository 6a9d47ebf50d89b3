"""What commands print and write: a progress bar, tables of figures, JSON files, and logs of processes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.errors import CommandError


@contextmanager
def progress_bar(what: str = "", unit: str = "round") -> Iterator[Callable[..., None]]:
    """A progress bar with the time left, on stderr if that is a terminal. Yields the function that updates it.

    Its arguments: what is done, where 0 begins again, and the time left is then estimated from there; the total; and,
    if it changes, the description.
    """
    from tqdm import tqdm

    with tqdm(unit=unit, desc=what, disable=None, leave=False) as bar:

        def update(done: int, total: int, what: str = "", /) -> None:
            if not done:
                bar.reset(total)
            bar.total = total
            bar.n = done
            if what:
                bar.set_description(what, refresh=False)
            bar.refresh()

        yield update


def write_figures(path: Path | None, figures: Mapping[str, Any], *, quiet: bool = False) -> None:
    """Write the provenance and `figures` to a JSON file, if it was given, and name it.

    quiet: without naming it, for figures that are written more than once.
    """
    if path is None:
        return
    from multi_dnn_ros.common.reporting import provenance, write_json

    write_json(path, {**provenance(), **figures})
    if not quiet:
        print(f"written to {path}")


def rows_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows, as a JSON file has them, as a Markdown table: numbers with three digits, what is missing as a dash."""
    from multi_dnn_ros.common.reporting import table

    def text(value: Any) -> str:
        if value is None or value == () or value == []:
            return "-"
        if isinstance(value, Mapping):
            return ", ".join(f"{name} {text(each)}" for name, each in value.items()) or "-"
        if isinstance(value, (list, tuple)):
            return ", ".join(map(str, value))
        if not isinstance(value, float):
            return str(value)
        return f"{value:#.3g}".rstrip(".") if abs(value) < 999.5 else f"{value:.0f}"

    names = list(dict.fromkeys(name for row in rows for name in row))
    return table([name.replace("_", " ") for name in names], [[text(row.get(name)) for name in names] for row in rows])


@contextmanager
def log_folder() -> Iterator[Path]:
    """A temporary folder for the logs of processes. It is kept after a CommandError, whose message names it."""
    folder = Path(tempfile.mkdtemp(prefix="multi_dnn_benchmark_"))
    kept = False
    try:
        yield folder
    except CommandError:
        kept = True
        raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
