"""Progress of configuring, and the remaining time as estimated from an earlier run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from multi_dnn_ros.common.atomic_files import atomic_write
from multi_dnn_ros.common.progress_lines import DnnReady
from multi_dnn_ros.common.resources import cache_folder
from multi_dnn_ros.serving.host import Progress
from multi_dnn_ros.settings.schema import NodeConfig

#: Number of configurations whose durations are kept; the oldest are deleted.
_MAX_FILES = 100
#: Name of the steps after the last DNN is ready: first runs and the capacity.
_REST = "rest"


class ProgressReport:
    """Turns lines of progress into :class:`Progress`. An instance is called with each line.

    dnns: names in the order in which they become ready. earlier: seconds of each step of an earlier run with the same
    settings (the DNNs by name, and `rest`); empty: there was none. report: called with each Progress. clock: seconds,
    monotonic.
    """

    def __init__(
        self,
        dnns: Sequence[str],
        earlier: Mapping[str, float],
        report: Callable[[Progress], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps = (*dnns, _REST)
        self._earlier = earlier if earlier.keys() == set(self._steps) else {}
        self._report = report
        self._clock = clock
        self._step_start = clock()
        self._durations_s: list[float] = []  # of the steps that are done

    def __call__(self, text: str) -> None:
        dnns, done = self._steps[:-1], len(self._durations_s)
        dnn = dnns[done] if done < len(dnns) else ""
        if dnn and isinstance(text, DnnReady):
            self._step_done()
        self._report(Progress(str(text), len(self._durations_s), len(dnns), self.left_s(), dnn))

    def left_s(self) -> float | None:
        """Estimated seconds until configuring is done; None: unknown.

        Estimated from an earlier run; without one, from the mean time of the DNNs that are ready.
        """
        done = len(self._durations_s)
        if self._earlier:
            current, *later = [self._earlier[step] for step in self._steps[done:]]
        elif done:
            current = sum(self._durations_s) / done
            later = [current] * (len(self._steps) - done - 2)
            if done == len(self._steps) - 1:
                return None  # the duration of the rest is unknown
        else:
            return None
        return max(0.0, current - (self._clock() - self._step_start)) + sum(later)

    def finished(self) -> dict[str, float]:
        """Seconds by step; call it once, at the end."""
        while len(self._durations_s) < len(self._steps):  # the pipeline does not report when its DNNs are ready
            self._step_done()
        return dict(zip(self._steps, self._durations_s, strict=True))

    def _step_done(self) -> None:
        now = self._clock()
        self._durations_s.append(now - self._step_start)
        self._step_start = now


def durations_file(config: NodeConfig, versions: Mapping[str, str]) -> Path:
    """The file with the durations of configuring `config` with these versions of libraries."""
    key = json.dumps([config.model_dump(mode="json"), dict(versions)], sort_keys=True)
    return cache_folder() / "configure" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def read_durations(path: Path) -> dict[str, float]:
    """Seconds by step; empty if the file is missing or damaged, because only an estimate depends on it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(step): float(seconds) for step, seconds in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def keep_durations(path: Path, durations: Mapping[str, float]) -> None:
    """Write the durations for the next run; a cache that cannot be written is not an error."""
    with contextlib.suppress(OSError), atomic_write(path) as temporary:
        temporary.write_text(json.dumps({step: round(seconds, 3) for step, seconds in durations.items()}))
        others = sorted(path.parent.glob("[!.]*.json"), key=lambda other: other.stat().st_mtime, reverse=True)
        for old in others[_MAX_FILES:]:
            old.unlink(missing_ok=True)
