"""Stream priorities of DNNs. The effect on a GPU: test/gpu."""

from __future__ import annotations

import pytest

from multi_dnn_ros.backends.stream_priority import stream_priorities


@pytest.mark.parametrize(
    ("dnns", "expected"),
    [
        ([0, 0, 0], {0: 0}),
        ([1, 0, 2, 1], {0: 0, 1: -1, 2: -2}),
        ([-5, 100], {-5: 0, 100: -1}),
        ([1, 2, 3, 4, 5, 6], {1: 0, 2: -1, 3: -2, 4: -3, 5: -3, 6: -3}),
    ],
)
def test_higher_dnn_priorities_have_more_urgent_streams(dnns: list[int], expected: dict[int, int]) -> None:
    assert stream_priorities(dnns) == expected
