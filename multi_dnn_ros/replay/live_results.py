"""Results of the frame in progress of a live replay: messages of the node, or drops reported in its diagnostics."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from multi_dnn_ros.replay.live_setup import LiveCamera
from multi_dnn_ros.replay.node_accounts import StreamAccount, stream_accounts
from multi_dnn_ros.replay.remote_node import RemoteNode

#: (DNN, camera)
Stream = tuple[str, str]

#: Interval between checks that the node still exists.
_POLL_S = 0.5
#: Consecutive lost frames of one camera that end the replay; each costs the arrival timeout.
_MAX_LOST = 3


class LiveReplayError(RuntimeError):
    """The replay cannot continue; the message says why."""


class LiveResults:
    """Collects the messages of the node `remote`: the executor's thread receives them, the player's waits for them.

    topics: topics of a DNN's results below ``~/<camera>/``, with message types. arrival_timeout_s, work_timeout_s: see
    LiveReplay.
    """

    def __init__(
        self,
        remote: RemoteNode,
        topics: Callable[[str], Mapping[str, str]],
        arrival_timeout_s: float,
        work_timeout_s: float,
    ) -> None:
        self._remote = remote
        self._topics = topics
        self._arrival_timeout_s = arrival_timeout_s
        self._work_timeout_s = work_timeout_s
        self._changed = threading.Condition()
        self._header: Any = None  # of the frame in progress
        self._results: dict[Stream, dict[str, Any]] = {}  # of the frame in progress, by topic below the camera's
        self._labels: dict[str, Any] = {}
        self._accounts: dict[Stream, StreamAccount] = {}
        # Counts that the node's accounts must show once the last frame is finished.
        self._offered: Counter[Stream] = Counter()
        self._published: Counter[Stream] = Counter()
        self._dropped: dict[Stream, Counter[str]] = {}
        self._lost_frames: Counter[str] = Counter()  # consecutive, by camera

    # -- called in the executor's thread

    def receive(self, stream: Stream, name: str, message: Any) -> None:
        """Receive a result of a stream, from the topic `name` below the camera's."""
        with self._changed:
            if stream in self._results and message.header == self._header:
                self._results[stream][name] = message
                self._changed.notify_all()

    def receive_labels(self, result: str, message: Any) -> None:
        """Receive the class names of a result."""
        with self._changed:
            self._labels[result] = message
            self._changed.notify_all()

    def receive_diagnostics(self, message: Any) -> None:
        """Receive the frame counts of the node."""
        with self._changed:
            self._accounts.update(stream_accounts(message, self._remote.name))
            self._changed.notify_all()

    # -- called in the player's thread

    @property
    def labels(self) -> dict[str, Any]:
        """The class names received so far, by name of the result."""
        with self._changed:
            return dict(self._labels)

    def wait_change(self, timeout_s: float) -> None:
        """Wait for the next message, at most `timeout_s`."""
        with self._changed:
            self._changed.wait(timeout_s)

    def begin(self, header: Any, camera: LiveCamera) -> None:
        """Expect the results of a frame that is about to be published. header: the image's header."""
        with self._changed:
            self._header = header
            self._results = {(dnn, camera.name): {} for dnn in camera.dnns}
            for stream in self._results:
                self._offered[stream] += 1

    def wait_finished(self) -> tuple[dict[Stream, dict[str, Any]], dict[Stream, tuple[str, str]]]:
        """Wait until every DNN has finished the frame in progress.

        Returns the messages of each stream by topic name, and reason and message for each stream that lost the frame.
        Raises LiveReplayError if the node has ended or a DNN exceeds the work timeout.
        """
        begin = time.monotonic()
        lost: dict[Stream, tuple[str, str]] = {}
        checked = begin
        with self._changed:
            while True:
                waited_s = time.monotonic() - begin
                for stream in self._results:
                    if stream not in lost and not self._is_complete(stream):
                        reason = self._loss_reason(stream, waited_s)
                        if reason is not None:
                            lost[stream] = reason
                if all(stream in lost or self._is_complete(stream) for stream in self._results):
                    break
                if time.monotonic() - checked > _POLL_S:
                    checked = time.monotonic()
                    if not self._remote.is_up():
                        raise LiveReplayError(f"the node {self._remote.name} has ended")
                self._changed.wait(_POLL_S)
            for stream in self._results:
                self._published[stream] += stream not in lost
            self._header = None
            return self._results, lost

    def limit_losses(self, camera: LiveCamera, losses: list[str]) -> None:
        """Raise LiveReplayError if too many consecutive frames of a camera were lost.

        losses: how its last frame was lost between player and node, one entry per affected DNN.
        """
        self._lost_frames[camera.name] = self._lost_frames[camera.name] + 1 if losses else 0
        if self._lost_frames[camera.name] == _MAX_LOST:
            raise LiveReplayError(
                f"{_MAX_LOST} consecutive frames of camera {camera.name} on {camera.topic} were lost between player "
                f"and node {self._remote.name}; the last: {losses[0]}"
            )

    def _is_complete(self, stream: Stream) -> bool:
        return self._results[stream].keys() >= self._topics(stream[0]).keys()

    def _loss_reason(self, stream: Stream, waited_s: float) -> tuple[str, str] | None:
        """Why the frame in progress will have no result from this DNN; None: it may still arrive. Holds the lock."""
        account = self._accounts.get(stream, StreamAccount())
        arrived = account.offered >= self._offered[stream]
        if arrived and account.pending == 0 and account.published == self._published[stream]:
            new = account.dropped - self._dropped.get(stream, Counter())
            self._dropped[stream] = account.dropped
            return next(iter(new), "dropped"), "the node dropped the frame; its log says why"
        if arrived and account.pending:
            if waited_s > self._work_timeout_s:
                raise LiveReplayError(f"DNN {stream[0]} has been busy with one frame for {self._work_timeout_s:g} s")
        elif waited_s > self._arrival_timeout_s:
            if arrived:
                text = f"the node published the results, but they did not arrive within {self._arrival_timeout_s:g} s"
            else:
                text = f"the frame did not reach the node within {self._arrival_timeout_s:g} s"
            # The node's accounts will not include this frame.
            self._offered[stream], self._published[stream] = account.offered, account.published
            return "lost", text
        return None
