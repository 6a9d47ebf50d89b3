"""Which of the stopped sessions and engines still have threads."""

from __future__ import annotations

from multi_dnn_ros.serving.hanging_threads import hanging_threads


class Stopped:
    """Something stopped. late: what another thread appends to `stopped` while this one is looked at."""

    def __init__(self, *threads: str) -> None:
        self.threads = list(threads)
        self.late: Stopped | None = None
        self.stopped: list[Stopped] = []

    def running_threads(self) -> list[str]:
        if self.late is not None:
            self.stopped.append(self.late)
            self.late = None
        return self.threads


def test_what_has_no_thread_any_more_is_removed() -> None:
    ended, hanging = Stopped(), Stopped("dnn-lane", "worker-0")
    stopped = [ended, hanging]
    assert hanging_threads(stopped) == ["dnn-lane", "worker-0"]
    assert stopped == [hanging]
    hanging.threads.clear()
    assert hanging_threads(stopped) == []
    assert stopped == []


def test_what_is_appended_meanwhile_is_not_lost() -> None:
    ended = Stopped()
    ended.late, ended.stopped = Stopped("dnn-object"), [ended]
    assert hanging_threads(ended.stopped) == ["dnn-object"]
    assert [each.threads for each in ended.stopped] == [["dnn-object"]]
