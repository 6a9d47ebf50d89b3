"""Looks at every image of a data set before training: unreadable files, unusable truth, duplicates across parts."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from tqdm import tqdm

from multi_dnn_ros.training import distributed
from multi_dnn_ros.training.data import PARTS, Data, Part, Rows, subset
from multi_dnn_ros.training.datasets import DatasetError
from multi_dnn_ros.training.parts import CHOICE_ROWS

log = logging.getLogger(__name__)

#: Share of a part that may be unusable or in another part, too, before the data set is refused.
MAX_FAULTY = 0.01
_READERS = 8
_SHOWN = 3


class CheckedData:
    """A data set whose images have all been looked at, see `check_data`; its parts hold the usable ones.

    digest: SHA-256 over these images and their truth, in order: the same for the same data anywhere.
    """

    def __init__(self, data: Data, parts: Mapping[Part, Rows], counts: Mapping[str, int], digest: str) -> None:
        self.name, self.task, self.labels = data.name, data.task, data.labels
        self.counts, self.digest = dict(counts), digest
        self._parts = dict(parts)

    def part(self, part: Part) -> Rows:
        """One of the parts that were checked."""
        return self._parts[part]


def check_data(data: Data, *, test: bool = True, max_faulty: float = MAX_FAULTY, progress: bool = True) -> CheckedData:
    """The set without rows that cannot be read and without images that are also in a later one of train, choice and
    test. Faults are logged with names and counts.

    test: whether the test part is needed; rank 0 alone has it. Rank 0 reads all images once. Raises DatasetError if
    more than the share `max_faulty` of a part is faulty, or nothing is left of it.
    """
    if isinstance(data, CheckedData):
        return data
    first = distributed.rank() == 0
    parts = {part: data.part(part) for part in PARTS if part != "test" or (test and first)}
    kept: dict[Part, list[int]] = {}
    digest = problem = ""
    if first:
        try:
            kept, digest = _check(data.name, parts, max_faulty, progress)
        except DatasetError as error:
            problem = str(error)
    kept, digest, problem = distributed.from_first((kept, digest, problem))
    if problem:
        raise DatasetError(problem)
    counts: dict[str, int] = {part: len(kept[part]) for part in PARTS if part in kept}
    return CheckedData(data, {part: subset(rows, kept[part]) for part, rows in parts.items()}, counts, digest)


def _check(
    name: str, parts: Mapping[Part, Rows], max_faulty: float, progress: bool
) -> tuple[dict[Part, list[int]], str]:
    """The rows to keep of each part, and the digest of their content."""
    keep: dict[Part, list[int]] = {}
    seen: dict[bytes, tuple[Part, str]] = {}
    content = hashlib.sha256()
    for part in [part for part in reversed(PARTS) if part in parts]:  # an image of two parts is kept in the later one
        rows = parts[part]
        digests = _digests(rows, f"check {name} {part}", progress)
        faults = [*rows.unusable, *(found for found in digests if isinstance(found, str))]
        shared: list[str] = []
        keep[part] = []
        for k, found in enumerate(digests):
            if isinstance(found, str):
                continue
            image, truth = found
            other, where = seen.get(image, (part, ""))
            if other != part:
                shared.append(f"{rows.name(k)} is also {where} of {other}")
                continue
            seen[image] = (part, rows.name(k))
            keep[part].append(k)
            content.update(image + truth)
        where = f"data '{name}', part {part} ({len(rows)} images)"
        _report(f"{where}: {len(faults)} unusable", faults, len(rows), max_faulty)
        _report(f"{where}: {len(shared)} duplicates of a later part, left out", shared, len(rows), max_faulty)
        if not keep[part]:
            raise DatasetError(f"{where}: no usable image")
    count = len(keep["choice"])
    if count < CHOICE_ROWS:
        log.warning(
            "data '%s': %d images to select the best epoch; with fewer than %d it may be selected by chance",
            name, count, CHOICE_ROWS,
        )  # fmt: skip
    return keep, content.hexdigest()


def _digests(rows: Rows, title: str, progress: bool) -> list[tuple[bytes, bytes] | str]:
    """Of each row the digests of its image and of its truth, or why it cannot be used."""

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
    shown = "; ".join(faults[:_SHOWN]) + (f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else "")
    if len(faults) > max_faulty * count:
        raise DatasetError(f"{what}: {shown}. Allowed is a share of {max_faulty:g} (--max-faulty)")
    log.warning("%s: %s", what, shown)
