"""Stream priorities of DNNs, and the current stream of a thread. The effect on a GPU: test/gpu."""

from __future__ import annotations

from functools import cache

import pytest

from multi_dnn_ros.backends.stream_priority import ThreadStreams, stream_priorities


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


def test_the_current_stream_is_set_only_when_it_changes() -> None:
    made: list[tuple[int, int]] = []
    used: list[str] = []

    def make(kind: tuple[int, int]) -> str:
        made.append(kind)
        return f"stream {kind}"

    streams = ThreadStreams(cache(make), used.append)  # keeps streams alive, as the engine does
    for kind in ((0, 0), (0, 0), (0, -1), (0, 0), (16, 0), (16, 0)):
        streams.enter(kind)
    assert made == [(0, 0), (0, -1), (16, 0)]
    assert used == ["stream (0, 0)", "stream (0, -1)", "stream (0, 0)", "stream (16, 0)"]


def test_a_new_stream_of_a_key_becomes_the_current_one() -> None:
    """For example if another DNN's priority changes, which changes the order of all."""
    streams_of_a_kind = iter(["first", "first", "second"])
    used: list[str] = []
    streams = ThreadStreams(lambda kind: next(streams_of_a_kind), used.append)
    assert [streams.enter("a") for _ in range(3)] == ["first", "first", "second"]
    assert used == ["first", "second"]
