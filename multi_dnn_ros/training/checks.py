"""Checks every image of a data set before training: unreadable files, unusable truth, duplicates across parts."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
from tqdm import tqdm

from multi_dnn_ros.training import distributed
from multi_dnn_ros.training.data import PART_TITLES, PARTS, VALIDATION_ROWS, Data, Part
from multi_dnn_ros.training.samples import DatasetError, Rows, SomeRows

log = logging.getLogger(__name__)

#: The data set is rejected if a larger share of a part is unusable, or is also in a later part.
MAX_FAULTY = 0.01
_READERS = 8
_SHOWN = 3


class CheckedData:
    """A data set whose images were all checked, see `check_sets`; its parts contain the usable ones only.

    digest: SHA-256 over these images and their truth, in order; it does not depend on where the data are stored.
    """

    def __init__(self, data: Data, parts: Mapping[Part, Rows], counts: Mapping[str, int], digest: str) -> None:
        self.name, self.task, self.labels = data.name, data.task, data.labels
        self.counts, self.digest = dict(counts), digest
        self._parts = dict(parts)

    def part(self, part: Part) -> Rows:
        """One of the parts that were checked."""
        return self._parts[part]


def check_data(
    data: Data, *, max_faulty: float = MAX_FAULTY, progress: bool = True, selects_epoch: bool = True
) -> CheckedData:
    """`check_sets` for a single set."""
    return check_sets([data], max_faulty=max_faulty, progress=progress, selects_epoch=selects_epoch)[0]


def check_sets(
    sets: Sequence[Data], *, max_faulty: float = MAX_FAULTY, progress: bool = True, selects_epoch: bool = True
) -> list[CheckedData]:
    """The sets without rows that cannot be read, and without images that are also in a later part (in the order train,
    choice, test) of the same or of another set. Faults are logged with names and counts; with `selects_epoch` also
    that the part that selects the best epoch is small.

    The test part is that of the first set; only rank 0 has it. Rank 0 reads all images once. If all sets were checked
    before, they are returned unchanged. Raises DatasetError if more than the share `max_faulty` of a part is faulty, or
    if no row of a part is left.
    """
    checked = [data for data in sets if isinstance(data, CheckedData)]
    if len(checked) == len(sets):
        return checked
    first = distributed.rank() == 0
    parts: list[dict[Part, Rows]] = [
        {part: data.part(part) for part in PARTS if part != "test" or (number == 0 and first)}
        for number, data in enumerate(sets)
    ]
    kept: list[dict[Part, list[int]]] = []
    digests: list[str] = []
    problem = ""
    if first:
        try:
            kept, digests = _check([data.name for data in sets], parts, max_faulty, progress)
            if selects_epoch:
                _report_few([data.name for data in sets], kept)
        except DatasetError as error:
            problem = str(error)
    kept, digests, problem = distributed.from_first((kept, digests, problem))
    if problem:
        raise DatasetError(problem)
    return [
        CheckedData(
            data,
            {part: SomeRows(rows, keep[part]) for part, rows in set_parts.items()},
            {part: len(keep[part]) for part in PARTS if part in keep},
            digest,
        )
        for data, set_parts, keep, digest in zip(sets, parts, kept, digests, strict=True)
    ]


def _check(
    names: Sequence[str], parts: Sequence[Mapping[Part, Rows]], max_faulty: float, progress: bool
) -> tuple[list[dict[Part, list[int]]], list[str]]:
    """For each set: the rows of each part to keep, and the digest of their content."""
    keep: list[dict[Part, list[int]]] = [{} for _ in names]
    contents = [hashlib.sha256() for _ in names]
    seen: dict[bytes, tuple[Part, str]] = {}
    for part in reversed(PARTS):  # an image in two parts is kept in the later one
        for name, set_parts, kept, content in zip(names, parts, keep, contents, strict=True):
            if part not in set_parts:
                continue
            rows = set_parts[part]
            digests = _digests(rows, f"check {name} {PART_TITLES[part]}", progress)
            faults = [*rows.unusable, *(found for found in digests if isinstance(found, str))]
            shared: list[str] = []
            kept[part] = []
            for k, found in enumerate(digests):
                if isinstance(found, str):
                    continue
                image, truth = found
                other, where = seen.get(image, (part, ""))
                if other != part:
                    shared.append(f"{rows.name(k)} is also {where}")
                    continue
                found_in = f"{rows.name(k)} of {PART_TITLES[part]}"
                seen[image] = (part, found_in + (f" of data '{name}'" if len(names) > 1 else ""))
                kept[part].append(k)
                content.update(image + truth)
            where = f"data '{name}', part {PART_TITLES[part]} ({len(rows)} images)"
            _report(f"{where}: {len(faults)} unusable", faults, len(rows), max_faulty)
            _report(f"{where}: {len(shared)} duplicates of a later part, left out", shared, len(rows), max_faulty)
            if not kept[part]:
                raise DatasetError(f"{where}: no usable image")
    return keep, [content.hexdigest() for content in contents]


def _report_few(names: Sequence[str], keep: Sequence[Mapping[Part, list[int]]]) -> None:
    for name, kept in zip(names, keep, strict=True):
        count = len(kept["choice"])
        if count < VALIDATION_ROWS:
            log.warning(
                "data '%s': %d images to select the best epoch; with fewer than %d it may be selected by chance",
                name, count, VALIDATION_ROWS,
            )  # fmt: skip


def _digests(rows: Rows, title: str, progress: bool) -> list[tuple[bytes, bytes] | str]:
    """For each row: the digests of its image and of its truth, or the reason why it cannot be used."""

    def digest(index: int) -> tuple[bytes, bytes] | str:
        try:
            row = rows.read(index)
        except DatasetError as error:
            return str(error)
        image, truth = hashlib.sha256(), hashlib.sha256()
        for name in sorted(row):
            (image if name == "image" else truth).update(np.ascontiguousarray(row[name].numpy()).tobytes())
        return image.digest(), truth.digest()

    with ThreadPoolExecutor(_READERS, thread_name_prefix="check") as readers:
        found = readers.map(digest, range(len(rows)))
        return list(tqdm(found, title, len(rows), unit="image", disable=None if progress else True, leave=False))


def _report(what: str, faults: Sequence[str], count: int, max_faulty: float) -> None:
    """Log the faults of a part with `count` images. Raises DatasetError if there are too many."""
    if not faults:
        return
    if len(faults) > max_faulty * count:
        raise DatasetError(f"{what}: {_first_few(faults)}; allowed share: {max_faulty:g} (--max-faulty)")
    log.warning("%s: %s", what, _first_few(faults))


def report_unusable(name: str, rows: Rows) -> None:
    """Log, once, the unusable items in the test part of data `name`; for scoring without `check_data`."""
    if rows.unusable:
        where = f"data '{name}', part test ({len(rows)} images)"
        _warn_once(f"{where}: {len(rows.unusable)} unusable: {_first_few(rows.unusable)}")


@cache
def _warn_once(text: str) -> None:
    log.warning("%s", text)


def _first_few(faults: Sequence[str]) -> str:
    return "; ".join(faults[:_SHOWN]) + (f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else "")
