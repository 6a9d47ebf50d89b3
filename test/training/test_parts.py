"""Parts of a data set share no recording, and the validation part is large enough if the data allow it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.training import data
from multi_dnn_ros.training.data import GAP, MAX_SHARE, VALIDATION_ROWS, VALIDATION_SHARE, recording_of
from multi_dnn_ros.training.samples import DatasetError


class Split(NamedTuple):
    train: list[int]
    validation: list[int]


def split(recordings: Sequence[str], where: str) -> Split:
    return Split(*data.split(recordings, where))


#: Lengths of recordings: long ones, single images, and a few of any length.
LENGTHS = st.lists(st.sampled_from([1, 1, 2, 30, 400, 1000]) | st.integers(1, 60), min_size=1, max_size=12)
ROWS = st.lists(st.integers(0, 12).map(lambda k: f"drive{k}"), min_size=2, max_size=400)


@given(ROWS)
def test_no_row_is_in_two_parts_and_no_part_is_empty(recordings: list[str]) -> None:
    parts = split(recordings, "x")
    assert parts.train
    assert parts.validation
    assert not set(parts.train) & set(parts.validation)
    assert parts.train == sorted(parts.train)
    assert set(parts.train) | set(parts.validation) <= set(range(len(recordings)))
    assert split(recordings, "x") == parts


@given(LENGTHS)
def test_the_validation_part_has_at_least_half_of_the_wanted_rows(lengths: list[int]) -> None:
    recordings = [f"drive{k}" for k, length in enumerate(lengths) for _ in range(length)]
    count = len(recordings)
    if count < 2:
        return
    wanted = max(1, min(max(VALIDATION_ROWS, round(count * VALIDATION_SHARE)), int(count * MAX_SHARE)))
    parts = split(recordings, "x")
    assert wanted <= 2 * len(parts.validation)
    assert len(parts.validation) <= max(1, count * MAX_SHARE)
    assert count - len(parts.train) - len(parts.validation) <= GAP
    assert len(parts.train) >= count / 2


def test_a_single_image_among_long_recordings_is_not_the_whole_validation_part() -> None:
    parts = split([drive for drive in "abc" for _ in range(1000)] + ["photo"], "x")
    assert parts.validation == list(range(2850, 3000))  # the end of c, five hundredths of all rows
    assert parts.train == [*range(2825), 3000]


@given(st.lists(st.integers(1, 60), min_size=10, max_size=40))
def test_whole_recordings_are_held_out_if_they_are_small(lengths: list[int]) -> None:
    recordings = [f"drive{k}" for k, length in enumerate(lengths) for _ in range(length)]
    largest = max(lengths)
    if largest > MAX_SHARE * len(recordings) or len(set(recordings)) == len(recordings):
        return
    parts = split(recordings, "x")
    held_out = {recordings[k] for k in parts.validation}
    assert held_out.isdisjoint(recordings[k] for k in parts.train)
    assert len(parts.train) + len(parts.validation) == len(recordings)
    assert len(parts.validation) <= MAX_SHARE * len(recordings)


@pytest.mark.parametrize(
    ("count", "expected"), [(2, 1), (40, 10), (200, 50), (800, 50), (2000, 100), (50_000, 2500)]
)  # fmt: skip
def test_independent_images_are_held_out_evenly(count: int, expected: int) -> None:
    parts = split([str(k) for k in range(count)], "x")
    assert len(parts.validation) == expected
    assert len(parts.train) == count - expected
    gaps = Counter(b - a for a, b in zip(parts.validation, parts.validation[1:], strict=False))
    assert all(abs(gap - count / expected) < 1 for gap in gaps)
    assert expected >= VALIDATION_ROWS or expected <= MAX_SHARE * count + 1


def test_a_single_recording_is_cut_once_with_a_gap() -> None:
    parts = split(["drive"] * 400, "x")
    assert parts.validation == list(range(350, 400))
    assert parts.train == list(range(325))


def test_one_image_cannot_be_divided() -> None:
    with pytest.raises(DatasetError, match=r"here/train: 1 images; at least two are needed"):
        split(["a"], "here/train")


@pytest.mark.parametrize(
    ("stem", "recording"), [("drive_0012", "drive"), ("a_b-3", "a_b"), ("000000123", "000000123"), ("x7", "x7")]
)
def test_a_recording_is_the_name_before_the_frame_number(stem: str, recording: str) -> None:
    assert recording_of(stem) == recording
