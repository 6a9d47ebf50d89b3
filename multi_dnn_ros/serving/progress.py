"""How far configuring is, and how long it will take by what it took before."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from multi_dnn_ros.common.atomic_files import atomic_write
from multi_dnn_ros.common.progress_lines import DnnReady
from multi_dnn_ros.common.resources import cache_folder
from multi_dnn_ros.serving.host import Progress
from multi_dnn_ros.settings.schema import NodeConfig

log = logging.getLogger(__name__)

#: Settings whose durations are kept, the newest ones.
_KEPT = 100
#: The steps after the last DNN is ready: first runs and the capacity.
_REST = "rest"


class ProgressReport:
    """Turns lines of progress into :class:`Progress`; to be called with each line.

    dnns: in the order in which they get ready. former: seconds of each step of an earlier run with the same settings
    (the DNNs by name, and `rest`); empty: there was none. tell: gets each report. clock: seconds, monotonic.
    """

    def __init__(
        self,
        dnns: Sequence[str],
        former: Mapping[str, float],
        tell: Callable[[Progress], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps = (*dnns, _REST)
        self._former = former if former.keys() == set(self._steps) else {}
        self._tell = tell
        self._clock = clock
        self._begin = clock()
        self._took: list[float] = []  # seconds, of the steps that are done

    def __call__(self, text: str) -> None:
        if isinstance(text, DnnReady) and len(self._took) < len(self._steps) - 1:
            self._step_done()
        self._tell(Progress(str(text), len(self._took), len(self._steps) - 1, self.left_s()))

    def left_s(self) -> float | None:
        """Estimated seconds until configuring is done; None while nothing is known.

        The times of an earlier run; without one, each DNN takes as long as those before did on average.
        """
        done = len(self._took)
        if self._former:
            current, *later = [self._former[step] for step in self._steps[done:]]
        elif done:
            current = sum(self._took) / done
            later = [current] * (len(self._steps) - done - 2)
            if done == len(self._steps) - 1:
                return None  # the rest was never seen
        else:
            return None
        return max(0.0, current - (self._clock() - self._begin)) + sum(later)

    def finished(self) -> dict[str, float]:
        """Seconds that each step took; to be called once, at the end."""
        while len(self._took) < len(self._steps):  # a pipeline that does not say when its DNNs are ready
            self._step_done()
        return dict(zip(self._steps, self._took, strict=True))

    def _step_done(self) -> None:
        now = self._clock()
        self._took.append(now - self._begin)
        self._begin = now


def durations_file(config: NodeConfig, versions: Mapping[str, str]) -> Path:
    """Where the durations of configuring `config` with these versions of libraries are kept."""
    key = json.dumps([config.model_dump(mode="json"), dict(versions)], sort_keys=True)
    return cache_folder() / "configure" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def read_durations(path: Path) -> dict[str, float]:
    """Seconds by step; empty when the file is missing or damaged: they are only an estimate."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {str(step): float(seconds) for step, seconds in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def keep_durations(path: Path, durations: Mapping[str, float]) -> None:
    """For the next run; a cache that cannot be written is no error."""
    with contextlib.suppress(OSError), atomic_write(path) as beside:
        beside.write_text(json.dumps({step: round(seconds, 3) for step, seconds in durations.items()}))
        others = sorted(path.parent.glob("[!.]*.json"), key=lambda other: other.stat().st_mtime, reverse=True)
        for old in others[_KEPT:]:
            old.unlink(missing_ok=True)
