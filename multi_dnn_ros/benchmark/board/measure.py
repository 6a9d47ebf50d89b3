"""The run: each mix of DNNs with a node of its own, within the planned time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from multi_dnn_ros.benchmark.board.machine import SensorLog
from multi_dnn_ros.benchmark.board.search import RateRange, RateSearch, min_frames
from multi_dnn_ros.benchmark.board.trial import MIN_TRIAL_S, Trial, run_trial
from multi_dnn_ros.benchmark.cameras import CameraPlan
from multi_dnn_ros.benchmark.rig import Rig
from multi_dnn_ros.benchmark.time_bar import time_bar
from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.common.processes import Interrupts
from multi_dnn_ros.settings.schema import NodeConfig

#: The node reports more often than by default, so that short trials are counted exactly.
_REPORT_PERIOD_S = 0.25
#: The lowest rate that is searched.
_MIN_RATE_HZ = 0.5
#: Time of a trial in which nothing is measured: the start of the camera processes, and the end.
_OVERHEAD_S = 5.0
_MAX_TRIALS = 14
#: Limits of the long run at the highest rate, and the share of a mix's time that is kept for it.
_MIN_LONG_S, _MAX_LONG_S, _LONG_SHARE = 8.0, 300.0, 0.25


@dataclass(frozen=True)
class BoardPlan:
    """configs: the node's parameters by the name of the mix. size: (width, height) of the images. encoding: of raw
    images; empty: JPEG. max_rate_hz: highest rate to try. seed: of the images.
    """

    configs: dict[str, NodeConfig]
    minutes: float
    cameras: int = 1
    size: tuple[int, int] = (640, 480)
    encoding: str = "rgb8"
    max_rate_hz: float = 200.0
    seed: int = 0


def measure_board(
    plan: BoardPlan, folder: Path, save: Callable[[dict[str, Any]], None], say: Callable[[str], None] = tqdm.write
) -> dict[str, Any]:
    """Find the highest rate of each mix; returns the figures by mix. folder: for logs.

    save: called with the figures so far after each trial. A mix that fails has `error` instead of a highest rate.
    KeyboardInterrupt is raised after the figures have been saved.
    """
    mixes: dict[str, dict[str, Any]] = {}
    end_s = time.monotonic() + 60.0 * plan.minutes
    with Interrupts(), SensorLog() as sensors, time_bar(60.0 * plan.minutes, "starting") as bar:
        for number, (name, config) in enumerate(plan.configs.items()):
            share_s = (end_s - time.monotonic()) / (len(plan.configs) - number)
            mixes[name] = {
                "dnns": {dnn: settings.model for dnn, settings in config.dnns.items()},
                "device": "",
                "highest_hz": None,
                "failing_hz": None,
                "trials": [],
                "at_highest": None,
                "error": "",
            }
            mix = _Mix(name, mixes[name], time.monotonic() + share_s, sensors, bar, say, lambda: save(mixes))
            try:
                mix.run(plan, config, folder / f"{number + 1}_{name}")
            except (CommandError, UsageError, ValueError, RuntimeError, OSError) as error:
                mixes[name]["error"] = summarize_error(error)
                say(f"{name} failed: {mixes[name]['error']}")
            save(mixes)
    for problem in sensors.problems:
        say(problem)
    return mixes


@dataclass
class _Mix:
    """One mix while it is measured. end_s: when its time is over, on the monotonic clock."""

    name: str
    record: dict[str, Any]
    end_s: float
    sensors: SensorLog
    bar: Any
    say: Callable[[str], None]
    save: Callable[[], None]

    def run(self, plan: BoardPlan, config: NodeConfig, folder: Path) -> None:
        """Start the node, search, and measure at the highest rate for the rest of the time."""
        self.bar.set_description(f"{self.name}, starting")
        cameras = [CameraPlan(f"camera{index}", plan.size, plan.encoding, 1.0) for index in range(plan.cameras)]
        config = config.model_copy(update={"diagnostics_period_s": _REPORT_PERIOD_S})
        with Rig(folder, config, cameras, plan.seed) as rig:
            rig.sample_s = 0.5
            self.record["device"] = rig.value("node", "device") or "cpu"
            left_s = max(0.0, self.end_s - time.monotonic())
            long_s = min(_MAX_LONG_S, max(_MIN_LONG_S, _LONG_SHARE * left_s))
            max_s = max(MIN_TRIAL_S, 0.5 * (left_s - long_s) - _OVERHEAD_S)
            lowest_hz = min(max(_MIN_RATE_HZ, min_frames() / max_s), plan.max_rate_hz)
            search = RateSearch(RateRange(lowest_hz, plan.max_rate_hz), _MAX_TRIALS)
            self._search(rig, search, max_s, long_s)
            self._measure_highest(rig, search)

    def _search(self, rig: Rig, search: RateSearch, max_s: float, long_s: float) -> None:
        while (rate_hz := search.next_hz()) is not None:
            needed_s = _OVERHEAD_S + max(MIN_TRIAL_S, min_frames() / rate_hz) + _OVERHEAD_S + long_s
            if self.record["trials"] and time.monotonic() + needed_s > self.end_s:
                return
            trial = self._trial(rig, rate_hz, MIN_TRIAL_S, max_s)
            search.add(rate_hz, trial.passed, trial.results_hz / len(rig.streams))
            self.record.update(highest_hz=search.best_hz, failing_hz=search.failing_hz)
            self.save()

    def _measure_highest(self, rig: Rig, search: RateSearch) -> None:
        """A long run at the highest served rate; a rate that is not served in it is lowered while there is time."""
        while (rate_hz := search.best_hz) is not None:
            seconds = min(_MAX_LONG_S, max(_MIN_LONG_S, self.end_s - time.monotonic() - _OVERHEAD_S))
            seconds = max(seconds, min_frames() / rate_hz)
            trial = self._trial(rig, rate_hz, seconds, seconds)
            search.add(rate_hz, trial.passed)
            self.record.update(highest_hz=search.best_hz, failing_hz=search.failing_hz)
            if trial.passed:
                self.record["at_highest"] = asdict(trial)
                return
            if self.end_s - time.monotonic() < _OVERHEAD_S + _MIN_LONG_S:
                break
        self.record["at_highest"] = _last_passed(self.record["trials"], self.record["highest_hz"])

    def _trial(self, rig: Rig, rate_hz: float, min_s: float, max_s: float) -> Trial:
        self.bar.set_description(f"{self.name}, {rate_hz:.4g} Hz")
        start_s = time.monotonic()
        shown_s = start_s

        def progress() -> None:
            nonlocal shown_s
            now = time.monotonic()
            self.bar.update(now - shown_s)
            shown_s = now

        trial = run_trial(rig, rate_hz, min_s, max_s, self.sensors, progress)
        progress()
        self.record["trials"].append(asdict(trial))
        self.say(
            f"{self.name}: {rate_hz:.4g} Hz: {trial.results_hz:.1f} results/s, {trial.drop_share:.1%} missing in "
            f"{trial.frames:.0f} frames: {'served' if trial.passed else 'not served'}"
            + ("" if trial.decided else " (not decided at 95 %)")
        )
        return trial


def _last_passed(trials: Sequence[dict[str, Any]], rate_hz: float | None) -> dict[str, Any] | None:
    return next((trial for trial in reversed(trials) if trial["rate_hz"] == rate_hz and trial["passed"]), None)
