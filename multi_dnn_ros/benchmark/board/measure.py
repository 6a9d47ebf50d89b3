"""The run: mix after mix, each with a node of its own, within the planned time."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
from tqdm import tqdm

from multi_dnn_ros.benchmark.board.machine import SensorLog, summarize
from multi_dnn_ros.benchmark.board.mixes import (
    Cost,
    Mix,
    choose_mixes,
    chosen_device,
    cost_of,
    demand_of,
    dnn_texts,
    flops_per_s,
    mix_config,
    obstacle,
)
from multi_dnn_ros.benchmark.board.record import BoardRecord, Idle, MixRecord, SensorSample, Settings, Trial
from multi_dnn_ros.benchmark.board.search import RateRange, RateSearch, min_frames
from multi_dnn_ros.benchmark.board.time_plan import (
    MAX_LONG_S,
    MAX_TRIALS,
    MIN_LONG_S,
    MIN_TRIAL_S,
    OVERHEAD_S,
    Demand,
    Share,
    plan_time,
)
from multi_dnn_ros.benchmark.board.trial import run_trial
from multi_dnn_ros.benchmark.cameras import CameraPlan
from multi_dnn_ros.benchmark.rig import Rig
from multi_dnn_ros.benchmark.time_bar import time_bar
from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.errors import CommandError, UsageError
from multi_dnn_ros.common.processes import Interrupts

#: The node reports more often than by default, so that short trials are counted exactly.
_REPORT_PERIOD_S = 0.25
_IDLE_S = 5.0
#: The lowest rate that is searched, however much time there is.
_MIN_RATE_HZ = 0.5


@dataclass
class BoardRun:
    """A run that can be interrupted and continued.

    content: the figures so far; if they are from an earlier run, that run is continued. save: called with `content`
    after each trial. say: prints a line.
    """

    settings: Settings
    minutes: float
    folder: Path
    content: BoardRecord
    save: Callable[[BoardRecord], None]
    say: Callable[[str], None] = tqdm.write
    device: torch.device = field(init=False)
    _begin_s: float = field(init=False)
    _sensors: SensorLog = field(init=False)
    _bar: Any = field(init=False, default=None)
    _current: str = field(init=False, default="")  # mix
    _stored: int = field(init=False, default=0)  # readings in the timeline
    _earlier_s: float = field(init=False, default=0.0)  # time of the run that is continued

    def __post_init__(self) -> None:
        self.device = chosen_device(self.settings.device)
        if self.content.timeline:
            self._earlier_s = self.content.timeline[-1].at_s

    def run(self) -> None:
        """Measure what is not measured yet. KeyboardInterrupt is raised after the figures have been saved."""
        mixes = {mix.name: mix for mix in choose_mixes(self.settings.mixes)}
        waiting = {name: mix for name, mix in mixes.items() if not self._finished(name)}
        total_s = 60.0 * self.minutes
        self._begin_s = time.monotonic()
        with (
            Interrupts(),
            SensorLog() as self._sensors,
            time_bar(total_s, "planning") as self._bar,
        ):
            demands = self._demands(waiting, total_s)
            if self.content.idle is None:
                self.content.idle = self._idle(min(_IDLE_S, 0.05 * total_s))
            self._describe(plan_time(self._left_s(), demands))
            while demands:  # planned again before each mix: the earlier ones took more or less than their share
                plan = plan_time(self._left_s(), demands)
                name = next((name for name, share in plan.items() if isinstance(share, Share)), None)
                if name is None:
                    for left_out, reason in plan.items():
                        self._close(left_out, "does_not_fit", str(reason))
                    break
                share = plan[name]
                assert isinstance(share, Share)
                del demands[name]
                self._mix(mixes[name], share)
        for problem in self._sensors.problems:
            self.say(problem)

    # -- before the mixes

    def _finished(self, name: str) -> bool:
        return name in self.content.mixes and self.content.mixes[name].status in ("measured", "not_served")

    def _demands(self, mixes: Mapping[str, Mix], total_s: float) -> dict[str, Demand]:
        """The demands of the mixes that can run here; the other mixes are reported."""
        demands = {}
        throughput: float | None = None
        for name, mix in mixes.items():
            earlier = self.content.mixes.get(name)
            self.content.mixes[name] = (
                earlier.model_copy(update={"status": "not_run", "reason": ""})
                if earlier is not None
                else MixRecord(
                    text=mix.text,
                    dnns={},
                    cameras=self.settings.cameras,
                    size=self.settings.size,
                    encoding=self.settings.encoding,
                )
            )
            try:
                cost: Cost | None = cost_of(mix.dnns) if mix.dnns is not None else None
                reason = obstacle(mix, self.device, cost, self.folder)
                if not reason and cost is not None and throughput is None:
                    throughput = flops_per_s(self.device)
            except (RuntimeError, ValueError, OSError) as error:
                self._close(name, "failed", summarize_error(error))
                continue
            if reason:
                self._close(name, "does_not_fit", reason)
                continue
            demands[name] = demand_of(mix, self.device, cost, throughput)
            self._progress()
        return demands

    def _idle(self, seconds: float) -> Idle:
        """Measure the load of other programs, and the sensors at rest."""
        self._bar.set_description("at rest")
        psutil.cpu_percent()
        before = psutil.Process().cpu_times()
        begin_s = time.monotonic()
        while time.monotonic() < begin_s + seconds:
            time.sleep(0.1)
            self._sensors.poll()
            self._progress()
        busy, now = psutil.cpu_percent() / 100.0, psutil.Process().cpu_times()
        own_share = (now.user + now.system - before.user - before.system) / seconds / (psutil.cpu_count() or 1)
        at_rest = summarize(self._sensors.between(begin_s, time.monotonic()))
        return Idle(
            seconds=seconds, busy_share=min(1.0, max(0.0, busy - own_share)), power_w=at_rest.power_w,
            temperature_c=at_rest.temperature_c,
        )  # fmt: skip

    def _describe(self, plan: Mapping[str, Share | str]) -> None:
        for name, share in plan.items():
            if isinstance(share, Share):
                self.say(
                    f"{name}: {share.seconds:.0f} s planned: start about {share.start_s:.0f} s, up to {share.trials} "
                    f"trials of {MIN_TRIAL_S:.0f} to {share.trial_s:.0f} s, at least {share.long_s:.0f} s at the "
                    "highest rate"
                )
            else:
                self.say(f"{name}: no time planned: {share}")

    # -- one mix

    def _mix(self, mix: Mix, share: Share) -> None:
        name, end_s = mix.name, time.monotonic() + share.seconds
        number = 1 + list(self.content.mixes).index(name)  # two parameter files may have the same name
        folder = self.folder / f"{number}_{Path(name).name.replace('.', '_')}"
        self._current = name
        self._bar.set_description(f"{name}, starting")
        try:
            self._measure(mix, folder, share, end_s)
        except KeyboardInterrupt:
            self._close(name, "interrupted", "stopped by Ctrl-C or SIGTERM; --resume continues")
            raise
        except (CommandError, UsageError, ValueError, RuntimeError, OSError) as error:
            self._close(name, "failed", summarize_error(error))
        finally:
            self._current = ""
            shutil.rmtree(folder / "networks", ignore_errors=True)

    def _measure(self, mix: Mix, folder: Path, share: Share, end_s: float) -> None:
        settings, record = self.settings, self.content.mixes[mix.name]
        config = mix_config(mix, settings.device, self.device, folder / "networks")
        record.dnns = dnn_texts(mix, config)
        config = config.model_copy(update={"diagnostics_period_s": _REPORT_PERIOD_S})
        encoding = "" if settings.encoding == "jpeg" else settings.encoding
        cameras = [CameraPlan(f"camera{number}", settings.size, encoding, 1.0) for number in range(settings.cameras)]
        begin_s = time.monotonic()
        with Rig(folder, config, cameras, settings.seed) as rig:
            rig.sample_s = 0.5
            record.start_s = time.monotonic() - begin_s
            record.device = rig.value("node", "device") or "cpu"
            self._progress()
            lowest_hz = min(max(_MIN_RATE_HZ, min_frames() / share.trial_s), settings.max_rate_hz)
            # Trials of the interrupted run count, but there is time for at least one more.
            search = RateSearch(RateRange(lowest_hz, settings.max_rate_hz), max(MAX_TRIALS, len(record.trials) + 1))
            for trial in record.trials:
                search.add(trial.rate_hz, trial.passed)
            self._search(rig, search, share, end_s, record)
        highest = record.highest_hz
        if highest is not None:
            self._close(mix.name, "measured", "")
        else:
            lowest = min(record.trials, key=lambda trial: trial.rate_hz)
            self._close(
                mix.name,
                "not_served",
                f"at {lowest.rate_hz:.3g} Hz, the lowest rate that there was time for, {lowest.drop_share:.0%} of the "
                "results are missing",
            )

    def _search(self, rig: Rig, search: RateSearch, share: Share, end_s: float, record: MixRecord) -> None:
        long_s = share.long_s
        while True:
            rate_hz = search.next_hz()
            left_s = end_s - time.monotonic()
            if rate_hz is not None and record.trials:
                needed_s = OVERHEAD_S + max(MIN_TRIAL_S, min_frames() / rate_hz)
                best_s = long_s + OVERHEAD_S if search.best_hz is not None else 0.0
                if needed_s + best_s > left_s:
                    rate_hz = None
            min_s, max_s, is_long = MIN_TRIAL_S, share.trial_s, rate_hz is None
            if rate_hz is None:
                rate_hz = search.best_hz
                if rate_hz is None:
                    break
                min_s = min(MAX_LONG_S, max(MIN_LONG_S, left_s - OVERHEAD_S))
                min_s = max_s = max(min_s, min_frames() / rate_hz)
            self._bar.set_description(f"{self._current}, {rate_hz:.4g} Hz")
            trial = self._trial(rig, rate_hz, min_s, max_s, record)
            search.add(rate_hz, trial.passed, trial.results_hz / len(rig.streams))
            record.highest_hz, record.failing_hz = search.best_hz, search.failing_hz
            record.long = len(record.trials) - 1 if is_long and trial.passed else None
            self.save(self.content)
            # A long run that failed lowers the rate, as long as there is time for another one.
            if is_long and (trial.passed or end_s - time.monotonic() < OVERHEAD_S + MIN_LONG_S):
                break

    def _trial(self, rig: Rig, rate_hz: float, min_s: float, max_s: float, record: MixRecord) -> Trial:
        trial = run_trial(rig, rate_hz, min_s, max_s, self._sensors, self._progress)
        record.trials.append(trial)
        self.say(
            f"{self._current}: {rate_hz:.4g} Hz: {trial.results_hz:.1f} results/s, {trial.drop_share:.1%} missing in "
            f"{trial.frames:.0f} frames: {'served' if trial.passed else 'not served'}"
            + ("" if trial.decided else " (not decided at 95 %)")
        )
        return trial

    def _close(self, name: str, status: Any, reason: str) -> None:
        record = self.content.mixes[name]
        if record.trials and status == "does_not_fit":  # no time to continue it
            status = "interrupted"
        record.status, record.reason = status, reason
        if reason:
            self.say(f"{name}: {status.replace('_', ' ')}: {reason}")
        self.save(self.content)

    # -- time

    def _left_s(self) -> float:
        return self._begin_s + 60.0 * self.minutes - time.monotonic()

    def _progress(self) -> None:
        self._bar.n = time.monotonic() - self._begin_s
        self._bar.refresh()
        for each in self._sensors.readings[self._stored :]:
            sample = SensorSample(
                at_s=self._earlier_s + each.at_s - self._begin_s,
                mix=self._current,
                power_w=each.reading.total_w,
                temperature_c=each.temperature[0],
                clock_share=each.clock_share,
                throttled=bool(each.reading.throttled),
            )
            self._stored += 1
            if (sample.power_w, sample.temperature_c, sample.clock_share) != (None, None, None):
                self.content.timeline.append(sample)
