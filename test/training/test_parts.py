"""Parts of a data set share no recording, and the validation part is large enough if the data allow it."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.training.data import GAP, MAX_SHARE, VALIDATION_ROWS, VALIDATION_SHARE, split
from multi_dnn_ros.training.image_folders import FileRows
from multi_dnn_ros.training.samples import Sample
from multi_dnn_ros.vision.preprocess import Preprocess

#: Lengths of recordings: long ones, single images, and a few of any length.
LENGTHS = st.lists(st.sampled_from([1, 1, 2, 30, 400, 1000]) | st.integers(1, 60), min_size=1, max_size=12)


@given(LENGTHS)
def test_the_parts_are_disjoint_and_the_validation_part_has_at_least_half_of_the_wanted_rows(
    lengths: list[int],
) -> None:
    recordings = [f"drive{k}" for k, length in enumerate(lengths) for _ in range(length)]
    count = len(recordings)
    if count < 2:
        return
    wanted = max(1, min(max(VALIDATION_ROWS, round(count * VALIDATION_SHARE)), int(count * MAX_SHARE)))
    train, validation = parts = split(recordings)
    assert split(recordings) == parts
    assert not set(train) & set(validation)
    assert train == sorted(train)
    assert wanted <= 2 * len(validation)
    assert len(validation) <= max(1, count * MAX_SHARE)
    assert count - len(train) - len(validation) <= GAP
    assert len(train) >= count / 2


@given(st.lists(st.integers(1, 12), min_size=30, max_size=60))
def test_whole_recordings_are_held_out_if_they_are_many(lengths: list[int]) -> None:
    recordings = [f"drive{k}" for k, length in enumerate(lengths) for _ in range(length)]
    train, validation = split(recordings)
    if len(train) + len(validation) == len(recordings):
        shared = {recordings[k] for k in validation} & {recordings[k] for k in train}
        assert len(shared) <= (validation[-1] == len(recordings) - 1)


@pytest.mark.parametrize(
    ("count", "expected"), [(40, 10), (200, 50), (800, 50), (2000, 100), (50_000, 2500)]
)  # fmt: skip
def test_independent_images_are_held_out_evenly(count: int, expected: int) -> None:
    train, validation = split([str(k) for k in range(count)])
    assert len(validation) == expected
    assert len(train) == count - expected
    gaps = Counter(b - a for a, b in itertools.pairwise(validation))
    assert all(abs(gap - count / expected) < 1 for gap in gaps)


def test_a_single_recording_is_cut_once_with_a_gap() -> None:
    assert split(["drive"] * 400) == (list(range(325)), list(range(350, 400)))


@pytest.mark.parametrize(
    ("stem", "recording"), [("drive_0012", "drive"), ("a_b-3", "a_b"), ("000000123", "000000123"), ("x7", "x7")]
)
def test_a_recording_is_the_name_before_the_frame_number(stem: str, recording: str) -> None:
    rows = FileRows([(Path(f"/a/{stem}.png"), None)], Preprocess(8, 8), lambda path, image, known: Sample(image))
    assert Path(rows.recording(0)).name == recording
